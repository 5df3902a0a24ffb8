"""Tries of one task instance run one after the other.

A task that runs may be marked as failed and then cleared: its next try is launched while the one before still has its
time to clean up. It waits here until no process of that one is left.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from asynsched.protocol.messages import Launch

Instance = tuple[str, str, str, int] | str


class Launched(Protocol):
    """What is known here of a try."""

    @property
    def launch(self) -> Launch:
        """What it was launched with."""


Try = TypeVar("Try", bound=Launched)


class Turns(Generic[Try]):
    """The tries of each task instance in the order in which they were launched.

    Args:
        begin: Starts a try whose turn it is.
    """

    def __init__(self, begin: Callable[[Try], None]) -> None:
        self._begin = begin
        self._lines: dict[Instance, deque[Try]] = {}

    def wait(self, launched: Try) -> None:
        """Begin this try as soon as no earlier one of its task instance is left."""
        line = self._lines.setdefault(_instance(launched.launch), deque())
        line.append(launched)
        if len(line) == 1:
            self._begin(launched)

    def is_over(self, launched: Try) -> None:
        """No process is left of this try, which may not have had its turn: the next one may begin."""
        instance = _instance(launched.launch)
        line = self._lines[instance]
        had_its_turn = line[0] is launched
        line.remove(launched)
        if not line:
            del self._lines[instance]
        elif had_its_turn:
            self._begin(line[0])


def _instance(launch: Launch) -> Instance:
    """Callbacks and trigger hosts are of no instance: each is a line of its own."""
    if launch.callback or launch.trigger_host is not None:
        return launch.token
    return launch.run.dag_id, launch.run.run_id, launch.task_id, launch.map_index
