"""Of a run whose scheduler does nothing for it, it is known which one that is, and who will take the run over."""

from datetime import timedelta

import pytest

from asynsched.explaining.owners import Owners
from asynsched.store.schema import SchedulerRow
from tests.support.runs import NOON

AGO = NOON - timedelta(seconds=20)


def row(epoch, **values):
    known = {
        "parallelism": 1,
        "executors": {},
        "hostname": "host",
        "pid": epoch,
        "home": f"/home{epoch}",
        "version": "1",
        "takeover_seconds": 31.0,
    }
    times = {"lease_until": AGO + timedelta(seconds=15), "started_at": AGO, "heartbeat_at": AGO}
    return SchedulerRow(**{"id": f"host:{epoch}", "lease_epoch": epoch} | known | times | values)


SILENT, OTHER = row(1), row(2)


@pytest.mark.parametrize(
    ("schedulers", "is_shared", "text", "release", "at"),
    [
        (
            [SILENT],
            False,
            "host:1 owns this run, and has been silent",
            "home, /home1, takes it over at its start",
            None,
        ),
        ([SILENT], True, "host:1 owns this run", "or one of another home, 31 s after its own", None),
        ([SILENT, OTHER], True, "host:1 owns this run", "or another one does", AGO + timedelta(seconds=31)),
        ([row(1, takeover_seconds=9.0), OTHER], True, "host:1 owns this run", "or another one does, in a moment", None),
        (
            [row(1, ended_at=AGO)],
            False,
            "no scheduler has owned this run since host:1 ended at 2",
            "`asynsched up`",
            None,
        ),
        (
            [row(1, ended_at=AGO), OTHER],
            True,
            "no scheduler has owned this run",
            "another scheduler takes it over",
            None,
        ),
        ([OTHER], True, "no scheduler owns this run", "another scheduler takes it over", None),
    ],
)
def test_who_has_a_run_that_stands_still_and_who_takes_it_over_is_told(schedulers, is_shared, text, release, at):
    standings = {1: "gone"} | ({2: "serving"} if OTHER in schedulers else {})
    reason = Owners(schedulers, standings, now=NOON, is_shared=is_shared).lack(1)
    assert text in reason.text
    assert release in reason.release
    assert reason.at == at


def test_a_run_of_a_scheduler_newer_than_the_last_look_lacks_nothing():
    assert Owners([SILENT], {1: "gone"}, now=NOON, is_shared=True).lack(2) is None


@pytest.mark.parametrize("standing", ["serving", "stopping"])
def test_of_a_run_whose_scheduler_lives_there_is_nothing_to_tell(standing):
    assert Owners([SILENT, OTHER], {1: "gone", 2: standing}, now=NOON, is_shared=True).lack(2) is None
