"""The remains of obsolete timers, counted in entries."""

import gc
from datetime import timedelta

from asynsched.protocol.messages import Deferral, Ended, Started, TriggerOutcome
from asynsched.timers import FEW
from sandbox.supervision.reactor import Reactor, Timer
from tests.support.runs import NOON, granted, run_of, started, task

DAY = 86_400.0
MANY = 5_000


def n_timers() -> int:
    """Return how many timers of reactors there are in memory."""
    return sum(isinstance(found, Timer) for found in gc.get_objects())


def test_the_keeper_keeps_no_timer_of_the_tries_that_have_ended():
    """Each try with `execution_timeout` arms one for when that is over, and cancels it when it ends."""
    reactor, called = Reactor(lambda: 0.0), []
    n_before = n_timers()
    late = reactor.after(DAY, lambda: called.append("late"))
    for number in range(MANY):
        running = [reactor.after(DAY + number, lambda: called.append("no")) for _ in range(3)]
        for timer in running:
            timer.cancel()
    assert n_timers() - n_before <= FEW + 6
    reactor.now = lambda: 2 * DAY
    reactor._call_due()
    assert called == ["late"]
    late.cancel()
    reactor._call_due()
    assert called == ["late"], "a timer is called once, and may be cancelled afterwards"


def test_a_due_timer_that_another_due_timer_cancels_is_not_called():
    reactor, called = Reactor(lambda: 0.0), []
    second = reactor.at(0.0, lambda: called.append("second"))
    reactor.at(-1.0, second.cancel)
    reactor._call_due()
    assert called == []


def test_the_evaluator_keeps_no_timer_of_runs_and_tries_that_have_ended():
    """Each run has a timeout of a day, and each of its tasks has waited for a trigger with one."""
    lasting = run_of([task("a")], dagrun_timeout=2 * DAY)
    engine = started(lasting)
    assert len(granted(engine)) == 1
    for _ in range(MANY):
        run = run_of([task("a")], dagrun_timeout=DAY)
        engine.start_run(run, NOON)
        [ready] = granted(engine)
        engine.try_started(Started(ready.token, NOON, 1), NOON)
        deferral = Deferral("module.Trigger", {}, "go_on", {}, DAY)
        engine.try_ended(Ended(ready.token, "deferred", NOON, NOON, deferral=deferral), NOON)
        engine.trigger_fired(TriggerOutcome(ready.token, "success"), NOON)
        assert run.state == "success"
    assert len(engine._timers._heap) <= FEW + 4
    assert engine.next_timer == NOON + timedelta(seconds=2 * DAY)


def test_the_evaluator_keeps_no_timer_of_a_run_that_somebody_has_taken_away():
    """As when it was cleared, marked or handed over while a retry was due in a day."""
    run = run_of([task("a", retries=1, retry_delay=DAY)], dagrun_timeout=DAY)
    engine = started(run)
    [ready] = granted(engine)
    engine.try_ended(Ended(ready.token, "failed", NOON, NOON), NOON)
    assert run.instance("a").state == "up_for_retry"
    engine.drop_run(run.key, NOON)
    assert engine.next_timer is None
