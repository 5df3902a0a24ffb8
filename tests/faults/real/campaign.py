"""One campaign: work and faults at once, then peace until all work is done, then a clean stop and the verdict."""

import base64
import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from asynsched.errors import StoreError
from asynsched.lease.expiry import takeover_seconds
from asynsched.settings import LeaseSettings
from asynsched.store.dags.dags import get_dag
from asynsched.store.database import DirectDatabase
from asynsched.store.engines.opening import connect_direct, open_direct
from asynsched.store.engines.urls import parse_url
from asynsched.store.runs.pools import set_pool
from tests.faults.real.dag_files import EDITED, MARKS
from tests.faults.real.elsewhere import Elsewhere
from tests.faults.real.faults import ORPHAN, RESTART, Faults
from tests.faults.real.ledger import LedgerReader
from tests.faults.real.report import Report, tally_fields
from tests.faults.real.serving import Served
from tests.faults.real.verdict import Stored, ended_runs, left_behind, problems, stored, too_little, wrong_edit
from tests.faults.real.workload import N_RUNS, POOL, POOL_SLOTS, SHAPES, Wave
from tests.support.postgres import PostgresServer
from tests.support.up import Site

LEASE = {
    "duration": 2.0, "renew_interval": 0.5, "grace": 1.0, "kill_time": 1.0, "outage": 0.0, "shared_outage": 0.0
}  # fmt: skip
OUTLAST_SECONDS = takeover_seconds(LeaseSettings(**LEASE), is_alone=False) + 3.0
"""Until another scheduler has taken over, and its new runs have begun to run."""
SETTINGS = {
    **{f"ASYNSCHED_LEASE__{name.upper()}": str(seconds) for name, seconds in LEASE.items()},
    "ASYNSCHED_PARALLELISM": "12",
    "ASYNSCHED_MAX_MACHINE_KILLS": "100000",
    "ASYNSCHED_CALLBACKS__ATTEMPTS": "100000",
    "ASYNSCHED_SHUTDOWN_GRACE": "1",
    "ASYNSCHED_SWEEP_INTERVAL": "2",
}
MEAN_GAP_SECONDS = 0.3
"""Between two faults."""
EXECUTIONS_PER_KILL = 3
"""The number of tasks that begin before each kill but the first: kills meet work on slow machines, too."""
FIRST_KILLS = 10
EDIT_SECONDS = 0.4
STUCK_SECONDS = 150.0
"""So long without any fault and without anything that happens: the work hangs. A retry may wait for a minute."""
TURN_SECONDS = 0.02
RUNS_OF_WAVE = len(SHAPES) * N_RUNS


@dataclass(frozen=True)
class Plan:
    """The kind and length of a campaign: faults go on until the numbers of kills and runs and the time are reached.

    Attributes:
        engine: The engine of other machines; empty: tasks run at their schedulers.
    """

    seed: int
    engine: str = ""
    n_schedulers: int = 1
    min_kills: int = 0
    min_runs: int = 0
    min_seconds: float = 0.0


