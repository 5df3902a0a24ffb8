"""A trigger host: one process that runs the triggers of one version of a DAG file, all on one event loop.

It is a fork of that version's template, as a try is. It asks the scheduler for its work, keeps the outcomes of its
triggers until they are stored, and ends when it is told to. A scheduler that restarts finds it with the outcomes.
"""

import asyncio
import logging
import os
import selectors
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import count, starmap
from types import FrameType, SimpleNamespace
from typing import Any
from uuid import uuid4

import msgspec

from asynsched.airflow.configuration import conf
from asynsched.authoring.assets import Asset
from asynsched.authoring.masking import shortened
from asynsched.authoring.running.state_store import AssetStateStoreAccessors
from asynsched.authoring.running.tracebacks import one_line, user_frames
from asynsched.authoring.supervisor import SupervisorError, set_supervisor
from asynsched.authoring.transport import from_transport, to_transport
from asynsched.authoring.triggers.base import (
    KILL_SECONDS,
    KILLED,
    BaseEventTrigger,
    BaseTaskEndEvent,
    BaseTrigger,
    TriggerEvent,
    events_of,
    first_event,
    make_trigger,
)
from asynsched.authoring.triggers.shared_stream import ACK_TIMEOUT_SECONDS, MAX_WAITING, SharedStreams
from asynsched.protocol import messages
from asynsched.protocol.frames import FrameReader, ProtocolError, TooLarge, encode_frame
from sandbox.run import READ_BYTES, SchedulerLink, answer_of, json_of

log = logging.getLogger("asynsched.triggerer")

PAUSE_SECONDS = 1.0
"""How long to wait before a request is repeated that the scheduler could not answer."""
MAX_OUTCOMES = 200
"""Outcomes in one request."""
MAX_BYTES = 1_000_000
"""JSON of outcomes, after which the others wait for the next request."""
MAX_EVENT_BYTES = 8_000_000
"""JSON of one event: with the rest of its report, it must fit into a frame."""
MAX_TRACEBACK = 100_000
LONGEST_PAUSE_SECONDS = 60.0
"""The longest pause before a watcher's trigger that failed is started again; the first is PAUSE_SECONDS."""
STEADY_SECONDS = 60.0
"""A watcher's trigger that has run this long has recovered from its failure."""
LONGEST_KILL_SECONDS = 50.0
"""A host that is told to end, and has not ended a minute after its last trigger was stopped, counts as hanging."""
LAST_REPORT_SECONDS = 2.0
"""How long a host that is told to end tries to report the last events of watchers, and to close shared streams."""
_label: ContextVar[str] = ContextVar("label", default="")
"""Of the trigger whose code runs, for the lines that it logs, and those of tasks that it starts."""


def run_host(launch: messages.Launch, link: SchedulerLink) -> messages.Ended:
    """Run triggers until the scheduler, or a signal, ends the host."""
    assert launch.trigger_host is not None
    started_at = datetime.now(UTC)
    link.send(messages.Started(launch.token, started_at, os.getpid()))
    host_link = HostLink(link.socket, launch.token)
    set_supervisor(host_link)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_add_label)
    selector = WatchfulSelector(launch.trigger_host.block_timeout)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(TriggerRunner(host_link).serve())
    return messages.Ended(launch.token, "success", datetime.now(UTC), started_at=started_at)


