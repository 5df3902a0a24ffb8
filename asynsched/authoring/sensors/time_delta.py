"""TimeDeltaSensor and WaitSensor: they wait for some time."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.meta import task_owner
from asynsched.authoring.sensors.base import BaseSensorOperator
from asynsched.authoring.sensors.moment import MomentSensor
from asynsched.authoring.timezone import utcnow
from asynsched.authoring.triggers.temporal import DateTimeTrigger, TimeDeltaTrigger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asynsched.authoring.running.context import Context


class TimeDeltaSensor(MomentSensor):
    """Waits until `delta` after the run's `data_interval_end`, or, without one, after its `run_after`.

    Args:
        delta: How long, timedelta or seconds.
        deferrable: Wait in a DateTimeTrigger, without a process or slots of its own.
        end_from_trigger: With `deferrable`, succeed without another process.
    """

    def __init__(
        self,
        *,
        delta: dt.timedelta | float,
        deferrable: bool = False,
        end_from_trigger: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(deferrable=deferrable, end_from_trigger=end_from_trigger, **kwargs)
        self.delta = arguments.duration(task_owner(self.task_id, None), "delta", delta)

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        moment = self._moment(context)
        if utcnow() <= moment:
            self.defer(
                trigger=DateTimeTrigger(moment=moment, end_from_trigger=self.end_from_trigger),
                method_name="execute_complete",
                timeout=self.timeout,
            )
        return True

    def _moment(self, context: Context) -> dt.datetime:
        base: dt.datetime = context.get("data_interval_end") or context["dag_run"].run_after
        return base + self.delta


class TimeDeltaSensorAsync(TimeDeltaSensor):
    """TimeDeltaSensor with `deferrable=True`, under its older name."""

    def __init__(self, *, end_from_trigger: bool = False, delta: dt.timedelta | float, **kwargs: Any) -> None:
        super().__init__(delta=delta, deferrable=True, end_from_trigger=end_from_trigger, **kwargs)


class WaitSensor(BaseSensorOperator):
    """Waits for some time after the task has begun.

    Args:
        time_to_wait: How long, timedelta or minutes.
        deferrable: Wait in a TimeDeltaTrigger, without a process or slots of its own.
    """

    def __init__(self, *, time_to_wait: dt.timedelta | int, deferrable: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        given = dt.timedelta(minutes=time_to_wait) if isinstance(time_to_wait, int) else time_to_wait
        self.time_to_wait = arguments.duration(task_owner(self.task_id, None), "time_to_wait", given)
        self.deferrable = deferrable

    def execute(self, context: Context) -> None:
        import time

        if self.deferrable:
            self.defer(
                trigger=TimeDeltaTrigger(self.time_to_wait, end_from_trigger=True), method_name="execute_complete"
            )
        time.sleep(self.time_to_wait.total_seconds())

    def execute_complete(self, context: Context, event: Any = None) -> None:
        """Never called: the trigger ends the task."""
