"""What every rule answers."""

from collections.abc import Callable

from asynsched.states import TaskInstanceState


class Verdict:
    """Whether a rule lets a task run.

    Args:
        met: The rule has no objection.
        reason: Why, for a person; never empty when not met. A function words it when somebody reads it: most verdicts
            that a task waits are read by nobody.
        settle_as: The task will not run: it is put into this state at once.
        release: What would change it, for a person, where the reason does not say so.
    """

    __slots__ = ("_reason", "met", "release", "settle_as")

    def __init__(
        self,
        met: bool,
        *,
        reason: str | Callable[[], str] = "",
        settle_as: TaskInstanceState | None = None,
        release: str = "",
    ) -> None:
        self.met = met
        self.settle_as = settle_as
        self.release = release
        self._reason = reason

    @property
    def reason(self) -> str:
        """Why, for a person."""
        return self._reason if isinstance(self._reason, str) else self._reason()


MET = Verdict(met=True)