class TriggerRunner:
    """The triggers of a host."""

    def __init__(self, link: "HostLink") -> None:
        self._link = link
        self._streams = shared_streams()
        wanted = conf.getfloat("triggerer", "on_kill_timeout", fallback=KILL_SECONDS)
        self._kill_seconds = min(wanted, LONGEST_KILL_SECONDS)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._next: dict[str, messages.TriggerSpec] = {}
        """Triggers to start once an earlier one of the same id, which was told to stop, has cleaned up."""
        self._outcomes: dict[str, messages.TriggerOutcome] = {}
        """Outcomes that may not be stored yet."""
        self._has_outcomes = asyncio.Event()
        self._one_is_stored = asyncio.Event()
        """Set, and replaced, with each outcome that need not be reported any more."""
        self._is_told_to_end = asyncio.Event()
        self._tasks: asyncio.TaskGroup

    async def serve(self) -> None:
        """Run until told to end, then let every trigger clean up.

        A trigger that ends without an outcome is a bug of this module: the host ends with its error.
        """
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._is_told_to_end.set)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                create = self._tasks.create_task
                services = [create(self._take_work()), create(self._report_outcomes())]
                await self._is_told_to_end.wait()
                for task in self._running.values():
                    _tell_to_stop(task)
                # Nobody waits any more for events of tasks' triggers, but an event of a watcher would be lost.
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_REPORT_SECONDS):
                        await self._until(lambda: not any(outcome.event_id for outcome in self._outcomes.values()))
                for task in services:
                    task.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_REPORT_SECONDS):
                    await self._streams.aclose()
        except ExceptionGroup as failed:
            # The reason of the host's end is one line: it names the error, not the group.
            raise failed.exceptions[0] from failed

    async def _take_work(self) -> None:
        """Ask which triggers to start and to stop; the answer comes once there is a change."""
        known = messages.TriggerWork("")
        arguments: dict[str, Any] = {}
        while True:
            try:
                reply = await self._link.ask(
                    "trigger_work", {"session": known.session, "number": known.number, **arguments}
                )
            except SupervisorError as exc:
                log.warning("The scheduler could not say which triggers to run: %s", exc)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            known = msgspec.convert(reply, messages.TriggerWork)
            arguments = {"running": self._known()} if known.tell_all else {}
            if known.end:
                self._is_told_to_end.set()
                return
            for trigger_id in known.stop:
                self._stop(trigger_id, is_killed=trigger_id in known.kill)
            for spec in known.start:
                self._start(spec)

    async def _report_outcomes(self) -> None:
        while True:
            await self._has_outcomes.wait()
            reported = self._next_outcomes()
            try:
                await self._link.ask("trigger_outcomes", {"outcomes": reported})
            except SupervisorError as exc:
                log.warning("The scheduler could not take the outcomes of triggers: %s", exc)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            for outcome in reported:
                if self._outcomes.get(outcome.id) is outcome:
                    self._forget(outcome.id)

    def _next_outcomes(self) -> list[messages.TriggerOutcome]:
        reported: list[messages.TriggerOutcome] = []
        size = 0
        for outcome in self._outcomes.values():
            if len(reported) == MAX_OUTCOMES or size > MAX_BYTES:
                break
            reported.append(outcome)
            size += len(msgspec.json.encode(outcome))
        return reported

    def _known(self) -> list[str]:
        """Return the triggers that need not be started: they run, start soon, or have an outcome that ends them."""
        running = [trigger_id for trigger_id, task in self._running.items() if not task.cancelling()]
        return [*running, *self._next, *(each.id for each in self._outcomes.values() if not each.event_id)]

    def _start(self, spec: messages.TriggerSpec) -> None:
        if (before := self._running.get(spec.id)) is not None:
            if before.cancelling() or before.done():
                self._next[spec.id] = spec
        elif spec.watcher or spec.id not in self._outcomes:
            task = self._running[spec.id] = self._tasks.create_task(self._run(spec))
            # It may be cancelled before it runs any code, so the code itself cannot do this.
            task.add_done_callback(lambda _: self._ended(spec.id))

    def _stop(self, trigger_id: str, *, is_killed: bool) -> None:
        """Stop a trigger. The last event of a watcher's is reported all the same: it will not come again."""
        self._next.pop(trigger_id, None)
        outcome = self._outcomes.get(trigger_id)
        if outcome is None or not (outcome.event_id and outcome.kind == "event"):
            self._forget(trigger_id)
        if trigger_id in self._running:
            _tell_to_stop(self._running[trigger_id], KILLED if is_killed else None)

    def _ended(self, trigger_id: str) -> None:
        del self._running[trigger_id]
        spec = self._next.pop(trigger_id, None)
        if spec is not None and not self._is_told_to_end.is_set():
            self._start(spec)

    def _forget(self, trigger_id: str) -> None:
        self._outcomes.pop(trigger_id, None)
        if not self._outcomes:
            self._has_outcomes.clear()
        self._one_is_stored.set()
        self._one_is_stored = asyncio.Event()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._one_is_stored.wait()

    async def _run(self, spec: messages.TriggerSpec) -> None:
        if spec.watcher:
            _label.set(f"watcher {spec.watcher}")
            await self._watch(spec)
            return
        index = "" if spec.map_index < 0 else f"[{spec.map_index}]"
        _label.set(f"{spec.dag_id} {spec.run_id} {spec.task_id}{index}")
        outcome = await _outcome_of(spec, self._streams, self._kill_seconds)
        if not _is_told_to_stop():
            self._report(outcome)

    def _report(self, outcome: messages.TriggerOutcome) -> None:
        self._outcomes[outcome.id] = outcome
        self._has_outcomes.set()

    async def _watch(self, spec: messages.TriggerSpec) -> None:
        """Run a watcher's trigger again and again until it is stopped. After an event it waits until that is stored."""
        loop = asyncio.get_running_loop()
        n_failures = 0
        while not _is_told_to_stop():
            began_at = loop.time()
            recovery = loop.call_later(STEADY_SECONDS, self._recovered, spec)
            try:
                trigger = _made(spec)
                async with aclosing(events_of(trigger, self._streams)) as events:
                    async for event in events:
                        log.info("Trigger %r has fired", trigger)
                        await self._store(_outcome(spec.id, TriggerEvent(event.payload), event_id=uuid4().hex))
                        n_failures = 0
                pause = PAUSE_SECONDS
            except BaseException as exc:  # noqa: BLE001 - it is the trigger's, and reported
                failure = _failure(spec, exc)
                if _is_told_to_stop():
                    return
                n_failures = 0 if loop.time() - began_at > STEADY_SECONDS else n_failures
                pause = min(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS * 2**n_failures)
                n_failures += 1
                await self._store(msgspec.structs.replace(failure, event_id=uuid4().hex))
            finally:
                recovery.cancel()
            await asyncio.sleep(pause)

    async def _store(self, outcome: messages.TriggerOutcome) -> None:
        """Report an outcome of a watcher's trigger, and return once it is stored."""
        await self._until(lambda: outcome.id not in self._outcomes)
        self._report(outcome)
        await self._until(lambda: self._outcomes.get(outcome.id) is not outcome)

    def _recovered(self, spec: messages.TriggerSpec) -> None:
        """Report that a trigger has run for a while, unless it has an event to report, which says the same."""
        if spec.id not in self._outcomes:
            self._report(messages.TriggerOutcome(spec.id, "recovered", event_id=uuid4().hex))


