"""The faults: each is drawn at random, does something to a process, or to the database, and is counted."""

import heapq
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.real.elsewhere import BROKER, WORKER, Elsewhere
from tests.faults.real.ledger import LedgerReader
from tests.faults.real.processes import Victim, census
from tests.faults.real.serving import Served
from tests.support.postgres import PostgresServer

STOPS_CLEANLY = frozenset({"scheduler", "keeper", BROKER, WORKER})
"""The processes that take SIGTERM as a request to stop: that is not a kill."""
VICTIMS = {
    "scheduler": 12, "keeper": 8, "zygote": 3, "full zygote": 2, "template": 10, "task": 30, "ready process": 3,
    "trigger host": 5, "parse server": 6, "guardian": 6, "parse": 14,
}  # fmt: skip
PAUSED = {
    "scheduler": 12, "keeper": 10, "zygote": 2, "full zygote": 1, "template": 6, "task": 12, "trigger host": 2,
    "parse server": 2, "guardian": 2, "parse": 2,
}  # fmt: skip
VICTIMS_ELSEWHERE = {WORKER: 16, BROKER: 6}
PAUSED_ELSEWHERE = {WORKER: 14, BROKER: 5}
"""The same where tasks run elsewhere, beside the others."""
NETWORK = "network"
FAULTS_ELSEWHERE = {NETWORK: 30}
ORPHAN = "orphan"
FAULTS = {"kill": 70, "terminate": 16, "pause": 14, ORPHAN: 5, "power cut": 1}
RESTART = "restart PostgreSQL"
DATABASE_FAULTS = {"cut connections": 2, "cut a connection": 3, RESTART: 0.5}
YOUNG_SECONDS = 4.0
SPARED = 0.8
"""Share of faults that pass by the young in these roles: where one always dies as it starts, nothing gets done."""
LINGER_SECONDS = 1.0
"""The time for which new tasks are told to go on, before their keeper is stopped: until others might run them."""
SPARED_ROLES = frozenset({"scheduler", "keeper", BROKER, WORKER})
LONG_PAUSES = 0.4
"""Share of pauses that outlast every lease."""


@dataclass
class Tally:
    """The faults so far. A kill is a SIGKILL, or a SIGTERM to a process that does not take it as a request to stop."""

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By signal and role."""
    clean_stops: Counter[str] = field(default_factory=Counter)
    pauses: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By length (`short`, `long`) and role."""
    database: Counter[str] = field(default_factory=Counter)
    power_cuts: int = 0
    orphans: int = 0
    """Schedulers that were killed while their keeper was stopped."""
    network: Counter[str] = field(default_factory=Counter)
    """Disturbed connections, by way and weather."""

    @property
    def n_kills(self) -> int:
        return self.kills.total()

    @property
    def n_sigkills(self) -> int:
        return sum(n for (name, _), n in self.kills.items() if name == "SIGKILL")


