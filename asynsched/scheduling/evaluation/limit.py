"""A limit that tasks share: how many of them may be queued or running at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asynsched.states import SLOT_TASK_STATES

if TYPE_CHECKING:
    from asynsched.scheduling.evaluation.active_task import ActiveTask
    from asynsched.scheduling.evaluation.ready_queues import Lane


class Limit:
    """At most `capacity` of the tasks that share it may be queued or running; None is no limit.

    Attributes:
        release: What lets tasks start that it holds up, for a person.
        used: What the tasks of this scheduler take.
        elsewhere: What those of others take, as far as is known.
        is_busy: Whether another scheduler is settling it at this moment.
        is_wide: Whether lanes of all DAGs may share it. It closes none of them, but is asked for room when they
            compete: so it costs the same however many there are.
    """

    def __init__(
        self, name: str, capacity: int | None, *, release: str = "one of these ends", is_wide: bool = False
    ) -> None:
        self.name = name
        self.release = release
        self.is_wide = is_wide
        self.capacity = capacity
        self.used = 0
        self.elsewhere = 0
        self.is_busy = False
        self.lanes: set[Lane] = set()

    def has_room(self, slots: int = 1) -> bool:
        """Whether that many slots are free."""
        return not self.is_busy and (self.capacity is None or self.taken + slots <= self.capacity)

    @property
    def taken(self) -> int:
        """How much of it is not free."""
        return self.used + self.elsewhere

    def holds(self, task: ActiveTask) -> bool:
        """Return whether a task that shares the limit takes something of it now."""
        return task.state in SLOT_TASK_STATES

    def slots_of(self, task: ActiveTask) -> int:
        """Return how much of the limit a task takes."""
        return 1
