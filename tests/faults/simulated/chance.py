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


_LIKELY = {
    "away_before": 0.05, "away_after": 0.05, "crash_before": 0.04, "crash_after": 0.04, "late_write": 0.5,
    "crash_anywhere": 0.002, "outage": 0.02, "cut": 0.03, "repeated": 0.1, "keeper_death": 0.02, "try_death": 0.1,
    "stopped": 0.02, "asked_to_stop": 0.01, "clock_jump": 0.01, "slow": 0.1, "power_cut": 0.02, "host_death": 0.2,
    "parse_death": 0.15, "lost_file_event": 0.2,
}  # fmt: skip
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
    """

    def __init__(self, seed: int, clock: VirtualClock, conditions: Conditions = AS_THE_SEED_SAYS) -> None:
        self._clock = clock
        self._not_before: dict[str, float] = {}
        self.random = Random(f"faults {seed}")
        rates = [0, 0, 0.3, 1, 2]
        drawn = {name: likely * self.random.choice(rates) for name, likely in _LIKELY.items()}
        if conditions.faults:
            drawn = {name: min(1.0, OFTEN * _LIKELY[name]) for name in conditions.faults} | {"slow": drawn["slow"]}
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
