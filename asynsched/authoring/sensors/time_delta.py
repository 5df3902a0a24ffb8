"""TimeDeltaSensor: waits until some time after the end of the data interval."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.meta import task_owner
from asynsched.authoring.sensors.base import BaseSensorOperator
from asynsched.authoring.timezone import utcnow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asynsched.authoring.context import Context


class TimeDeltaSensor(BaseSensorOperator):
    """Waits until `delta` after the run's `data_interval_end`, or, without one, after its `run_after`.

    Args:
        delta: How long, timedelta or seconds.
        deferrable: Taken as Airflow's argument of that name, but without effect: the sensor pokes, in its `mode`.
    """

    def __init__(self, *, delta: dt.timedelta | float, deferrable: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.delta = arguments.duration(task_owner(self.task_id, None), "delta", delta)
        self.deferrable = deferrable

    def poke(self, context: Context) -> bool:
        base: dt.datetime = context.get("data_interval_end") or context["dag_run"].run_after
        self.log.info("Waiting until %s", base + self.delta)
        return utcnow() > base + self.delta