def shared_streams() -> SharedStreams:
    """Return the streams of a host, as Airflow's options say. Raises AirflowConfigException."""
    return SharedStreams(
        conf.getint("triggerer", "shared_stream_subscriber_queue_size", fallback=MAX_WAITING),
        conf.getfloat("triggerer", "shared_stream_ack_timeout", fallback=ACK_TIMEOUT_SECONDS),
        conf.getfloat("triggerer", "shared_stream_cohort_grace_period", fallback=0.0),
    )


def _tell_to_stop(task: asyncio.Task[None], message: str | None = None) -> None:
    # A second cancellation would interrupt the clean-up that the first one has begun.
    if not task.cancelling():
        task.cancel(message)


def _is_told_to_stop() -> bool:
    """Return whether the present task, which runs a trigger, was cancelled, whatever the trigger's code made of it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _made(spec: messages.TriggerSpec) -> BaseTrigger:
    trigger = make_trigger(spec.classpath, from_transport(spec.kwargs))
    trigger.trigger_id = spec.id
    if spec.assets and isinstance(trigger, BaseEventTrigger):
        trigger.asset_state_store = AssetStateStoreAccessors(starmap(Asset, spec.assets))
    log.info("Trigger %r starts", trigger)
    return trigger


async def _outcome_of(
    spec: messages.TriggerSpec, streams: SharedStreams, kill_seconds: float
) -> messages.TriggerOutcome:
    """Run a task's trigger, and return its outcome, even if its code fails."""
    try:
        trigger = _made(spec)
        trigger.task_instance = SimpleNamespace(
            dag_id=spec.dag_id,
            run_id=spec.run_id,
            task_id=spec.task_id,
            map_index=spec.map_index,
            try_number=spec.try_number,
        )
        event = await first_event(trigger, streams, kill_seconds=kill_seconds)
        log.info("Trigger %r has fired", trigger)
        return _outcome(spec.id, event)
    except BaseException as exc:  # noqa: BLE001 - it is the trigger's, and reported
        return _failure(spec, exc)


def _failure(spec: messages.TriggerSpec, exc: BaseException) -> messages.TriggerOutcome:
    """Return the outcome of a trigger that has failed. Raises the error again if the trigger was told to stop."""
    if isinstance(exc, asyncio.CancelledError) and _is_told_to_stop():
        raise exc
    text = "".join(traceback.format_exception(type(exc), exc, user_frames(exc)))
    log.error("Trigger %s has failed\n%s", messages.class_name(spec.classpath), text)
    lines = tuple(shortened(text, MAX_TRACEBACK, keeps_end=True).splitlines())
    return messages.TriggerOutcome(spec.id, "error", detail=one_line(exc), traceback=lines)


