"""The database is away for a minute, and for longer: whole schedulers, with tries under way, in virtual time."""

import pytest

from asynsched.protocol.messages import Launch
from asynsched.settings import Settings
from tests.faults.simulated.conditions import Conditions
from tests.faults.simulated.exploration import Exploration
from tests.faults.simulated.user_code import Plan

BEGINS_AT = 8.0
PATIENCE_SECONDS = 25.0
"""Until every part has looked again whether the database is back: it pauses for 10 s, and up to as much by chance."""
SEED = 4
"""Its DAGs have tasks that are ready at once, some of them with a value to store while the database is away."""


class LongOutage(Exploration):
    """Nothing fails but the database, which is away for some time, by default settings.

    An outage that begins before that goes on to its end.
    """

    def __init__(self, n_sites: int, seconds: float) -> None:
        super().__init__(SEED, Conditions(n_sites=n_sites), settings=Settings(parallelism=5))
        self.chance.is_calm = True
        self.people.are_busy = False
        self.ends_at = BEGINS_AT + seconds

    @property
    def shares_database(self) -> bool:
        return True

    def database_is_away(self) -> bool:
        return BEGINS_AT <= self.clock.monotonic() < self.ends_at

    def plan_of(self, launch: Launch) -> Plan:
        is_early = self.clock.monotonic() < BEGINS_AT and not launch.callback
        return Plan(duration=PATIENCE_SECONDS + (self.ends_at if is_early else 0), value=1)

    def said(self, *words: str) -> list[str]:
        return [line for line in self.trace if all(word in line for word in words)]


@pytest.mark.parametrize(
    ("n_sites", "seconds", "is_noticed"),
    [(1, 60, False), (1, 120, False), (1, 300, True), (2, 60, False), (2, 300, True)],
    ids=["alone", "alone-for-two-minutes", "alone-for-long", "beside-another", "beside-another-for-long"],
)
def test_tries_notice_nothing_of_an_outage_and_it_is_said_once(n_sites, seconds, is_noticed):
    lived = LongOutage(n_sites, seconds)
    lived.run()
    assert lived.said("try:", "begins"), "there is something to notice it"
    assert bool(lived.said("is fenced")) == is_noticed
    assert bool(lived.said("try:", " killed")) == is_noticed
    assert len(lived.said("warning: store.unavailable")) == n_sites
    assert len(lived.said("info: store.available")) == n_sites
