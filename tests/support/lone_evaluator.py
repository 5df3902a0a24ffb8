"""One scheduler's evaluator beside others on one database, ticked by a test: ownership alone, without anything else."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

from asynsched.assembly import Foundation, make_evaluator
from asynsched.channels import Channels, LimitNews, RunCreated, TaskReady, TryReported
from asynsched.clock import VirtualClock
from asynsched.executors.base import Held
from asynsched.keys import DagRunKey
from asynsched.lease.expiry import Lease
from asynsched.protocol.messages import Ended
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.loading import VersionCache
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.schedulers import register_scheduler, set_room
from tests.support.runs import NOON

PARALLELISM = 9
NONE: frozenset[str] = frozenset()
NO_OTHERS: Mapping[str, int] = MappingProxyType({})


class LoneEvaluator:
    """The evaluator of one scheduler; the executor is the test.

    Args:
        executors: How many tasks each of several executors takes, by name.
        boot: Of its machine.
    """

    def __init__(
        self,
        database: Database,
        folder: Path,
        name: str,
        epoch: int,
        executors: Mapping[str, int],
        boot: str = "first",
    ) -> None:
        self.name, self.epoch = name, epoch
        self.clock = VirtualClock(NOON, boot)
        self.channels = Channels()
        self._launched: set[str] = set()
        base = Foundation(
            settings=Settings(sweep_interval=60), channels=self.channels, clock=self.clock, database=database,
            database_url=None, lease=Lease(name, epoch),
        )  # fmt: skip
        self.evaluator = make_evaluator(
            base, VersionCache(database, folder, folder), PARALLELISM, executors, lambda: False
        )

    async def tick(self, *news: object) -> dict[str, str]:
        """Run it until it rests; return the run of each try that begins, by token: launched the first time."""
        for message in news:
            channel = self.channels.limits if isinstance(message, LimitNews) else self.channels.runs
            channel.put_nowait(message)
        for _ in range(5):
            await self.evaluator.tick(self.clock.now())
        ready = [message.launch for message in self.channels.ready.take() if isinstance(message, TaskReady)]
        begun = {launch.token: launch.run.run_id for launch in ready if launch.token not in self._launched}
        self._launched |= begun.keys()
        return begun

    async def sweep(self) -> None:
        """Run it after the time of a sweep."""
        self.clock.leap(61)
        await self.tick()

    def end(self, *tokens: str) -> None:
        for token in tokens:
            self.channels.reports.put_nowait(TryReported(Ended(token, "success", NOON)))


async def serving(
    database: Database, folder: Path, name: str, executors: Mapping[str, int] = NO_OTHERS, runs: frozenset[str] = NONE
) -> LoneEvaluator:
    """Return the evaluator of a new scheduler, which has taken up the stored runs; its executor runs these tries."""
    values = {"hostname": name, "pid": 1, "home": name, "version": "1", "now": NOON, "takeover_seconds": 30}
    until = NOON + timedelta(hours=1)
    epoch = await database.write(register_scheduler, scheduler_id=name, lease_until=until, **values)
    await database.write(set_room, name, PARALLELISM, executors)
    found = LoneEvaluator(database, folder, name, epoch, executors)
    await found.evaluator.recover(Held(running=runs), NOON)
    await found.tick()
    return found


async def run_on(scheduler: LoneEvaluator, database: Database, run_id: str) -> dict[str, str]:
    """Create and begin a run of the DAG `d`; return the result of `tick`."""
    await database.write(create_manual_run, "d", Trigger(run_id=run_id), now=NOON)
    return await scheduler.tick(RunCreated(DagRunKey("d", run_id)))
