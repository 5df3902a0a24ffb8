"""The invariants after every step, at rest, and in the end, checked in the database itself and in the ledger."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from asynsched.scheduling.places import Place
from asynsched.states import (
    RUN_TRANSITIONS,
    SLOT_TASK_STATES,
    TASK_TRANSITIONS,
    TaskInstanceState,
)
from tests.faults.simulated.at_rest import ENDED, Use, complaints
from tests.faults.simulated.chance import LONGEST_LATENCY
from tests.faults.simulated.decisions import Decisions, EndedTry
from tests.faults.simulated.edits import ENDED_RUNS, Edits, edited_runs, is_edit
from tests.faults.simulated.expected_ends import check_ends
from tests.faults.simulated.ledger import Violation
from tests.faults.simulated.loop import Process
from tests.faults.simulated.stored import RunRow, Stored, TaskRow

PATIENCE = 2.0
"""Virtual seconds that something may wait that nothing holds up."""
Rows = Mapping[Any, Any]
_BETWEEN = [*SLOT_TASK_STATES, *(TaskInstanceState(name) for name in ("scheduled", "up_for_retry", "deferred"))]


def _reachable() -> set[tuple[str | None, str | None]]:
    """Return the changes that one batch may make of a task instance: several legal ones may be stored as one."""
    direct = {(before, after) for before, found in TASK_TRANSITIONS.items() for after in found}
    # One that was cleared while it ran may have begun again by the time that its end is stored.
    pairs = direct | {(TaskInstanceState("restarting"), after) for after in TASK_TRANSITIONS[None]}
    while True:
        more = {(a, d) for a, b in pairs for c, d in direct if b == c and b in _BETWEEN} - pairs
        if not more:
            return {(a and str(a), b and str(b)) for a, b in pairs}
        pairs |= more


REACHABLE = _reachable()
BY_PEOPLE = {(a and str(a), b and str(b)) for a, found in TASK_TRANSITIONS.items() for b in found}
RUN_CHANGES = {(str(before), str(after)) for before, found in RUN_TRANSITIONS.items() for after in found}


class Invariants:
    """Watches one exploration.

    Attributes:
        stored: The database as it was when it was last looked at.
        edits: The edits of the runs.
        decisions: The decisions of branches and short circuits.
        ended_together: Of each run: how the last tries of task instances have ended since people have last edited it,
            those that were stored together in one list.
    """

    def __init__(self, exploration: Any) -> None:
        self._exploration = exploration
        self._waits_since: dict[str, float] = {}
        self.stored = Stored(are_files_parsed=exploration.folder is not None)
        self.edits = Edits()
        self.decisions = Decisions(exploration.ledger)
        self.ended_together: dict[tuple[str, str], list[list[EndedTry]]] = defaultdict(list)
        self._may_have = dict(exploration.people.pools)
        """The most slots that each pool has had since all schedulers were sure to know how many it has."""
        self._wishes_known_at = 0.0

    def check_commit(self, process: Process, query: str) -> None:
        """Check the changes by a call of the database."""
        stored = self.stored
        tasks, runs, dags = stored.tasks, stored.runs, stored.dags
        if not stored.read():
            return
        self._check_dags(process, query, dags)
        self.decisions.note(query, tasks, stored.tasks)
        ended: dict[tuple[str, str], list[TaskRow]] = defaultdict(list)
        for key, row in stored.tasks.items():
            if (before := tasks.get(key)) != row:
                self._exploration.say(process.name, f"{query}: {_said(row)}")
                self.edits.note_task(query, before, row, stop=stored.runs[key[:2]].stop)
                was_stopped = key[:2] in runs and runs[key[:2]].stop is not None
                self._check_task(query, before, row, was_stopped=was_stopped)
                if not is_edit(query) or runs[key[:2]].state == "running":
                    _check_writer(process, row, stored.runs[key[:2]])
                if row.token and row.state in ENDED and row.state != "removed":
                    ended[key[:2]].append(row)
        for run_key, run in stored.runs.items():
            if (was := runs.get(run_key)) != run:
                self._exploration.say(process.name, f"{query}: {'.'.join(run_key)} {run.state}")
                self.edits.note_run(query, was, run)
                self._check_run(query, was, run)
        for run_key, rows in ended.items():
            self.ended_together[run_key].append(self.decisions.of_ended(rows, stored.tasks))
        for run_key in edited_runs(query, tasks, runs, stored):
            self.edits.note_edit(run_key, stored, self.decisions.of_run(run_key))
            self._check_edit(run_key, tasks)
            self.ended_together[run_key].clear()
        self._check_shared(tasks, runs)

    def _check_dags(self, process: Process, query: str, dags: Rows) -> None:
        for dag_id, dag in self.stored.dags.items():
            if (before := dags.get(dag_id)) != dag:
                self._exploration.say(process.name, f"{query}: {dag}")
                self._exploration.folder.check_leave(before, dag)

    def _check_edit(self, run_key: tuple[str, str], tasks: Rows) -> None:
        rows = [row for row in self.stored.tasks.values() if row[:2] == run_key and row.state not in ENDED]
        cleared = [row for row in rows if row[:4] in tasks and tasks[row[:4]].state != row.state]
        if cleared and self.stored.runs[run_key].stop is not None:
            raise Violation(f"{cleared[0][:4]} was cleared, and its run is still to be stopped")

    def _check_task(self, query: str, before: TaskRow | None, row: TaskRow, *, was_stopped: bool) -> None:
        key, was = row[:4], None if before is None else before.state
        if before is None or was == row.state:
            return
        if (was, row.state) not in (BY_PEOPLE if is_edit(query) else REACHABLE):
            raise Violation(f"{key} went from {was} to {row.state}")
        is_allowed = self.decisions.allow(was, row) or row.state == "removed"
        if was in ENDED and not is_edit(query) and not is_allowed:
            raise Violation(f"{key} had ended as {was}, and is {row.state}")
        if row.state in ("scheduled", "queued"):
            if was_stopped and self.stored.runs[key[:2]].stop is not None:
                raise Violation(f"{key} is {row.state}, though its run was stopped")
            if row.state == "queued" and self._is_known_to_be_paused(row.dag_id):
                raise Violation(f"{key} starts, though its DAG is paused")

    def _check_run(self, query: str, before: RunRow | None, run: RunRow) -> None:
        if before is not None and before.version_hash not in (None, run.version_hash) and not is_edit(query):
            raise Violation(f"the run {run[:2]} was of {before.version_hash}, and is of {run.version_hash}")
        if before is None or before.state == run.state:
            return
        if (before.state, run.state) not in RUN_CHANGES:
            raise Violation(f"the run {run[:2]} went from {before.state} to {run.state}")
        if before.state in ENDED_RUNS and not is_edit(query):
            raise Violation(f"the run {run[:2]} had ended as {before.state}, and is {run.state}")
        if run.state == "running" and self._is_known_to_be_paused(run.dag_id):
            raise Violation(f"the run {run[:2]} starts, though its DAG is paused")

    def _check_shared(self, tasks: Rows, runs: Rows) -> None:
        """Check the constraints on all task instances together: limits, and the owners of their rows."""
        is_alone = len(self._exploration.sites) == 1
        if is_alone:
            _check_epochs(tasks, runs, self.stored)
        use = Use(self._exploration, self.stored)
        for name, slots in self._exploration.people.pools.items():
            self._may_have[name] = max(slots, self._may_have[name])
        for name, limit, n_used in use.limits(
            self._exploration.settings.parallelism if is_alone else None, self._may_have
        ):
            if n_used > limit:
                raise Violation(f"{name}: {n_used} of {limit}")
        if self._are_wishes_known:
            # Slots that are given back to a pool that was made smaller are not taken again.
            for name, slots in self._exploration.people.pools.items():
                self._may_have[name] = max(slots, min(self._may_have[name], use.pools[name]))

    @property
    def _are_wishes_known(self) -> bool:
        """Whether all schedulers are sure to know of the pools and the pauses as they are."""
        return self._wishes_known_at > self._exploration.people.wished_at

    def _is_known_to_be_paused(self, dag_id: str) -> bool:
        return dag_id in self._exploration.people.paused and self._are_wishes_known

    def check_acknowledged(self, trigger_ids: list[str]) -> None:
        """A trigger host was told that these outcomes are stored, and forgets them."""
        for row in self.stored.tasks.values():
            if row.state == "deferred" and row.token in trigger_ids:
                raise Violation(f"the event for {row[:4]} has come, a host may forget it, and it is not stored")

    # At rest

    def check_at_rest(self) -> None:
        """Nothing is ready to run before time goes on, so nothing that could go on may wait."""
        now = self._exploration.clock.monotonic()
        for site in self._exploration.sites.values():
            if site.is_serving:
                _check_places(site)
        is_well = self._all_is_well()
        if is_well and now - self._exploration.people.wished_at > LONGEST_LATENCY:
            self._wishes_known_at = now
        found = dict.fromkeys(complaints(self._exploration, self.stored)) if is_well else {}
        self._waits_since = {complaint: self._waits_since.get(complaint, now) for complaint in found}
        for complaint, since in self._waits_since.items():
            if now - since > PATIENCE:
                raise Violation(f"since {since:.3f}: {complaint}")

    def _all_is_well(self) -> bool:
        """Whether nothing is broken now, so that nothing has a reason to wait."""
        return all(
            site.is_serving
            and not site.is_stopping
            and not site.database.failed
            and site.keeper is not None
            and site.keeper.connection is not None
            and site.has_right_clock
            and (len(self._exploration.sites) == 1 or site.hears_others)
            for site in self._exploration.sites.values()
        )

    # In the end

    def what_is_left(self) -> str:
        """Return the first thing that is not done yet; empty if all is done."""
        return next(self._left(), "")

    def _left(self) -> Iterator[str]:
        for run in self.stored.runs.values():
            if run.state not in ENDED_RUNS:
                yield f"the run {run.dag_id} {run.run_id} is {run.state}"
        for number, state, _ in self.stored.callbacks:
            if state in ("queued", "running"):
                yield f"the callback {number} is {state}"
        if to_come := self.stored.to_come():
            yield to_come
        if self._exploration.folder is not None:
            yield from self._exploration.folder.what_is_left(self.stored)
        for site in self._exploration.sites.values():
            yield from _left_on(site, are_files_parsed=self._exploration.folder is not None)
        if self._exploration.elsewhere is not None and (left := self._exploration.elsewhere.what_is_left()):
            yield left

    def check_end(self) -> None:
        """All has ended: in the states that the rules give, every try written down, nothing left behind."""
        self.stored.read()
        check_ends(self._exploration, self.stored.tasks, self.stored.runs)
        if self._exploration.folder is not None:
            for problem in self._exploration.folder.problems(self.stored):
                raise Violation(problem)
        for site in self._exploration.sites.values():
            services = site.scheduler.services
            evaluation = services.evaluator.evaluation
            queues = evaluation.ready
            left = {
                "slots": queues.parallelism.used,
                "pools": sum(pool.used for pool in queues.pools.values()),
                "lanes": len(queues._lanes),
                "deferred": sum(pool.deferred for pool in queues.pools.values()),
                "triggers": services.triggerer.n_triggers,
                "tries": len(evaluation.tries.awaited),
                "runs": len(evaluation.runs),
                "places": len(services.evaluator._places._runs),
                "launched": len(services.executor_client._launched),
                "in the executor": site.n_in_executor,
            }
            if any(left.values()):
                raise Violation(f"all has ended, and the scheduler still counts {left}")


def _check_places(site: Any) -> None:
    """Evaluated runs have a place in the scheduler, and active runs are evaluated, or have just ended."""
    evaluator = site.scheduler.services.evaluator
    runs, places = evaluator.evaluation.runs, evaluator._places
    ended = {run.key for run in evaluator.evaluation.pending.ended_runs}
    for key in runs:
        if places.of(key) not in (Place.ACTIVE, Place.EDITED, Place.TAKEN_OVER):
            raise Violation(f"{key} is evaluated, and its place is {places.of(key)}")
    for place in (Place.ACTIVE, Place.LEAVING):
        for found in places.at(place):
            if found.key not in ended and (place is Place.LEAVING or found.key not in runs):
                raise Violation(f"{found.key} is {place}, and neither evaluated nor about to be stored")


def _said(row: TaskRow) -> str:
    return f"{'.'.join(map(str, row[:4]))} {row.state} try {row.try_number} {row.reason}"


def _check_writer(process: Process, row: TaskRow, run: RunRow) -> None:
    """Only the scheduler whose run it is may write a task instance."""
    if process.lease_epoch is not None and run.lease_epoch != process.lease_epoch:
        raise Violation(
            f"{process.name}, of epoch {process.lease_epoch}, wrote {row[:4]}, whose run is of epoch {run.lease_epoch}"
        )


def _check_epochs(tasks: Rows, runs: Rows, stored: Stored) -> None:
    """Where schedulers come one after the other, nothing goes back to an earlier one."""
    for before, now in ((tasks, stored.tasks), (runs, stored.runs)):
        for key, row in now.items():
            if key in before and row.lease_epoch < before[key].lease_epoch:
                raise Violation(
                    f"{key} was written under {row.lease_epoch}, and before under {before[key].lease_epoch}"
                )


def _left_on(site: Any, *, are_files_parsed: bool) -> Iterator[str]:
    if not site.is_serving:
        yield f"no scheduler serves {site.home.name}"
        return
    if site.clock.offset:
        yield f"the clock of {site.home.name} is wrong"
    services = site.scheduler.services
    if are_files_parsed and not services.dispatcher.is_idle:
        yield f"the parse dispatcher of {site.home.name} is not idle"
    for service in (services.creator, services.evaluator, services.deadline_watcher, services.callbacks):
        if not service.is_idle:
            yield f"the {service.name} of {site.home.name} is not idle"
    if site.keeper.live or site.keeper.ends:
        yield f"the keeper of {site.home.name} has tries"
    for name in _read_by_the_scheduler(site.scheduler.channels):
        if getattr(site.scheduler.channels, name).qsize():
            yield f"{site.home.name} has left messages in its channel {name}"


def _read_by_the_scheduler(channels: Any) -> list[str]:
    # File changes and the ends of runs have readers elsewhere: the parse dispatcher, and callers that wait for a run.
    return [name for name in channels.__slots__ if name not in ("file_changes", "run_ends")]
