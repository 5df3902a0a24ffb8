"""Where each run is in this scheduler: one place per run, and every move from one place to another.

             heard             admit            begin              end               stored
  (nowhere) ───────▶ QUEUED ─────────▶ STARTING ──────▶ ACTIVE ──────────▶ LEAVING ──────────▶ (nowhere)
      ▲               │  ▲              │  │  ▲            │                  │
      ├── withdraw ───┘  ├──── hold ────┘  │  │ take_up    ├───── disturb ────┘
      ├────────── lose ──┼─────────────────┘  │            ▼
      ├────────── lose ──┼────────────────────┼───────── EDITED ◀── disturb ── from any other but TAKEN_OVER
      │                  └── heard ───────────┼──────────  │
      │                                       │            │ give_back
      └────────── lose ──────────────── TAKEN_OVER ────────┴──────▶ LEFT ── heard, admit ──▶ QUEUED, STARTING
                                          ▲
                                          └── take_over ── from any other

| place      | in the database                                          | in memory           | counts as active |
| ---------- | -------------------------------------------------------- | ------------------- | ---------------- |
| QUEUED     | queued                                                   | its row             | no               |
| STARTING   | queued; or running and ours, once claimed                | its row             | yes              |
| ACTIVE     | running, ours                                            | all of it           | yes              |
| LEAVING    | running; its end is being stored                         | nothing             | yes              |
| EDITED     | perhaps ours, and perhaps changed                        | an old copy perhaps | as before        |
| TAKEN_OVER | running, ours                                            | its row             | as before        |
| LEFT       | running, no owner: only another scheduler can read it    | its id              | no               |

No event of an EDITED run is taken before the run is taken up again as it is stored.
"""

from dataclasses import dataclass
from enum import StrEnum

from asynsched.errors import InvalidTransition
from asynsched.keys import DagRunKey
from asynsched.scheduling.admission import Admission
from asynsched.store.runs.queue import QueuedRun


class Place(StrEnum):
    """Where a run is."""

    QUEUED = "queued"
    STARTING = "starting"
    ACTIVE = "active"
    LEAVING = "leaving"
    EDITED = "edited"
    TAKEN_OVER = "taken over"
    LEFT = "left to others"


_MOVES: dict[Place | None, frozenset[Place | None]] = {
    # An unknown run may turn out to be ours: the database's answer to the write that made it ours was lost.
    None: frozenset({Place.QUEUED, Place.STARTING, Place.EDITED, Place.TAKEN_OVER}),
    Place.QUEUED: frozenset({None, Place.STARTING, Place.EDITED, Place.TAKEN_OVER}),
    Place.STARTING: frozenset({None, Place.QUEUED, Place.ACTIVE, Place.EDITED, Place.TAKEN_OVER}),
    # A run that others took while the lease was lost, and gave back, may be taken over while it is still active here.
    Place.ACTIVE: frozenset({Place.LEAVING, Place.EDITED, Place.TAKEN_OVER}),
    Place.LEAVING: frozenset({None, Place.EDITED, Place.TAKEN_OVER}),
    Place.EDITED: frozenset({None, Place.QUEUED, Place.STARTING, Place.TAKEN_OVER, Place.LEFT}),
    Place.TAKEN_OVER: frozenset({None, Place.STARTING, Place.TAKEN_OVER, Place.LEFT}),
    # Rows that are read for the queue do not say which runs were left: such a run may start at once.
    Place.LEFT: frozenset({Place.QUEUED, Place.STARTING, Place.EDITED, Place.TAKEN_OVER}),
}


@dataclass(slots=True)
class PlacedRun:
    """A run and its place. `row`: its row when it came to the place; None if not known."""

    key: DagRunKey
    row_id: int
    place: Place
    row: QueuedRun | None = None


