"""What an explanation is made of."""

from datetime import datetime

from msgspec import Struct


class Reason(Struct, frozen=True, omit_defaults=True):
    """One thing that holds something up, or that led to its end.

    Attributes:
        rule: What decided: a dependency, a limit, or a state.
        text: Why, for a person.
        release: What will change it.
        at: When that will be, where it is known.
        causes: What is behind it, down to the root.
    """

    rule: str
    text: str
    release: str = ""
    at: datetime | None = None
    causes: tuple["Reason", ...] = ()

    @property
    def line(self) -> str:
        """What it is, until when, for a person."""
        until = f"; until {self.release}" if self.release else ""
        at = f", at {self.at.isoformat(sep=' ', timespec='seconds')}" if self.at else ""
        return f"{self.text.rstrip('.')}{until}{at}"


class Explanation(Struct, frozen=True):
    """Why a DAG has no run, a run does not go on, or a task instance does not start.

    Attributes:
        subject: What is explained, e.g. `task load of the run manual__1 of the DAG etl`.
        state: Its state now; empty for a DAG.
        answer: The whole in one sentence.
        reasons: All that holds it up, or that led to its end; none: nothing does, it starts now.
    """

    subject: str
    state: str
    answer: str
    reasons: tuple[Reason, ...] = ()
