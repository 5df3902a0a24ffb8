"""BaseTrigger, the events that a trigger fires, and how a task waits and is resumed, with Airflow's names."""

from __future__ import annotations

from abc import abstractmethod

from asynsched.authoring.class_paths import imported_class
from asynsched.authoring.exceptions import AsynschedException

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    import logging
    from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Mapping
    from typing import Any, ClassVar

    from asynsched.authoring.triggers.shared_stream import SharedStreamProducer, SharedStreams

FAIL_METHOD = "__fail__"
"""In place of a method, as in Airflow: the trigger did not fire, and the task is resumed to fail."""
TRIGGER_FAILURE = "Trigger failure"
TRIGGER_TIMEOUT = "Trigger timeout"
KILLED = "__airflow_user_action__"
"""Message of the cancellation of a trigger whose task was ended or cleared. Providers look for Airflow's text."""
KILL_SECONDS = 30.0
"""How long `on_kill` may take by default."""


class BaseTrigger:
    """The condition that a deferred task waits for. It runs in another process, on an event loop with other triggers.

    Subclasses implement `serialize` and `run`. Their code may be in the DAG file, in a module that it imports or in an
    installed package; it must not block.

    Attributes:
        task_instance: The waiting task instance, with dag_id, run_id, task_id, map_index and try_number; None until the
            trigger runs.
        trigger_id: The name of this run of the trigger; None until it runs.
    """

    def __init__(self, **kwargs: Any) -> None:
        self.task_instance: Any = None
        self.trigger_id: str | None = None

    @property
    def log(self) -> logging.Logger:
        """The trigger's logger."""
        import logging

        return logging.getLogger(f"asynsched.trigger.{type(self).__qualname__}")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class, and the arguments to make the trigger again.

        The arguments may contain JSON values, dates, times, timedeltas, tuples, sets and bytes.
        """
        raise NotImplementedError(f"{type(self).__name__} has no serialize()")

    def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield a TriggerEvent when the condition is met; only the first counts. An `async def` with `yield`."""
        raise NotImplementedError(f"{type(self).__name__} has no run()")

    def awaited_input(self) -> dict[str, Any] | None:
        """For HITLTrigger: the fields of AwaitedInput, and the `timeout` in seconds or None. Other triggers: None."""
        return None

    async def on_kill(self) -> None:
        """Hook: called when somebody ends or clears the waiting task, before `cleanup`. Cancel the external job here.

        It is not called when the trigger has fired or failed, when its time is over, or when its process ends with the
        trigger to go on elsewhere.
        """

    async def cleanup(self) -> None:
        """Hook: called when the trigger is no longer needed, for any reason."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class BaseEventTrigger(BaseTrigger):
    """A trigger that may also watch an asset (`AssetWatcher`): then each event that it yields updates the asset.

    A watching trigger goes on after an event once the event is stored. It is started again when it ends or fails.

    Attributes:
        asset_state_store: The values of the assets that the trigger watches, while it runs: await its methods `aget`,
            `aset`, `adelete` and `aclear`. None in a trigger that a task waits for.
    """

    supports_triggerer_queue = False
    asset_state_store: Any = None

    @staticmethod
    def hash(classpath: str, kwargs: Mapping[str, Any]) -> int:
        """Return a number that is the same for triggers of the same class with the same arguments."""
        return hash((classpath, repr(sorted(kwargs.items()))))

    def shared_stream_key(self) -> Hashable | None:
        """Return the key of the shared source; None for a trigger that reads its source alone, in `run`.

        Triggers of one DAG file with an equal key share one stream: `open_shared_stream`, or the producer, reads the
        source once for all of them, and each makes its events in `filter_shared_stream`.
        """
        return None

    @classmethod
    def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncGenerator[Any]:
        """Yield what the source gives, without an end. An `async def` with `yield`.

        Args:
            kwargs: The arguments of one of the triggers that share the stream.
        """
        raise NotImplementedError(f"{cls.__name__} has a shared_stream_key, but no open_shared_stream()")

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return the producer that reads the source in place of `open_shared_stream`, and confirms its events."""
        raise NotImplementedError(f"{cls.__name__} has no create_shared_stream_producer()")

    def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncGenerator[TriggerEvent]:
        """Yield the trigger's events from those of the shared stream. An `async def` with `yield`."""
        raise NotImplementedError(f"{type(self).__name__} has a shared_stream_key, but no filter_shared_stream()")


class TriggerEvent:
    """The event of a trigger: the task continues, and receives `payload` as `event`.

    The payload may contain the types that `BaseTrigger.serialize` may return.
    """

    def __init__(self, payload: Any = None) -> None:
        self.payload = payload

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.payload!r})"


class PollingTrigger(BaseTrigger):
    """Checks its condition at intervals, in a thread: a check may ask the scheduler, or read a slow disk.

    Attributes:
        fields: The attributes that make the trigger again.
        poke_interval: The seconds between two checks.
    """

    fields: ClassVar[tuple[str, ...]]
    poke_interval: float

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kind: Any = next(level for level in type(self).__mro__ if "fields" in vars(level))
        return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(self, name) for name in kind.fields}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        import asyncio

        while (event := await asyncio.to_thread(self.check)) is None:  # noqa: ASYNC110 - it announces nothing
            await asyncio.sleep(self.poke_interval)
        yield event

    @abstractmethod
    def check(self) -> TriggerEvent | None:
        """Return the event if the condition is met."""


