"""The production services under virtual time: an in-memory database, a scripted executor, no process, no thread."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import anyio

from asynsched.assembly import assemble
from asynsched.authoring.dag import DAG
from asynsched.channels import Channels, DagChanged
from asynsched.clock import VirtualClock
from asynsched.executors.base import Executor, ExecutorContext
from asynsched.home import prepare_home
from asynsched.scheduling.run_waiters import RunWaiters
from asynsched.serialization.encode import serialize_dag
from asynsched.serialization.schema import SCHEMA_VERSION, ParsedDag, ParseReport
from asynsched.settings import LeaseSettings, Settings
from asynsched.simulation.loop import run_virtual
from asynsched.store.dag_runs import DagRunRow, list_runs
from asynsched.store.database import Database
from asynsched.store.direct_database import open_inline
from asynsched.store.parse_results import DagDefaults, FileStamp, store_report
from asynsched.store.schedulers import register_scheduler
from tests.support.executor import Script, ScriptedExecutor

LEASE = timedelta(days=1000)


class Simulated:
    """A scheduler of these DAGs from `start` on. After `run_for`, its database and executor tell what happened."""

    def __init__(self, home: Path, dags: Sequence[DAG], script: Script, start: datetime) -> None:
        lease = LeaseSettings(duration=LEASE.total_seconds(), renew_interval=LEASE.total_seconds() / 2)
        self.settings = Settings(home=str(home), dags_folder=str(home / "dags"), lease=lease)
        self.clock = VirtualClock(start)
        self.database: Database = open_inline()
        self.dags = dags
        self.script = script
        self.executor: ScriptedExecutor | None = None
        self.when_started: Callable[[], None] = lambda: None
        self.act: Callable[[Channels], Awaitable[None]] | None = None

    def run_for(self, span: timedelta) -> None:
        """Serve for that much virtual time."""
        run_virtual(lambda: self._serve(span), self.clock)

    async def _serve(self, span: timedelta) -> None:
        prepare_home(self.settings.home_path)
        channels = Channels()
        await self._store_dags(channels)
        services = assemble(
            settings=self.settings,
            channels=channels,
            database=self.database,
            database_url=None,
            clock=self.clock,
            make_executor=self._make_executor,
            scheduler_id="simulated",
            lease_epoch=await self._register(),
            waiters=RunWaiters(channels=channels, clock=self.clock),
            on_lease_lost=lambda: None,
        )
        await services.evaluator.recover(await services.executor.start(1), self.clock.now())
        async with anyio.create_task_group() as group:
            for service in (*services.consumers, services.creator):
                await group.start(service.run)
            self.when_started()
            if self.act is not None:
                group.start_soon(self.act, channels)
            await self.clock.sleep(span)
            group.cancel_scope.cancel()

    def _make_executor(self, context: ExecutorContext) -> Executor:
        self.executor = ScriptedExecutor(context, self.script)
        return self.executor

    async def _register(self) -> int:
        now = self.clock.now()
        return await self.database.write(
            register_scheduler, scheduler_id="simulated", hostname="simulated", pid=1, home="", version="0", now=now,
            lease_until=now + LEASE,
        )  # fmt: skip

    async def _store_dags(self, channels: Channels) -> None:
        for dag in self.dags:
            parsed = ParsedDag(serialize_dag(dag), version_hash=f"{dag.dag_id:0>64.64}")
            report = ParseReport(SCHEMA_VERSION, path=f"{dag.dag_id}.py", dags=(parsed,))
            stamp = FileStamp(content_hash="", modified_ns=0, size=0, runtime="")
            defaults = DagDefaults(max_active_runs=16, paused=False)
            await self.database.write(store_report, report, stamp, now=self.clock.now(), defaults=defaults)
            await channels.dag_changes.put(DagChanged(dag.dag_id))

    async def runs(self, dag_id: str) -> list[DagRunRow]:
        return await self.database.read(list_runs, dag_id=dag_id, limit=10_000)