@dataclass
class Campaign:
    """Works on one installation.

    Args:
        root: An empty folder.
        server: Where to have a PostgreSQL database; None: SQLite.
    """

    plan: Plan
    root: Path
    server: PostgresServer | None = None
    waves: list[Wave] = field(default_factory=list)
    n_edits: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.plan.seed)
        self._next_edit = self._next_fault = 0.0
        # Faults that each campaign has at least once come somewhere among its kills, unless chance has brought them.
        self._insist_at = self._chance.randrange(max(self.plan.min_kills, FIRST_KILLS)) if self.server else 0
        self._temporary = self.root / "tmp"
        ledger = self.root / "ledger"
        for folder in (self._temporary, self.root / "locks"):
            folder.mkdir(parents=True)
            folder.chmod(0o777)
        url = None if self.server is None else self.server.new_database()
        environment = SETTINGS | {
            "ASYNSCHED_FERNET_KEY": base64.urlsafe_b64encode(self._chance.randbytes(32)).decode(),
            "FAULTS_LEDGER": str(ledger), "FAULTS_LOCKS": str(self.root / "locks"), "TMPDIR": str(self._temporary)
        }  # fmt: skip
        self.elsewhere = self._elsewhere(environment)
        self.sites = [
            Site(
                self.root, url, environment | self._settings_of(n) | {"FAULTS_HOME": f"home-{n}"}, home_name=f"home-{n}"
            )
            for n in range(1, self.plan.n_schedulers + 1)
        ]
        self.url = url or f"sqlite:///{self.sites[0].home / 'asynsched.db'}"
        self.served = [Served(site, self._chance, OUTLAST_SECONDS) for site in self.sites]
        self._reader = LedgerReader(ledger)
        name = "" if url is None else urlsplit(url).path.strip("/")
        self.faults = Faults(
            self.root, self.served, self._reader, self._chance, OUTLAST_SECONDS, self.server, name, self.elsewhere
        )  # fmt: skip

    def _elsewhere(self, environment: dict[str, str]) -> Elsewhere | None:
        if not self.plan.engine:
            return None
        tasks = {name: value for name, value in environment.items() if name.startswith("FAULTS_")}
        return Elsewhere(self.plan.engine, self.root, tasks, self.plan.n_schedulers, self._chance)

    def _settings_of(self, number: int) -> dict[str, str]:
        """Return the settings of a scheduler whose tasks run elsewhere."""
        if self.elsewhere is None:
            return {}
        listen = f"127.0.0.1:{self.elsewhere.ports[number - 1]}"
        return self.elsewhere.settings | {"ASYNSCHED_WEB__LISTEN": listen}

    def run(self) -> Report:
        """Do it all."""
        began_at = time.monotonic()
        self._prepare()
        found: list[str] = []
        with self._ending_everything(), closing(Progress(self.url)) as progress:
            if self.elsewhere is not None:
                self.elsewhere.begin()
            is_over = self._work(progress, time.monotonic())
            found += [] if is_over else [self._hanging(progress)]
            last_edit = self._last_edit_is_known(progress) if is_over else []
            found += self._all_serve()
            for served in self.served:
                served.stop()
                found += served.complaints
            if self.elsewhere is not None:
                found += self.elsewhere.stop()
            with open_direct(self.url) as database:
                result = database.read(stored)
            ledger = self._reader.read()
            found += (
                too_little(self.faults.tally, has_server=self.server is not None)
                + last_edit
                + problems(result, ledger, self.waves)
                + [*left_behind(self.sites, self._temporary)]
            )
        return self._report(found, result, time.monotonic() - began_at)

    def _prepare(self) -> None:
        site = self.sites[0]
        site.write("marks.py", MARKS)
        site.home.mkdir(exist_ok=True)
        with open_direct(self.url) as database:
            database.write(set_pool, POOL, POOL_SLOTS)

    def _work(self, progress: "Progress", began_at: float) -> bool:
        """Do all work, with faults until the plan is fulfilled. Returns False when the work hangs."""
        peace_since = time.monotonic()
        while True:
            now = time.monotonic()
            self._tend()
            self.faults.resume_due()
            progress.look()
            if not self._is_fulfilled(now - began_at):
                peace_since = now
                self._disturb(progress, now)
            else:
                self.faults.resume_due(everybody=True)
                if self.elsewhere is not None:
                    self.elsewhere.calm()
                if progress.n_ended >= len(self.waves) * RUNS_OF_WAVE:
                    return True
            if now > max(progress.changed_at, peace_since) + STUCK_SECONDS:
                return False
            time.sleep(TURN_SECONDS)

    def _tend(self) -> None:
        for served in self.served:
            served.tend()
        if self.elsewhere is not None:
            self.elsewhere.tend()

    def _disturb(self, progress: "Progress", now: float) -> None:
        """Give new work where there is not much left, and do harm."""
        if progress.n_ended >= (len(self.waves) - 1) * RUNS_OF_WAVE:
            self._release_wave()
        if now >= self._next_edit:
            self._edit()
            self._next_edit = now + EDIT_SECONDS
        if now >= self._next_fault and self._may_strike():
            insists = self.faults.tally.n_kills >= self._insist_at
            self.faults.strike(self._missing() if insists else None)
            self._next_fault = now + self._chance.expovariate(1 / MEAN_GAP_SECONDS)

    def _may_strike(self) -> bool:
        n_begun = len(self._reader.read().executions)
        return self.faults.tally.n_kills <= FIRST_KILLS + n_begun / EXECUTIONS_PER_KILL

    def _is_fulfilled(self, seconds: float) -> bool:
        plan = self.plan
        return (
            self.faults.tally.n_kills >= plan.min_kills
            and len(self.waves) * RUNS_OF_WAVE >= plan.min_runs
            and seconds >= plan.min_seconds
            and self._missing() is None
        )

    def _missing(self) -> str | None:
        """Return a fault that this campaign is to have at least once, and has not had."""
        if self.server is not None and not self.faults.tally.database[RESTART]:
            return RESTART
        may_orphan = len(self.served) > 1 and self.elsewhere is None
        return ORPHAN if may_orphan and not self.faults.tally.orphans else None

    def _release_wave(self) -> None:
        wave = Wave(len(self.waves) + 1)
        self.waves.append(wave)
        self._write_whole(wave.file_name, wave.text)

    def _edit(self) -> None:
        self.n_edits += 1
        self._write_whole("edited_1.py", EDITED.format(number=1, edit=self.n_edits))

    def _write_whole(self, name: str, text: str) -> None:
        """Write a file as an editor does: it is never there in part."""
        path = self.sites[0].dags / f".{name}.new"
        path.write_text(text)
        path.rename(self.sites[0].dags / name)

    def _last_edit_is_known(self, progress: "Progress") -> list[str]:
        deadline = time.monotonic() + STUCK_SECONDS
        tags: object = None
        while time.monotonic() < deadline:
            self._tend()
            tags = progress.tags_of("edited_1")
            if not wrong_edit(tags, self.n_edits):
                break
            time.sleep(TURN_SECONDS)
        return wrong_edit(tags, self.n_edits)

    def _all_serve(self) -> list[str]:
        """Wait until there is a scheduler on each home, which takes care of its predecessor's remains."""
        deadline = time.monotonic() + STUCK_SECONDS
        while not all(served.is_serving for served in self.served):
            if time.monotonic() > deadline:
                return ["a scheduler does not start"]
            self._tend()
            time.sleep(TURN_SECONDS)
        return []

    def _hanging(self, progress: "Progress") -> str:
        words = [served.last_words() for served in self.served]
        if self.elsewhere is not None:
            words.append(self.elsewhere.last_words())
        told = "\n".join(words)
        return (
            f"nothing has happened for {STUCK_SECONDS:g} s, and {progress.n_ended} runs of"
            f" {len(self.waves) * RUNS_OF_WAVE} have ended:\n{told}"
        )

    def _report(self, found: list[str], result: Stored, seconds: float) -> Report:
        return Report(
            seed=self.plan.seed,
            engine=self.plan.engine,
            backend="sqlite" if self.server is None else "postgresql",
            n_schedulers=self.plan.n_schedulers,
            seconds=seconds,
            n_runs=len(result.runs),
            n_task_instances=len(result.tasks),
            scheduler_starts=sum(served.n_starts for served in self.served),
            scheduler_exits=dict(sum((served.exits for served in self.served), start=self.served[0].exits.__class__())),
            problems=found,
            **tally_fields(self.faults.tally, self._reader.ledger),
        )

    @contextmanager
    def _ending_everything(self) -> Iterator[None]:
        try:
            yield
        finally:
            for site in self.sites:
                site.end_everything()
            if self.elsewhere is not None:
                self.elsewhere.end()


class Progress:
    """The ended runs so far, read now and then from a database that may be away."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._database: DirectDatabase | None = None
        self._looked_at = self.changed_at = time.monotonic()
        self._seen = (0, 0)

    @property
    def n_ended(self) -> int:
        """Runs that have ended."""
        return self._seen[0]

    def look(self) -> None:
        """Look, unless that was done just now."""
        now = time.monotonic()
        if now < self._looked_at + 0.2:
            return
        self._looked_at = now
        seen = self._read(ended_runs)
        if seen is not None and seen != self._seen:
            self._seen, self.changed_at = seen, now

    def tags_of(self, dag_id: str) -> list[str] | None:
        """Return the tags of a DAG, None when that cannot be known now."""
        dag = self._read(get_dag, dag_id)
        return None if dag is None else list(dag.tags)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def _read(self, query, *arguments):
        try:
            self._database = self._database or connect_direct(parse_url(self._url))
            return self._database.read(query, *arguments)
        except StoreError:
            return None