class BaseTaskEndEvent(TriggerEvent):
    """Ends the task without another process: none of its methods is called.

    Args:
        xcoms: JSON values to push as the task's XComs, by key.
    """

    task_instance_state: ClassVar[str]

    def __init__(self, *, xcoms: Mapping[str, Any] | None = None) -> None:
        super().__init__(self.task_instance_state)
        self.xcoms = None if xcoms is None else dict(xcoms)


class TaskSuccessEvent(BaseTaskEndEvent):
    """Ends the task as successful."""

    task_instance_state = "success"


class TaskFailedEvent(BaseTaskEndEvent):
    """Ends the task as failed, without a retry."""

    task_instance_state = "failed"


class TaskSkippedEvent(BaseTaskEndEvent):
    """Ends the task as skipped."""

    task_instance_state = "skipped"


class StartTriggerArgs:
    """The trigger that an operator with `start_from_trigger` waits for first.

    Args:
        trigger_cls: The path of the trigger's class.
        next_method: The operator's method to call when the trigger fires.
        trigger_kwargs: The arguments of the trigger.
        next_kwargs: The arguments of the method in addition to `event`.
    """

    def __init__(
        self,
        trigger_cls: str,
        next_method: str,
        trigger_kwargs: dict[str, Any] | None = None,
        next_kwargs: dict[str, Any] | None = None,
        timeout: dt.timedelta | None = None,
    ) -> None:
        self.trigger_cls = trigger_cls
        self.next_method = next_method
        self.trigger_kwargs = trigger_kwargs
        self.next_kwargs = next_kwargs
        self.timeout = timeout


class Resumption:
    """How a deferred task is resumed: the method to call, and its keyword arguments, including `event`."""

    __slots__ = ("kwargs", "method_name")

    def __init__(self, method_name: str, kwargs: dict[str, Any]) -> None:
        self.method_name = method_name
        self.kwargs = kwargs


def failed_resumption(error: str, detail: str, traceback: list[str] | None = None) -> Resumption:
    """Return the resumption of a task whose trigger did not fire."""
    return Resumption(FAIL_METHOD, {"error": error, "detail": detail, "traceback": traceback or []})


def make_trigger(classpath: str, kwargs: Mapping[str, Any]) -> BaseTrigger:
    """Make a trigger from the result of its `serialize`. Raises AsynschedException if the path names no trigger."""
    try:
        found = imported_class(classpath, BaseTrigger)
    except ImportError as exc:
        raise AsynschedException(f"the trigger {exc}") from exc
    return found(**kwargs)


async def first_event(
    trigger: BaseTrigger, streams: SharedStreams | None = None, *, kill_seconds: float = KILL_SECONDS
) -> TriggerEvent:
    """Run a trigger until it fires, clean it up, and return its event. See `events_of` for the arguments.

    Raises:
        AsynschedException: It ended without an event, or yielded something else.
        Exception: The trigger's code raised it.
    """
    from contextlib import aclosing

    async with aclosing(events_of(trigger, streams, kill_seconds=kill_seconds)) as events:
        async for event in events:
            return event
    raise AsynschedException(f"{trigger!r} ended without an event")


async def events_of(
    trigger: BaseTrigger, streams: SharedStreams | None = None, *, kill_seconds: float = KILL_SECONDS
) -> AsyncGenerator[TriggerEvent]:
    """Run a trigger, and yield its events; then clean it up. A cancellation with the message KILLED kills it first.

    Args:
        streams: Those of the event loop; by default, the trigger shares none.
        kill_seconds: How long `on_kill` may take.

    Raises:
        AsynschedException: It yielded something else.
        Exception: The trigger's code raised it.
    """
    import asyncio
    from contextlib import AsyncExitStack, aclosing

    key = trigger.shared_stream_key() if isinstance(trigger, BaseEventTrigger) else None
    try:
        async with AsyncExitStack() as stack:
            if key is None or streams is None:
                events: Any = trigger.run()
            else:
                shared = await stack.enter_async_context(streams.subscribed(trigger, key))  # type: ignore[arg-type]
                events = trigger.filter_shared_stream(shared)  # type: ignore[attr-defined]
            await stack.enter_async_context(aclosing(events))
            async for event in events:
                if not isinstance(event, TriggerEvent):
                    raise AsynschedException(f"{trigger!r} must yield a TriggerEvent, not {event!r}")
                yield event
    except asyncio.CancelledError as exc:
        if exc.args == (KILLED,):
            await _kill(trigger, kill_seconds)
        raise
    finally:
        try:
            await trigger.cleanup()
        except Exception:
            trigger.log.exception("cleanup of %r failed", trigger)


async def _kill(trigger: BaseTrigger, seconds: float) -> None:
    """Call `on_kill` of a trigger, which cancels its external job. Errors are logged."""
    import asyncio

    trigger.log.info("%r is killed: its task was ended or cleared", trigger)
    try:
        await asyncio.wait_for(trigger.on_kill(), seconds)
    except TimeoutError:
        trigger.log.warning("on_kill of %r did not end within %g s", trigger, seconds)
    except Exception:
        trigger.log.exception("on_kill of %r failed", trigger)
