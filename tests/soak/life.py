"""A scheduler that lives for long in virtual time, with retention, and is weighed now and then.

Its services are the production ones. Its database is a file, and its executor forgets acknowledged tries, so only
the scheduler grows.
"""

import gc
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from weakref import ReferenceType

import anyio
import msgspec

from asynsched import DAG, Asset, BashOperator, PythonOperator, task
from asynsched.channels import Channels
from asynsched.executors.base import Executor, ExecutorContext
from asynsched.housekeeping.retention import RetentionSweeper
from asynsched.protocol.messages import Launch
from asynsched.settings import RetentionSettings
from asynsched.simulation.script import Outcome, ScriptedExecutor
from asynsched.store.engines.opening import open_inline
from tests.support.simulated import Simulated

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
FILE = "soak.db"


@dataclass(frozen=True)
class Weight:
    """The work and the memory of a scheduler after a number of periods of its life."""

    number: int
    launched: int
    objects: int
    resident_bytes: int
    database_bytes: int


class Forgetful(ScriptedExecutor):
    """Keeps nothing of a try that was acknowledged."""

    n_launched = 0

    async def acknowledge(self, tokens: Sequence[str]) -> None:
        self._known.difference_update(tokens)
        self.n_launched += len(self.launched)
        self.launched.clear()


class Life(Simulated):
    """A scheduler with a number of DAGs, each with a run every ten minutes, that keeps the runs of half a period."""

    def __init__(self, home: Path, n_dags: int, period: timedelta = DAY) -> None:
        super().__init__(home, list(dags(n_dags)), script, START - timedelta(seconds=1))
        # Sweeps in vain would take most of the time.
        self.settings = msgspec.structs.replace(self.settings, sweep_interval=600.0)
        self._home = home
        self._period = period
        self.inline = self.database = open_inline(f"sqlite:///{home / FILE}")
        self.weights: list[Weight] = []
        self.when_weighed: Callable[[Weight], None] = lambda _: None
        self.act = self._be_weighed

    def live(self, n_periods: int) -> list[Weight]:
        """Live for that long, and return the weight after each period."""
        self.run_for(n_periods * self._period + timedelta(minutes=1))
        return self.weights

    def _make_executor(self, context: ExecutorContext) -> Executor:
        self.executor = Forgetful(context, self.script)
        return self.executor

    async def _be_weighed(self, _: Channels) -> None:
        kept = self._period / DAY / 2
        settings = RetentionSettings(
            runs_days=kept,
            asset_events_days=kept,
            changes_number=100,  # their age is that of the real clock
            interval=self._period.total_seconds() / 24,
        )
        sweeper = RetentionSweeper(settings=settings, database=self.database, clock=self.clock, home=self._home)
        async with anyio.create_task_group() as group:
            await group.start(sweeper.run)
            while True:
                await self.clock.sleep(self._period)
                self.weights.append(self._weigh(len(self.weights) + 1))
                self.when_weighed(self.weights[-1])

    def _weigh(self, number: int) -> Weight:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        assert isinstance(self.executor, Forgetful)
        return Weight(
            number=number,
            launched=self.executor.n_launched,
            # Connections of sqlite3 note their cursors by such, and forget the dead of them two hundred at a time.
            objects=sum(type(found) is not ReferenceType for found in gc.get_objects()),
            resident_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
            database_bytes=(self._home / FILE).stat().st_size,
        )


def dags(n: int) -> Iterator[DAG]:
    """Yield DAGs of every kind: chains with retries, mapped tasks, and those that wait for assets."""
    for number in range(n):
        match number % 3:
            case 0:
                with DAG(f"chain_{number}", schedule="*/10 * * * *") as dag:
                    first = BashOperator(
                        task_id="first", bash_command="true", retries=2, retry_delay=timedelta(minutes=1)
                    )
                    first >> BashOperator(task_id="second", bash_command="true", outlets=[Asset(f"asset_{number}")])
            case 1:
                with DAG(f"mapped_{number}", schedule="*/10 * * * *") as dag:

                    @task
                    def some():
                        return [1, 2, 3]

                    @task
                    def each(value):
                        return value

                    each.expand(value=some())
            case _:
                with DAG(f"waiting_{number}", schedule=[Asset(f"asset_{number - 2}")]) as dag:
                    PythonOperator(task_id="only", python_callable=print)
        yield dag


def script(launch: Launch) -> Outcome:
    """Every fifth first try fails, tasks last half a minute, and inputs to map over have three values."""
    chance = zlib.crc32(f"{launch.run.run_id}{launch.task_id}".encode()) % 5
    if launch.task_id == "first" and launch.try_number == 1 and chance == 0:
        return Outcome("failed", timedelta(seconds=30), "as scripted")
    value = [1, 2, 3] if launch.task_id == "some" else None
    return Outcome(duration=timedelta(seconds=30), return_value=value)