def _outcome(trigger_id: str, event: TriggerEvent, event_id: str = "") -> messages.TriggerOutcome:
    """Return the outcome of a trigger that has fired. Raises TypeError or ValueError if it cannot be sent."""
    if isinstance(event, BaseTaskEndEvent):
        xcoms = {key: to_transport(value, f"XCom {key!r} of its event") for key, value in (event.xcoms or {}).items()}
        outcome = messages.TriggerOutcome(trigger_id, event.task_instance_state, xcoms=xcoms)  # type: ignore[arg-type]
    else:
        outcome = messages.TriggerOutcome(
            trigger_id, "event", payload=to_transport(event.payload, "the event's payload"), event_id=event_id
        )
    if (size := len(msgspec.json.encode(outcome))) > MAX_EVENT_BYTES:
        raise ValueError(f"its event is too large: {TooLarge(size, MAX_EVENT_BYTES)}")
    return outcome


class HostLink:
    """Asks the scheduler (the Supervisor of `asynsched.authoring`, and `ask` for the host itself).

    Many requests may be open at once. A thread reads the answers, so that the event loop waits for none, and code of
    triggers that asks for a connection or a variable gets its answer as code of a task does.
    """

    def __init__(self, control: socket.socket, token: str) -> None:
        self._socket = control
        self._token = token
        self._numbers = count(1)
        self._waiting: dict[int, Future[messages.Reply]] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()
        threading.Thread(target=self._read, name="answers of the scheduler", daemon=True).start()

    def request(self, operation: str, **arguments: Any) -> Any:
        """Ask, and block until the answer is there: for code of triggers, where it is quick.

        Raises the errors of `SchedulerLink.request`.
        """
        if os.getpid() != self._process:
            raise SupervisorError(f"{operation}: only the host's own process can ask")
        asked = self._ask(operation, {name: json_of(value) for name, value in arguments.items()})
        with not_watched():
            return answer_of(operation, asked.result())

    async def ask(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Ask, and return the answer. Raises the errors of `request`."""
        return answer_of(operation, await asyncio.wrap_future(self._ask(operation, arguments)))

    def _ask(self, operation: str, arguments: dict[str, Any]) -> Future[messages.Reply]:
        future: Future[messages.Reply] = Future()
        with self._lock:
            number = next(self._numbers)
            try:
                frame = encode_frame(messages.Request(self._token, number, operation, arguments))
            except ProtocolError as exc:
                raise SupervisorError(f"{operation}: {exc}") from None
            self._waiting[number] = future
            self._socket.sendall(frame)
        return future

    def _read(self) -> None:
        reader = FrameReader(messages.Launch | messages.Reply)
        try:
            with suppress(OSError):
                while data := self._socket.recv(READ_BYTES):
                    for reply in reader.feed(data):
                        future = self._waiting.pop(reply.request_id, None)
                        if future is not None and future.set_running_or_notify_cancel():
                            future.set_result(reply)
        except BaseException:
            log.exception("No answer of the scheduler can be read any more, so this host ends")
        finally:
            # Mostly the keeper is gone, and takes its processes with it.
            os._exit(1)


def _add_label(record: logging.LogRecord) -> bool:
    """Begin a line with the task whose trigger has logged it."""
    if label := _label.get():
        record.msg, record.args = f"[{label}] {record.getMessage()}", None
    return True


class TriggerBlocked(BaseException):
    """Raised in code that has held the event loop for too long; no `except Exception` hides it."""


class WatchfulSelector(selectors.DefaultSelector):
    """Interrupts a trigger that holds its event loop for `limit` seconds: an alarm runs while it does not wait."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self._limit = limit
        signal.signal(signal.SIGALRM, self._interrupt)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            return super().select(timeout)
        finally:
            # It repeats: code that catches the first interruption, and goes on, gets another one.
            signal.setitimer(signal.ITIMER_REAL, self._limit, self._limit)

    def close(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        super().close()

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        raise TriggerBlocked(f"it blocked the event loop for {self._limit:g} s: await, or use asyncio.to_thread")


@contextmanager
def not_watched() -> Iterator[None]:
    """Allow the main thread to wait without a limit during the block: no trigger is to blame for the wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)
