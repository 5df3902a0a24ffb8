"""All that is left to chance in one exploration, drawn from its seed.

Each seed has a *climate*: which faults happen in it at all, and how often. So some seeds are stormy, and others show
the effect of a single kind of fault.
"""

from dataclasses import dataclass
from random import Random

from asynsched.clock import VirtualClock
from tests.faults.simulated.conditions import AS_THE_SEED_SAYS, CALLBACKS, STORES, Conditions


@dataclass(frozen=True)
class Climate:
    """The probability of each fault at each occasion for it."""

    away_before: float = 0.0
    """A database call is not done, and says that the database is away."""
    away_after: float = 0.0
    """A database call is done, and says that the database is away."""
    crash_before: float = 0.0
    """The scheduler dies at a database call, which is not done."""
    crash_after: float = 0.0
    """The scheduler dies at a database call, which is done."""
    late_write: float = 0.0
    """The last query of a scheduler is done some time after its death."""
    crash_anywhere: float = 0.0
    """The scheduler dies after a step of its event loop."""
    outage: float = 0.0
    """The database goes away for seconds."""
    cut: float = 0.0
    """The connection to the keeper breaks as a message is on its way."""
    repeated: float = 0.0
    """A keeper says something twice."""
    keeper_death: float = 0.0
    """The keeper dies as it sends a message, and all its processes with it."""
    power_cut: float = 0.0
    """The machine restarts as its keeper sends a message, and has forgotten some of the tries that had not ended."""
    try_death: float = 0.0
    """The process of a try dies without a word."""
    host_death: float = 0.0
    """The process of a trigger host dies without a word."""
    parse_death: float = 0.0
    """A parse dies, or takes too long."""
    lost_file_event: float = 0.0
    """A watcher hears nothing of an edit in the DAG folder."""
    stopped: float = 0.0
    """The scheduler is stopped for a while, and then goes on (SIGSTOP, SIGCONT)."""
    asked_to_stop: float = 0.0
    """The scheduler is asked to stop, or cancelled, and is started again."""
    clock_jump: float = 0.0
    """The wall clock jumps."""
    slow: float = 0.0
    """A message or a call takes long."""
    crashes_at: tuple[str, ...] = ()
    """The queries at which schedulers die; none: any."""
    worker_death: float = 0.0
    """The agent of a worker dies; its keeper and its tries go on."""
    worker_power_cut: float = 0.0
    """The machine of a worker restarts, and has forgotten some of the tries that had not ended."""
    worker_stopped: float = 0.0
    """The agent of a worker is stopped for a while (SIGSTOP, SIGCONT); its keeper is not."""
    worker_asked_to_stop: float = 0.0
    """A worker is asked to stop, or cancelled, and is started again."""
    stands_still: float = 0.0
    """The machine of a worker is paused, its clocks included."""
    partition: float = 0.0
    """A worker's requests, the answers to them, or both are lost for a while."""
    lost_request: float = 0.0
    """A request of a worker is lost, which it notices, or does not."""
    late_request: float = 0.0
    """A request of a worker arrives late: perhaps when the worker does not wait for the answer any more."""
    late_answer: float = 0.0
    """The answer to a request of a worker arrives late."""
    lost_answer: float = 0.0
    """The answer to a request of a worker is lost."""
    engine_failure: float = 0.0
    """A call of the engine fails before or after its effect."""
    engine_full: float = 0.0
    """The engine takes a job only later."""
    engine_forgets: float = 0.0
    """The engine restarts, and has forgotten its jobs."""
    ticket_twice: float = 0.0
    """The engine delivers a ticket twice."""
    ticket_late: float = 0.0
    """The engine delivers a ticket late: perhaps when its try was given up."""
    ticket_lost: float = 0.0
    """The engine never delivers a ticket."""