class Faults:
    """Does harm.

    Args:
        root: Of the installation.
        outlast: Seconds after which every lease, grace and kill time is over.
        server: The PostgreSQL server, None where there is none.
        elsewhere: The engine and its workers, None where tasks run at their schedulers.
    """

    def __init__(
        self, root: Path, schedulers: list[Served], reader: LedgerReader, chance: random.Random, outlast: float,
        server: PostgresServer | None = None, database: str = "", elsewhere: Elsewhere | None = None,
    ) -> None:  # fmt: skip
        self._root = root
        self._schedulers = schedulers
        self._reader = reader
        self._chance = chance
        self._outlast = outlast
        self._server = server
        self._database = database
        self._elsewhere = elsewhere
        self._paused: list[tuple[float, int, Victim]] = []
        self._heir_is_needed_until = 0.0
        self.tally = Tally()

    def census(self) -> dict[str, list[Victim]]:
        """Return the living processes by role."""
        self._reader.read()
        pids = {served.pid for served in self._schedulers if served.pid is not None}
        roles = {} if self._elsewhere is None else self._elsewhere.roles
        return census(self._root, pids, self._reader.running, roles)

    def strike(self, fault: str | None = None) -> None:
        """Cause one fault, if it has a target: this one, or one that is drawn."""
        if fault is None:
            choices = FAULTS | (DATABASE_FAULTS if self._server is not None else {})
            if self._elsewhere is not None:
                # An orphan needs tasks at a scheduler's own keeper.
                choices = {name: weight for name, weight in choices.items() if name != ORPHAN} | FAULTS_ELSEWHERE
            [fault] = self._chance.choices([*choices], [*choices.values()])
        if fault in DATABASE_FAULTS:
            _DATABASE_FAULTS[fault](self)
            self.tally.database[fault] += 1
        elif fault == "power cut":
            self._cut_power()
        elif fault == ORPHAN:
            self._orphan()
        elif fault == NETWORK and self._elsewhere is not None:
            self.tally.network[self._elsewhere.disturb()] += 1
        elif (victim := self._draw(self._weights(fault))) is not None:
            _PROCESS_FAULTS[fault](self, victim)

    def resume_due(self, *, everybody: bool = False) -> None:
        """Resume the processes whose pause is over."""
        while self._paused and (everybody or self._paused[0][0] <= time.monotonic()):
            heapq.heappop(self._paused)[2].send(signal.SIGCONT)

    def _weights(self, fault: str) -> dict[str, int]:
        here, elsewhere = (PAUSED, PAUSED_ELSEWHERE) if fault == "pause" else (VICTIMS, VICTIMS_ELSEWHERE)
        return here if self._elsewhere is None else here | elsewhere

    def _draw(self, weights: dict[str, int]) -> Victim | None:
        living = self.census()
        [role] = self._chance.choices([*weights], [*weights.values()])
        if role != "scheduler":
            # A lone process would never get to work if it were hit whenever no other one is there.
            there = {other: n for other, n in weights.items() if living[other] and other != "scheduler"}
            [role] = self._chance.choices([*there], [*there.values()]) if there else [role]
        if not living[role]:
            return None
        victim = self._chance.choice(living[role])
        is_spared = role in SPARED_ROLES and victim.stat.age < YOUNG_SECONDS and self._chance.random() < SPARED
        return None if is_spared or self._is_needed(victim) else victim

    def _is_needed(self, victim: Victim) -> bool:
        """Whether this is the zygote of a keeper that is stopped, since no other process could end its tries in time.

        Or whether it may be the one that takes over the tries of an orphaned keeper: else none would ever do so.
        """
        paused = {one.stat.pid for _, _, one in self._paused}
        is_watching = victim.role == "zygote" and victim.stat.parent in paused
        return is_watching or (victim.role in SPARED_ROLES and time.monotonic() < self._heir_is_needed_until)

    def _kill(self, victim: Victim) -> bool:
        is_hit = victim.send(signal.SIGKILL)
        if is_hit:
            self.tally.kills["SIGKILL", victim.role] += 1
        return is_hit

    def _terminate(self, victim: Victim) -> None:
        for served in self._schedulers:
            if served.pid == victim.stat.pid:
                served.will_stop()
        if victim.send(signal.SIGTERM):
            if victim.role in STOPS_CLEANLY:
                self.tally.clean_stops[victim.role] += 1
            else:
                self.tally.kills["SIGTERM", victim.role] += 1

    def _pause(self, victim: Victim) -> None:
        is_long = self._chance.random() < LONG_PAUSES and (victim.role != "keeper" or self._is_watched(victim))
        self._stop(victim, self._outlast if is_long else self._chance.uniform(0.05, 1.0), is_long=is_long)

    def _orphan(self) -> None:
        """Stop a keeper that has long tasks, for long, and kill its scheduler, in either order."""
        pairs = self._pairs()
        if not pairs or time.monotonic() < self._heir_is_needed_until:
            return
        served, keeper, scheduler = self._chance.choice(pairs)
        linger = self._root / "locks" / f"linger-{served.site.home_name}"
        linger.touch()
        time.sleep(LINGER_SECONDS)
        linger.unlink()
        steps = [lambda: self._kill(scheduler), lambda: self._stop(keeper, self._outlast, is_long=True)]
        self._chance.shuffle(steps)
        if not all(step() for step in steps):
            return  # one of them was gone by then
        served.will_rest()
        self.tally.orphans += 1
        if len(self._schedulers) > 1:
            self._heir_is_needed_until = time.monotonic() + self._outlast

    def _pairs(self) -> list[tuple[Served, Victim, Victim]]:
        """Return whom `_orphan` may hit: keepers that a zygote watches, with their schedulers."""
        living = self.census()
        return [
            (served, keeper, scheduler)
            for served in self._schedulers
            for scheduler in living["scheduler"]
            for keeper in living["keeper"]
            if scheduler.stat.pid == served.pid
            and str(served.site.home) in keeper.stat.command.split()
            and self._is_watched(keeper)
        ]

    def _is_watched(self, keeper: Victim) -> bool:
        """Whether a zygote is there that would end the tries of this keeper if it stood still, which it does not."""
        paused = {one.stat.pid for _, _, one in self._paused}
        return keeper.stat.pid not in paused and any(
            zygote.stat.parent == keeper.stat.pid and zygote.stat.pid not in paused and zygote.stat.age > YOUNG_SECONDS
            for zygote in self.census()["zygote"]
        )

    def _stop(self, victim: Victim, seconds: float, *, is_long: bool) -> bool:
        is_hit = victim.send(signal.SIGSTOP)
        if is_hit:
            heapq.heappush(self._paused, (time.monotonic() + seconds, victim.stat.pid, victim))
            self.tally.pauses["long" if is_long else "short", victim.role] += 1
        return is_hit

    def _cut_power(self) -> None:
        """Kill every process of the installation: only its files remain."""
        self.tally.power_cuts += 1
        for victims in self.census().values():
            for victim in victims:
                self._kill(victim)

    # The database

    def _cut_connections(self) -> None:
        self._terminate_backends("")

    def _cut_a_connection(self) -> None:
        self._terminate_backends(f"ORDER BY md5(pid::text || '{self._chance.random()}') LIMIT 1")

    def _terminate_backends(self, which: str) -> None:
        assert self._server is not None
        backends = f"SELECT pid FROM pg_stat_activity WHERE datname = '{self._database}' {which}"
        self._server.execute(f"SELECT pg_terminate_backend(pid) FROM ({backends}) AS found")

    def _restart_server(self) -> None:
        assert self._server is not None
        self._server.restart(self._chance.choice(["fast", "immediate"]), pause=self._chance.choice([0.0, 2.0]))


_PROCESS_FAULTS: dict[str, Callable[[Faults, Victim], object]] = {
    "kill": Faults._kill,
    "terminate": Faults._terminate,
    "pause": Faults._pause,
}
_DATABASE_FAULTS: dict[str, Callable[[Faults], None]] = {
    "cut connections": Faults._cut_connections,
    "cut a connection": Faults._cut_a_connection,
    RESTART: Faults._restart_server,
}
