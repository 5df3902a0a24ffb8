"""Transfers of stored runs into memory: taken over from schedulers that are gone, or taken up again after a request."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta

from anyio.lowlevel import checkpoint
from sqlalchemy import Connection

from asynsched.bell import Hint
from asynsched.channels import TryReported
from asynsched.errors import AsynschedError, DagError, NotFound, StoreUnavailable
from asynsched.executors.base import Adopt, Held
from asynsched.keys import DagRunKey
from asynsched.loggers import get_logger
from asynsched.protocol.messages import Ended
from asynsched.scheduling.announcements import Announcer
from asynsched.scheduling.deciding import decide_all
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.intake import RunIntake
from asynsched.scheduling.places import Place
from asynsched.scheduling.requests.run_requests import do_request, end_request, submit_by_program
from asynsched.scheduling.rules.run_end import RunStop, cancelled, marked_failed
from asynsched.slices import AT_ONCE
from asynsched.states import FINISHED_TASK_STATES, SLOT_TASK_STATES
from asynsched.states import TaskInstanceState as State
from asynsched.store.runs import queue
from asynsched.store.runs.requests import CancelRun, MarkRun, OpenRequest, open_requests
from asynsched.store.runs.task_instances import deferred_tokens, tokens_of_tries
from asynsched.store.schedulers import notify

log = get_logger(__name__)

LINGERING = timedelta(minutes=1)
"""How long after their kill time processes may remain before a warning is logged."""


class RunTransfers:
    """Brings stored runs into the evaluation, does the requests for them, and drops those that are no longer ours.

    Args:
        store: Stores the decisions made until now.
        kill_time: How long a try may take to end once it was told to.
        adopt: Takes over the tries of runs that another scheduler has left.
    """

    def __init__(
        self,
        intake: RunIntake,
        announcer: Announcer,
        store: Callable[[], Awaitable[None]],
        kill_time: timedelta,
        adopt: Adopt,
    ) -> None:
        self._intake = intake
        self._database = intake.database
        self._reports = intake.channels.reports
        self._evaluation = intake.evaluation
        self._owner = (intake.evaluation.pending.scheduler_id, intake.evaluation.pending.lease_epoch)
        self._places = intake.places
        self._loader = intake.loader
        self._announcer = announcer
        self._store = store
        self._kill_time = kill_time
        self._ending: set[DagRunKey] = set()
        """Runs that a request is to end: their requests are due once the run has ended, or was taken up again."""
        self._adopt_tries = adopt
        self._requests_are_due = True
        self._may_be_orphans = False
        self._is_unanswered = False

    @property
    def has_work(self) -> bool:
        """Whether there may be runs to take up or requests to do now."""
        may_be_due = self._may_be_orphans or self._requests_are_due
        return may_be_due or bool(self._places.at(Place.EDITED) or self._places.at(Place.TAKEN_OVER))

    def expect_orphans(self) -> None:
        """There may be runs whose scheduler is gone: let the next `adopt` look for them."""
        self._may_be_orphans = True

    def expect_requests(self) -> None:
        """There may be requests: let the next `take_requests` look for them."""
        self._requests_are_due = True

    def note_end(self, ended: Ended) -> None:
        """A try has ended. If it asked a person, the answer may have come before the task waited for it."""
        self._requests_are_due |= ended.deferral is not None and ended.deferral.input is not None

    async def recover(self, held: Held, now: datetime) -> None:
        """Take up the runs without an owner, and those of their tries that the executor still holds."""
        self._evaluation.tries.strays |= held.starting | held.running
        self._may_be_orphans = True
        while self._may_be_orphans:
            await self.adopt(held, now)

    async def adopt(self, held: Held, now: datetime) -> bool:
        """Take over some of the runs without an owner, if there may be any.

        Args:
            held: Their tries that the executor has found at its start.

        Returns:
            Whether there were any. If so, others use fewer slots of the pools now.
        """
        if left := self._places.at(Place.TAKEN_OVER):
            # The database went away before all were taken up: a request for one of them may have been done.
            owned = await self._owned([found.row_id for found in left])
            for found in left:
                if found.row_id in owned:
                    self._places.take_over(owned[found.row_id])
                else:
                    await self._lose_taken_over(found.key, now)
        if self._may_be_orphans:
            await self._take_over()
        rows = self._places.rows_at(Place.TAKEN_OVER)
        if not rows:
            return False
        dag_ids = {row.dag_id for row in rows}
        adopted = await self._adopt_tries([row.id for row in rows])
        self._evaluation.tries.strays |= adopted.starting | adopted.running
        held = held.joined(adopted)
        wanted = await self._requests_of([row.id for row in rows])
        try:
            # A run leaves its place only once it is taken up: the database may go away between two runs.
            for row in rows:
                await self._adopt_run(row, held, wanted.get(row.id, ()), now)
        finally:
            self._announcer.tell_of_takeover(dag_ids)
        self._announcer.end_strays(adopted, self._evaluation.tries.awaited)
        return True

    async def _take_over(self) -> None:
        if self._is_unanswered:
            # Runs taken over then are already ours and use slots: bring them into memory before granting any.
            for row in await self._unknown():
                self._places.take_over(row)
        self._is_unanswered = True
        left = frozenset(found.row_id for found in self._places.at(Place.LEFT))
        found = await self._database.write(queue.take_over_runs, *self._owner, excluding=left)
        self._is_unanswered = False
        self._may_be_orphans = len(found) == queue.MOST_TAKEN_OVER
        for row in found:
            self._places.take_over(row)
        if found:
            log.info("runs.taken_over", n_runs=len(found))

    async def take_up_edited(self, now: datetime) -> None:
        """Take up edited runs again; forget those that are no longer ours."""
        if not self._places.at(Place.EDITED):
            return
        # Store the decisions about them first, so that no unstored change is dropped with a run.
        await self._store()
        edited = self._places.at(Place.EDITED)
        owned = await self._owned([found.row_id for found in edited])
        for found in edited:
            self._evaluation.suspend(found.key)
        for found in edited:
            if found.row_id not in owned:
                self._announcer.end_tries(self._evaluation.drop_run(found.key, now))
                # It may be queued again.
                await self._intake.follow_edits({found.key}, now)
                self._lose(found.key)
        # The earlier runs first: later ones may depend on their tasks.
        for row in sorted(owned.values(), key=lambda row: row.run_after):
            await self._reload_run(row, now)

    async def find_unknown(self) -> None:
        """Find the runs that are ours but not in memory, because an answer of the database was lost."""
        for row in await self._unknown():
            self._places.disturb(row.key, row.id)

    def warn_of_lingering(self, now: datetime) -> None:
        """Warn once of each run that waits for processes that should be gone, such as one in state D."""
        for run, tokens in self._evaluation.tries.take_lingering(now - self._kill_time - LINGERING):
            log.warning("run.waits_for_processes", dag_id=run.key.dag_id, run_id=run.key.run_id, tokens=tokens)

    async def _unknown(self) -> list[queue.QueuedRun]:
        places = (Place.ACTIVE, Place.LEAVING, Place.TAKEN_OVER)
        known = {found.row_id for place in places for found in self._places.at(place)}
        unknown = set(await self._database.read(queue.owned_run_ids, self._owner[1])) - known
        return list((await self._owned(sorted(unknown))).values())

    def _lose(self, key: DagRunKey) -> None:
        """Forget a run that is no longer ours, unless it waits here again."""
        if self._places.of(key) is not Place.QUEUED:
            self._places.lose(key)
        self._ending.discard(key)

    async def _lose_taken_over(self, key: DagRunKey, now: datetime) -> None:
        """Forget a run that was taken over and is no longer ours; it waits here if it is queued again."""
        self._lose(key)
        await self._intake.follow_edits({key}, now)

    async def _owned(self, run_ids: Collection[int]) -> dict[int, queue.QueuedRun]:
        """Return these runs as they are stored now, except those that are no longer ours."""
        if not run_ids:
            return {}
        return {row.id: row for row in await self._database.read(queue.owned_runs, self._owner[1], list(run_ids))}

    async def _adopt_run(
        self, row: queue.QueuedRun, held: Held, wanted: Sequence[OpenRequest], now: datetime
    ) -> None:  # fmt: skip
        """Resume a run that an earlier scheduler began.

        Args:
            held: The executor's tries.
            wanted: Requests made while the run had no owner: no decision may precede them.
        """
        triggers = self._evaluation.triggers_of(row.key)
        stop: RunStop | None = None
        try:
            run = await self._loader.run(row)
            if wanted:
                triggers |= await self._database.read(deferred_tokens, row.id)
                if held.ended:
                    await self._store_ends(row, run, held, now)
                stop = await self._do_unheld(wanted, now)
                if (edited := (await self._owned({row.id})).get(row.id)) is None:
                    await self._lose_taken_over(row.key, now)
                    return  # it has ended, or is another scheduler's by now
                row, run = edited, await self._loader.run(edited)
        except (NotFound, DagError) as exc:
            await self._give_back(row, str(exc), now)
            return
        tasks = await self._fill(run, triggers)
        # `strays` has tries of runs that could not be read before and, because of these tries, were not given back.
        if left := self._evaluation.tries.strays | held.starting | held.running:
            left &= await self._database.read(tokens_of_tries, row.id)
        self._evaluation.drop_run(run.key, now)
        self._resume(row, run, tasks, left, now, stop)
        # Another scheduler may have left requests open.
        self._requests_are_due = True
        await self._announce(tasks, held, now)
        await decide_all(self._evaluation, now)

    async def _reload_run(self, row: queue.QueuedRun, now: datetime) -> None:
        """Resume a run that this scheduler began, so that its executor knows the tries, as it is stored now."""
        triggers = self._evaluation.triggers_of(row.key)
        try:
            run = await self._loader.run(row)
        except (NotFound, DagError) as exc:
            await self._give_back(row, str(exc), now)
            return
        tasks = await self._fill(run, triggers)
        launched = await self._database.read(tokens_of_tries, row.id)
        let_go = self._evaluation.drop_run(run.key, now)
        self._resume(row, run, tasks, self._evaluation.tries.strays.union(let_go) & launched, now)
        self._requests_are_due |= run.key in self._ending
        self._announcer.end_tries(let_go, tasks)
        # That they are stored may not have been announced: the answer was lost, or the run was stale. A token
        # starts one try at most.
        await self._announce([task for task in tasks if task.state is State.QUEUED], Held(), now)
        await decide_all(self._evaluation, now)

    async def _fill(self, run: ActiveRun, triggers: frozenset[str]) -> list[ActiveTask]:
        """Add a run's task instances, and kill those of its triggers whose task instances no longer wait for them."""
        tasks = await self._loader.fill(run)
        self._announcer.kill_triggers(
            triggers - {task.token for task in tasks if task.state not in FINISHED_TASK_STATES}
        )
        return tasks

    def _resume(
        self, row: queue.QueuedRun, run: ActiveRun, tasks: list[ActiveTask], left: Collection[str], now: datetime,
        stop: RunStop | None = None,
    ) -> None:  # fmt: skip
        """Make a run active.

        Args:
            left: Those of its tries that the executor may still run. Each was launched, so its end will be reported.
        """
        self._intake.take_up(row)
        tries = self._evaluation.tries
        awaited = {task.token for task in tasks if task.state in SLOT_TASK_STATES}
        tries.make_wait(run, [token for token in left if token not in awaited], now)
        self._evaluation.resume_run(run, tasks, now, stop)
        self._places.begin(run.key)
        # If resuming the run has left tries that the executor does not know, their ends will not be reported.
        for token in tries.ending_of(run):
            if token not in left:
                self._evaluation.try_gone(token, now)

    async def _announce(self, tasks: Sequence[ActiveTask], held: Held, now: datetime) -> None:
        """Announce the tries of a run that was taken over, with pauses: all of its tasks may be in flight."""
        for start in range(0, len(tasks), AT_ONCE):
            self._announcer.announce_taken_over(tasks[start : start + AT_ONCE], held, now)
            await checkpoint()

    async def _store_ends(self, row: queue.QueuedRun, run: ActiveRun, held: Held, now: datetime) -> None:
        """Store the ends of a run's tries that ended while no scheduler served, as one would have done then.

        Requests for the run come after that: the try of a cleared task goes into the history as it ended.
        """
        tasks = await self._loader.fill(run)
        ends = self._take_ends(held.ended & {task.token for task in tasks if task.state in SLOT_TASK_STATES})
        if not ends:
            return
        self._intake.take_up(row)
        # A request may make a task run again, so the run must not end before the requests are done.
        self._evaluation.tries.keep_open(run)
        self._evaluation.resume_run(run, tasks, now)
        # Should the database go away first, the run still has to be taken up as it is stored then.
        self._places.take_over(row)
        for event in ends:
            self._evaluation.try_ended(event, now)
        await decide_all(self._evaluation, now)
        await self._store()
        self._evaluation.drop_run(run.key, now)

    def _take_ends(self, tokens: Collection[str | None]) -> list[Ended]:
        """Remove the ends of these tries from the channel; its other messages stay, in their order."""
        ends = []
        for message in self._reports.take(self._reports.qsize() if tokens else 0):
            if isinstance(message, TryReported) and isinstance(message.event, Ended) and message.event.token in tokens:
                ends.append(message.event)
            else:
                self._reports.put_nowait(message)
        return ends

    async def _give_back(self, row: queue.QueuedRun, reason: str, now: datetime) -> None:
        """Leave a run that this scheduler cannot read to others: a newer one may be able to.

        Keep the run while a try of it may run here: another scheduler would start that try again.
        """
        let_go = self._evaluation.drop_run(row.key, now)
        self._evaluation.tries.strays.update(let_go)
        self._announcer.end_tries(let_go)
        if self._evaluation.tries.strays & await self._database.read(tokens_of_tries, row.id):
            # The sweep finds the run again.
            self._lose(row.key)
            return
        await self._database.write(give_back, row.id, *self._owner)
        self._places.give_back(row)
        self._ending.discard(row.key)
        log.warning("run.given_back", dag_id=row.dag_id, run_id=row.run_id, reason=reason)

    # Requests: clear, mark, cancel

    def run_ended(self, key: DagRunKey) -> None:
        """The end of a run is stored."""
        self._requests_are_due |= key in self._ending

    async def take_requests(self, now: datetime) -> None:
        """If requests are due, do each that can be done now. The runs that these change become EDITED.

        A request is done in the database, and its run is then taken up again from there. A run that a request ends is
        first ended in memory: the request stays open until then, so that it survives a crash, and later requests wait.
        """
        if not self._requests_are_due:
            return
        # Store pending changes first: a request changes the stored rows.
        await self._store()
        waiting: set[DagRunKey] = set()
        has_more = False
        for wanted in await self._database.read(open_requests, self._owner[1]):
            stop = _stop_of(wanted)
            if wanted.run in waiting:
                continue
            if stop is None or wanted.run not in self._evaluation.runs:
                # Before doing the request: the answer of the database may be lost.
                self._places.disturb(wanted.run, wanted.dag_run_id)
                await self._do(wanted, now)
                continue
            waiting.add(wanted.run)
            if self._places.of(wanted.run) is Place.EDITED:
                # The run in memory no longer matches its rows.
                has_more = True
            else:
                self._ending.add(wanted.run)
                self._evaluation.stop_run(wanted.run, stop, now)
        self._requests_are_due = has_more

    async def _requests_of(self, runs: Collection[int]) -> dict[int, list[OpenRequest]]:
        """Return the open requests for runs, by the runs' row ids, oldest first."""
        found: dict[int, list[OpenRequest]] = {}
        for wanted in await self._database.read(open_requests, self._owner[1]):
            if wanted.dag_run_id in runs:
                found.setdefault(wanted.dag_run_id, []).append(wanted)
        return found

    async def _do_unheld(self, wanted: Sequence[OpenRequest], now: datetime) -> RunStop | None:
        """Do the requests for a run that is not in memory yet, up to the first that ends it.

        The request that ends the run is returned as a stop, to be done in memory. Later requests are due when the run
        has ended.
        """
        for request in wanted:
            if (stop := _stop_of(request)) is not None:
                self._ending.add(request.run)
                return stop
            await self._do(request, now)
        return None

    async def cancel(self, run: DagRunKey, now: datetime) -> None:
        """Request the end of a run on behalf of this program, unless the run has ended or was deleted."""
        try:
            await self._database.write(submit_by_program, run, CancelRun(), now=now)
        except StoreUnavailable:
            raise
        except AsynschedError as exc:
            log.info("request.refused", dag_id=run.dag_id, run_id=run.run_id, actor="program", reason=str(exc))

    async def _do(self, wanted: OpenRequest, now: datetime) -> None:
        request = wanted.request.__struct_config__.tag
        about = {"dag_id": wanted.run.dag_id, "run_id": wanted.run.run_id, "actor": wanted.actor, "request": request}
        try:
            is_done = await self._database.write(do_request, wanted, self._owner[1], now)
        except StoreUnavailable:
            raise
        except AsynschedError as exc:
            # The run has changed since the request was made: it may have moved to another version.
            await self._database.write(end_request, wanted)
            log.warning("request.refused", **about, reason=str(exc))
        else:
            if is_done:
                log.info("run.edited", **about)
        self._ending.discard(wanted.run)


def _stop_of(wanted: OpenRequest) -> RunStop | None:
    match wanted.request:
        case CancelRun():
            return cancelled(f"{wanted.actor} cancelled the run")
        case MarkRun(state="failed"):
            return marked_failed(f"{wanted.actor} marked the run as failed")
    return None


def give_back(conn: Connection, run_row_id: int, scheduler_id: str, epoch: int) -> None:
    """Release a run and notify the other schedulers, so that one can claim it immediately; see `give_back_run`."""
    if queue.give_back_run(conn, run_row_id, scheduler_id, epoch):
        notify(conn, Hint("orphan", origin=scheduler_id))