_LIKELY = {
    "away_before": 0.05, "away_after": 0.05, "crash_before": 0.04, "crash_after": 0.04, "late_write": 0.5,
    "crash_anywhere": 0.002, "outage": 0.02, "cut": 0.03, "repeated": 0.1, "keeper_death": 0.02, "try_death": 0.1,
    "stopped": 0.02, "asked_to_stop": 0.01, "clock_jump": 0.01, "slow": 0.1, "power_cut": 0.02, "host_death": 0.2,
    "parse_death": 0.15, "lost_file_event": 0.2,
}  # fmt: skip
_LIKELY_ELSEWHERE = {
    "worker_death": 0.02, "worker_power_cut": 0.01, "worker_stopped": 0.02, "worker_asked_to_stop": 0.01,
    "stands_still": 0.02, "partition": 0.02, "lost_request": 0.02, "late_request": 0.02, "late_answer": 0.02,
    "lost_answer": 0.04, "engine_failure": 0.05, "engine_full": 0.05, "engine_forgets": 0.01, "ticket_twice": 0.2,
    "ticket_late": 0.1, "ticket_lost": 0.1,
}  # fmt: skip
"""The same for tasks on other machines."""
OFTEN = 2
"""The factor for the events to which an exploration is narrowed."""
_AIMS = [frozenset[str]()] * 6 + [STORES, CALLBACKS]
AIMED = 3
"""The factor for deaths at each of a few queries, if schedulers die nowhere else."""
LONGEST_LATENCY = 0.3
"""Seconds that something is on its way at most."""
MOST_FAULTS = 20
"""The number of faults after which there are no more, so that everything can end."""


class Chance:
    """Draws. Only events with a rate above zero in this seed's climate use up a number.

    Args:
        conditions: The events that happen in every seed.
        is_remote: Whether tasks run on other machines.
    """

    def __init__(
        self, seed: int, clock: VirtualClock, conditions: Conditions = AS_THE_SEED_SAYS, *, is_remote: bool = False
    ) -> None:
        self._clock = clock
        self._not_before: dict[str, float] = {}
        self.random = Random(f"faults {seed}")
        rates = [0, 0, 0.3, 1, 2]
        drawn = {name: likely * self.random.choice(rates) for name, likely in _LIKELY.items()}
        if is_remote:
            elsewhere = Random(f"faults elsewhere {seed}")
            drawn |= {name: likely * elsewhere.choice(rates) for name, likely in _LIKELY_ELSEWHERE.items()}
        if conditions.faults:
            often = {name: min(1.0, OFTEN * (_LIKELY | _LIKELY_ELSEWHERE)[name]) for name in conditions.faults}
            drawn = {"slow": drawn["slow"]} | often
        if aim := conditions.crashes_at or self.random.choice(_AIMS):
            drawn |= {name: AIMED * drawn[name] for name in ("crash_before", "crash_after") if name in drawn}
        self.climate = Climate(**drawn, crashes_at=tuple(sorted(aim)))
        self.tokens = Random(f"tokens {seed}")
        self.ways = Random(f"ways {seed}")
        """Draws how what happens is done."""
        self.n_faults = 0
        self.is_calm = False

    def happens(self, fault: str) -> bool:
        """Return whether a fault happens now."""
        rate: float = getattr(self.climate, fault)
        now = self._clock.monotonic()
        if not rate or self.is_calm or self.n_faults >= MOST_FAULTS or now < self._not_before.get(fault, 0.0):
            return False
        if self.random.random() >= rate:
            return False
        self.n_faults += 1
        # So that not all of them happen at the very beginning, when there is most to do.
        self._not_before[fault] = now + self.random.choice([0.0, 0.0, 1.0, 10.0])
        return True

    def crashes(self, fault: str, query: str) -> bool:
        """Return whether a scheduler dies now, at a query."""
        return (not self.climate.crashes_at or query in self.climate.crashes_at) and self.happens(fault)

    def latency(self) -> float:
        """Return how long something is on its way: seconds, mostly none."""
        if self.climate.slow and not self.is_calm and self.random.random() < self.climate.slow:
            return self.random.choice([0.003, 0.03, LONGEST_LATENCY])
        return 0.0

    def between(self, least: float, most: float) -> float:
        """Return some length between two."""
        return least + (most - least) * self.random.random()
