"""A task instance of an active run, as its scheduler holds it in memory."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from asynsched.keys import TaskInstanceKey
from asynsched.scheduling.evaluation.structure import Link
from asynsched.scheduling.rules.trigger_rule import UpstreamCounts
from asynsched.serialization.schema import SerializedTask
from asynsched.states import FINISHED_TASK_STATES, TaskInstanceState

if TYPE_CHECKING:
    from asynsched.scheduling.evaluation.active_run import ActiveRun
    from asynsched.scheduling.evaluation.deferral import StoredDeferral

WAITING: frozenset[TaskInstanceState | None] = frozenset({None})
"""States in which a task instance starts only when another one of its run ends."""


@dataclass(slots=True)
class UpstreamEnds:
    """How direct upstreams ended, and apart from them the setups that are needed though they are none."""

    direct: UpstreamCounts = field(default_factory=UpstreamCounts)
    setups: UpstreamCounts = field(default_factory=UpstreamCounts)

    def of(self, link: Link) -> UpstreamCounts:
        """Return the counter that a link's upstream is counted in."""
        return self.setups if link.is_setup_constraint else self.direct

    def count(self, link: Link, upstreams: "Iterable[ActiveTask]", *, is_setup: bool) -> None:
        """Count instances of a link's upstream."""
        counts, states = self.of(link), [upstream.state for upstream in upstreams]
        counts.add_expected(len(states), is_setup=is_setup)
        for state in states:
            if state in FINISHED_TASK_STATES:
                counts.add(state, is_setup=is_setup)


@dataclass(slots=True, eq=False)
class ActiveTask:
    """One task instance of an active run.

    Attributes:
        map_index: -1 for a task that is not mapped, or that was not expanded yet.
        deferral: What it waits for as deferred, and then what came of that, until the try ends.
        result_length: How many values `expand` over its result gives, -1 where it is no list or dict; None: no result.
        skips: The tasks that it decided to skip, as a branch or short circuit.
        ignored: The dependencies that do not count, because somebody has forced it.
        own_counts: How those upstream instances ended that matter to its instances of mapped groups only; it shares
            these counts with others.
        stored_state: What the database has, as `stored_try`.
    """

    run: "ActiveRun"
    task: SerializedTask
    map_index: int = -1
    state: TaskInstanceState | None = None
    reason: str = ""
    try_number: int = 0
    max_tries: int = 0
    machine_kills: int = 0
    token: str | None = None
    scheduled_at: datetime | None = None
    queued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    next_try_at: datetime | None = None
    rendered_map_index: str | None = None
    deferral: "StoredDeferral | None" = None
    result_length: int | None = None
    skips: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    own_counts: tuple["UpstreamEnds", ...] = ()
    stored_state: TaskInstanceState | None = None
    stored_try: int = 0
    is_stored: bool = False

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.task.task_id

    @property
    def key(self) -> TaskInstanceKey:
        """What identifies the task instance."""
        return TaskInstanceKey(*self.run.key, self.task.task_id, self.map_index)

    @property
    def priority_weight(self) -> int:
        """The total weight."""
        return self.run.structure.weights[self.task.task_id]

    @property
    def is_unexpanded(self) -> bool:
        """Whether it stands for the instances of a mapped task, whose number is not known yet."""
        return self.map_index < 0 and self.run.structure.is_mapped(self.task.task_id)

    @property
    def is_finished(self) -> bool:
        """Whether it has ended for good."""
        return self.state in FINISHED_TASK_STATES
