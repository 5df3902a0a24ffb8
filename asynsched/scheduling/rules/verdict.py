"""The answer of every rule."""

from collections.abc import Callable

from asynsched.states import TaskInstanceState


class Verdict:
    """Whether a rule lets a task run.

    Args:
        met: The rule has no objection.
        reason: Why, for a person; never empty when not met. A function composes it on demand, because most
            reasons why a task waits are never read.
        ends_as: The task will not run, and is put into this state at once.
        release: The event that would change the verdict, for a person, unless the reason says so.
    """

    __slots__ = ("_reason", "ends_as", "met", "release")

    def __init__(
        self,
        met: bool,
        *,
        reason: str | Callable[[], str] = "",
        ends_as: TaskInstanceState | None = None,
        release: str = "",
    ) -> None:
        self.met = met
        self.ends_as = ends_as
        self.release = release
        self._reason = reason

    @property
    def reason(self) -> str:
        return self._reason if isinstance(self._reason, str) else self._reason()


MET = Verdict(met=True)
