"""What every rule answers."""

from dataclasses import dataclass

from asynsched.states import TaskInstanceState


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a rule lets a task run.

    Attributes:
        met: The rule has no objection.
        reason: Why, for a person. Never empty when not met.
        release: What would change it, for a person, where the reason does not say so.
        settle_as: The task will not run: it is put into this state at once.
    """

    met: bool
    reason: str = ""
    settle_as: TaskInstanceState | None = None
    release: str = ""


MET = Verdict(met=True)
