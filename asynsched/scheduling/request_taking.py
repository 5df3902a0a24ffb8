"""Does what people have asked of the runs that this scheduler owns: clear, mark, cancel."""

from datetime import datetime

import structlog

from asynsched.channels import Channels, TryUnwanted
from asynsched.keys import DagRunKey
from asynsched.scheduling.evaluation import Evaluation
from asynsched.scheduling.rules.run_stop import RunStop, cancelled, marked_failed
from asynsched.scheduling.run_requests import do_request
from asynsched.store.database import Database
from asynsched.store.run_requests import CancelRun, MarkRun, OpenRequest, open_requests

log = structlog.get_logger(__name__)


class RequestTaker:
    """Takes requests from the database, oldest first.

    A request is done in the database, and its run is taken up from there anew. A run that is to end is ended in memory
    first: its request stays open until that is done, so that it outlives a crash.

    Args:
        lease_epoch: That of the runs whose requests are taken.
    """

    def __init__(self, *, database: Database, evaluation: Evaluation, channels: Channels, lease_epoch: int) -> None:
        self._database = database
        self._evaluation = evaluation
        self._channels = channels
        self._lease_epoch = lease_epoch
        self._ending: set[DagRunKey] = set()

    def is_ended(self, key: DagRunKey) -> bool:
        """Whether a run has ended that was to: its request can be closed."""
        return key in self._ending and key not in self._evaluation.runs

    async def take(self, now: datetime) -> dict[int, DagRunKey]:
        """Do every request that is open, and return the runs whose rows have changed."""
        changed: dict[int, DagRunKey] = {}
        for wanted in await self._database.read(open_requests, self._lease_epoch):
            stop = _stop_of(wanted)
            if stop is not None and wanted.run in self._evaluation.runs:
                self._ending.add(wanted.run)
                self._evaluation.stop_run(wanted.run, stop, now)
                continue
            applied = await self._database.write(do_request, wanted, now)
            self._ending.discard(wanted.run)
            for token in applied.unwanted:
                self._channels.ready.put_nowait(TryUnwanted(token, f"{wanted.actor} wants it ended"))
            changed[wanted.dag_run_id] = wanted.run
            log.info("run.edited", dag_id=wanted.run.dag_id, run_id=wanted.run.run_id, actor=wanted.actor)
        return changed


def _stop_of(wanted: OpenRequest) -> RunStop | None:
    match wanted.request:
        case CancelRun():
            return cancelled(f"{wanted.actor} cancelled the run")
        case MarkRun(state="failed"):
            return marked_failed(f"{wanted.actor} marked the run as failed")
    return None
