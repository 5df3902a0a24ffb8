"""Does the requests for the runs that this scheduler owns: clear, mark, cancel."""

from collections.abc import Collection, Sequence
from datetime import datetime

import structlog

from asynsched.errors import AsynschedError, StoreUnavailable
from asynsched.keys import DagRunKey
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.places import Place, Places
from asynsched.scheduling.requests.run_requests import do_request, end_request, submit_by_program
from asynsched.scheduling.rules.run_end import RunStop, cancelled, marked_failed
from asynsched.store.database import Database
from asynsched.store.runs.requests import CancelRun, MarkRun, OpenRequest, open_requests

log = structlog.get_logger(__name__)


class RequestTaker:
    """Takes requests from the database, oldest first.

    A request is done in the database, and its run is then taken up again from there. A run that a request ends is first
    ended in memory: the request stays open until then, so that it survives a crash, and later requests wait.

    Args:
        places: Where each run is; a run that a request changes is EDITED.
        lease_epoch: Lease epoch of the runs whose requests are taken.

    Attributes:
        are_due: Whether there may be requests to do now.
    """

    def __init__(self, *, database: Database, evaluation: Evaluation, places: Places, lease_epoch: int) -> None:
        self._database = database
        self._places = places
        self._evaluation = evaluation
        self._lease_epoch = lease_epoch
        self._ending: set[DagRunKey] = set()
        """Runs that a request is to end: their requests are due once the run has ended, or was taken up again."""
        self.are_due = True

    def heard(self) -> None:
        """There may be new requests."""
        self.are_due = True

    def run_ended(self, key: DagRunKey) -> None:
        """The end of a run is stored."""
        self.are_due |= key in self._ending

    def run_taken_up(self, key: DagRunKey, *, is_foreign: bool) -> None:
        """A run was taken up as it is stored. If it was another scheduler's, that one may have left requests open."""
        self.are_due |= is_foreign or key in self._ending

    def run_lost(self, key: DagRunKey) -> None:
        """A run now belongs to another scheduler, or to none."""
        self._ending.discard(key)

    async def take(self, now: datetime) -> None:
        """Do every open request that can be done now; the runs that these change become EDITED."""
        waiting: set[DagRunKey] = set()
        has_more = False
        for wanted in await self._database.read(open_requests, self._lease_epoch):
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
        self.are_due = has_more

    async def of(self, runs: Collection[int]) -> dict[int, list[OpenRequest]]:
        """Return the open requests for runs, by the runs' row ids, oldest first."""
        found: dict[int, list[OpenRequest]] = {}
        for wanted in await self._database.read(open_requests, self._lease_epoch):
            if wanted.dag_run_id in runs:
                found.setdefault(wanted.dag_run_id, []).append(wanted)
        return found

    async def do_unheld(self, wanted: Sequence[OpenRequest], now: datetime) -> RunStop | None:
        """Do the requests for a run that is not in memory yet, up to the first that ends it.

        That one is returned as a stop, to be done in memory. Later requests are due when the run has ended.
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
            await self._database.write(submit_by_program, run, CancelRun(), action="run.cancel", now=now)
        except StoreUnavailable:
            raise
        except AsynschedError as exc:
            log.info("request.refused", dag_id=run.dag_id, run_id=run.run_id, actor="program", reason=str(exc))

    async def _do(self, wanted: OpenRequest, now: datetime) -> None:
        request = wanted.request.__struct_config__.tag
        about = {"dag_id": wanted.run.dag_id, "run_id": wanted.run.run_id, "actor": wanted.actor, "request": request}
        try:
            await self._database.write(do_request, wanted, now)
        except StoreUnavailable:
            raise
        except AsynschedError as exc:
            # The run has changed since the request was made: it may have moved to another version.
            await self._database.write(end_request, wanted)
            log.warning("request.refused", **about, reason=str(exc))
        else:
            log.info("run.edited", **about)
        self._ending.discard(wanted.run)


def _stop_of(wanted: OpenRequest) -> RunStop | None:
    match wanted.request:
        case CancelRun():
            return cancelled(f"{wanted.actor} cancelled the run")
        case MarkRun(state="failed"):
            return marked_failed(f"{wanted.actor} marked the run as failed")
    return None