class Places:
    """The places of all runs that concern this scheduler.

    `queue` has the QUEUED runs, with the limits that they wait for; it counts the others as active.

    Args:
        at_once: How many runs one pass starts at most.
    """

    def __init__(self, at_once: int) -> None:
        self.queue = Admission(at_once)
        self._runs: dict[DagRunKey, PlacedRun] = {}
        self._at: dict[Place, dict[DagRunKey, PlacedRun]] = {place: {} for place in Place}

    def of(self, key: DagRunKey) -> Place | None:
        """Return where a run is; None if it has no place."""
        if (found := self._runs.get(key)) is not None:
            return found.place
        return Place.QUEUED if self.queue.has(key) else None

    def at(self, place: Place) -> list[PlacedRun]:
        """Return the runs at a place other than QUEUED, in the order in which they came there."""
        return list(self._at[place].values())

    def rows_at(self, place: Place) -> list[QueuedRun]:
        """Return the rows of the runs at a place; it must be one whose runs have rows."""
        return [found.row for found in self._at[place].values() if found.row is not None]

    def may_wait(self, key: DagRunKey) -> bool:
        """Return whether a run that is stored as queued may wait here."""
        return self.of(key) in (None, Place.QUEUED, Place.EDITED, Place.LEFT)

    # Runs that are to begin

    def heard(self, row: QueuedRun) -> None:
        """A run is stored as queued; if it already waits here, only its limits are updated."""
        if self.of(row.key) is not Place.QUEUED:
            self._move(row.key, row.id, Place.QUEUED)
            self.queue.ended(row.key)
        self.queue.add(row)

    def withdraw(self, key: DagRunKey) -> bool:
        """Remove a run from the queue that is not stored as queued; return whether it was there."""
        return self.queue.withdraw(key)

    def admit(self, at_most: int | None = None) -> None:
        """Start runs that may start, one per group in turn; stop at a group whose runs must be read first."""
        for row in self.queue.admit(at_most):
            self._move(row.key, row.id, Place.STARTING, row)

    def claimed(self, row: QueuedRun) -> None:
        """A starting run now belongs to this scheduler."""
        self._at[Place.STARTING][row.key].row = row

    def leave_queued(self, row: QueuedRun) -> None:
        """Leave a starting run to other schedulers, which can read its code, until all queued runs are read again."""
        self._move(row.key, row.id, None)
        self.queue.leave_to_others(row)

    def begin(self, key: DagRunKey) -> None:
        self._move(key, self._runs[key].row_id, Place.ACTIVE)

    # Runs that end, and runs that were changed elsewhere

    def end(self, key: DagRunKey) -> None:
        """The end of an active run is about to be stored. If the run is EDITED, only its old copy ends."""
        if self.of(key) is Place.ACTIVE:
            self._move(key, self._runs[key].row_id, Place.LEAVING)

    def stored(self, key: DagRunKey) -> None:
        if self.of(key) is Place.LEAVING:
            self.lose(key)

    def disturb(self, key: DagRunKey, row_id: int) -> None:
        """A run's rows may differ from memory. A run that was taken over keeps its place: it will be read anyway."""
        if self.of(key) not in (Place.EDITED, Place.TAKEN_OVER):
            self._move(key, row_id, Place.EDITED)

    def take_over(self, row: QueuedRun) -> None:
        """A run of another scheduler now belongs to this one."""
        self._move(row.key, row.id, Place.TAKEN_OVER, row)

    def take_up(self, row: QueuedRun) -> None:
        """A run that has begun is stored as this row, and becomes active next."""
        self._move(row.key, row.id, Place.STARTING, row)
        self.queue.update_dag(row.dag_id, is_paused=row.is_paused, max_active_runs=row.max_active_runs)
        self.queue.began(row)

    def give_back(self, row: QueuedRun) -> None:
        """A run that this scheduler cannot read now has no owner."""
        self._move(row.key, row.id, Place.LEFT)
        self.queue.ended(row.key)

    def lose(self, key: DagRunKey) -> None:
        """A run does not, or no longer, belong to this scheduler."""
        if (found := self._runs.get(key)) is not None:
            self._move(key, found.row_id, None)
        self.queue.ended(key)

    def _move(self, key: DagRunKey, row_id: int, place: Place | None, row: QueuedRun | None = None) -> None:
        before = self.of(key)
        if place not in _MOVES[before]:
            raise InvalidTransition("place of a run", before, place)
        if before is Place.QUEUED:
            self.queue.withdraw(key)
        elif before is not None:
            del self._at[before][key], self._runs[key]
        # The queue keeps waiting runs, if it has room for them.
        if place is not None and place is not Place.QUEUED:
            self._runs[key] = self._at[place][key] = PlacedRun(key, row_id, place, row)
