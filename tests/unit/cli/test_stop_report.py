"""The report of a stopping scheduler on the tries that it waits for."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from asynsched.cli.serving import StopReport
from asynsched.results import Running, RunningTry

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FIRST = RunningTry("d", "r", "first", -1, 1, NOON - timedelta(seconds=7))
OTHERS = tuple(replace(FIRST, task_id="t", map_index=n, started_at=None) for n in range(4))


def line(report: StopReport, running: Running, at: float, *, by_signal: bool = True) -> str:
    return report.next_line(running, at, NOON, by_signal=by_signal)


def test_what_is_waited_for_is_named_with_the_time_it_has_and_how_to_end_it():
    report = StopReport(grace=10, kill_time=5, began_at=100)
    assert line(report, Running((FIRST, *OTHERS), n_callbacks=1), 100) == (
        "Waiting for 5 tries and 1 callback to end, 10 s at most: d.first (run r, for 7 s), d.t[0] (run r), d.t[1]"
        " (run r) and 2 more. Then they are asked to, and have 5 s for it. Ctrl-C kills them."
    )
    assert line(report, Running((FIRST,)), 110) == (
        "Waiting for 1 try, which had to be asked to end, 5 s at most: d.first (run r, for 7 s). Ctrl-C kills them."
    )
    assert "Ctrl-C" not in line(StopReport(10, 5, 0), Running((FIRST,)), 0, by_signal=False)


def test_the_report_repeats_after_progress_or_a_while_until_time_is_up():
    report, both, one = StopReport(grace=60, kill_time=5, began_at=0), Running((FIRST, *OTHERS)), Running((FIRST,))
    moments = [(0, both), (1, both), (1.5, one), (2, one), (3, one), (11, one), (12, one), (60, one), (61, one)]
    told = [at for at, running in moments if line(report, running, at)]
    assert told == [0, 2, 12, 60]
    assert line(report, Running(OTHERS), 65) == ""
    assert line(StopReport(60, 5, 0), Running(), 0) == ""


def test_nothing_is_looked_at_between_the_moments_at_which_a_line_may_be_due():
    report = StopReport(grace=15, kill_time=5, began_at=0)
    looks, at = [], 0.0
    while at < 25:
        line(report, Running((FIRST,)), at)
        looks.append(at := report.next_look(at))
    assert looks == [2, 10, 12, 15, 17, 25]
