"""What sensors have in common that wait for a moment which is known when the task runs."""

from __future__ import annotations

from asynsched.authoring.sensors.base import BaseSensorOperator
from asynsched.authoring.timezone import utcnow

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    from typing import Any

    from asynsched.authoring.running.context import Context


class MomentSensor(BaseSensorOperator):
    """Waits until a moment. Subclasses say which in `_moment`, and how they are deferred in `execute`.

    Args:
        deferrable: Wait in a trigger, without a process or slots of its own.
        end_from_trigger: With `deferrable`, succeed without another process.
    """

    def __init__(self, *, deferrable: bool = False, end_from_trigger: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self.end_from_trigger = end_from_trigger

    def poke(self, context: Context) -> bool:
        moment = self._moment(context)
        self.log.info("Waiting until %s", moment)
        return utcnow() > moment

    def execute_complete(self, context: Context, event: Any = None) -> None:
        """Go on when the time has come: there is nothing left to do."""

    def _moment(self, context: Context) -> dt.datetime:
        raise NotImplementedError
