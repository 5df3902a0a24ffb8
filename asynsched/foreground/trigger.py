"""The trigger of a deferred task, waited for in this process: for `DAG.test()`."""

import asyncio
import traceback
from typing import Any

from asynsched.authoring.deferral import TRIGGER_FAILURE, TRIGGER_TIMEOUT, Resumption, failed_resumption
from asynsched.authoring.exceptions import TaskDeferred
from asynsched.authoring.running.tracebacks import one_line, user_frames
from asynsched.authoring.transport import from_transport, to_transport
from asynsched.authoring.triggers.base import BaseTaskEndEvent, TriggerEvent, first_event, make_trigger


def wait_for_trigger(deferred: TaskDeferred) -> Resumption | BaseTaskEndEvent:
    """Run a trigger until it fires. Returns how the task goes on, or the event that ends it.

    Everything travels as it would between processes, so that what cannot is found here, too.
    """
    try:
        given = _carried(deferred.kwargs or {})
        event = asyncio.run(_first_event(deferred))
        payload = _carried(event.payload)
    except TimeoutError:
        return failed_resumption(TRIGGER_TIMEOUT, f"{deferred.trigger!r} did not fire within {deferred.timeout}")
    except Exception as exc:  # noqa: BLE001 - a trigger is user code
        # The task logs it when it goes on, in order to fail.
        lines = traceback.format_exception(type(exc), exc, user_frames(exc))
        return failed_resumption(TRIGGER_FAILURE, one_line(exc), "".join(lines).splitlines())
    if isinstance(event, BaseTaskEndEvent):
        return event
    return Resumption(deferred.method_name, {**given, "event": payload})


async def _first_event(deferred: TaskDeferred) -> TriggerEvent:
    classpath, kwargs = deferred.trigger.serialize()
    seconds = None if deferred.timeout is None else deferred.timeout.total_seconds()
    async with asyncio.timeout(seconds):
        try:
            event = await first_event(make_trigger(classpath, _carried(kwargs)))
        except TimeoutError as exc:
            # The trigger's own, which is no different from its other errors.
            raise RuntimeError(f"TimeoutError: {exc}") from exc
    return event


def _carried(value: Any) -> Any:
    return from_transport(to_transport(value))
