"""The log of tries: each that failed, not too many of them, and all of them if requested."""

from datetime import timedelta

from structlog.testing import capture_logs

from asynsched.protocol.messages import Ended, Started
from asynsched.scheduling.announcements import MOST_LINES, SPAN, TryLog
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.store.runs.transitions import Stale
from tests.support.runs import NOON, evaluation, run_of, task

NOTHING_STALE = Stale(frozenset(), frozenset())
SECOND = timedelta(seconds=1)


def end_all(engine: Evaluation, state: str) -> None:
    """End every try that was granted, after a second."""
    for ready in list(engine.pending.granted):
        ended = Ended(ready.token, state, NOON + SECOND, NOON, reason=f"it was {state}")
        engine.try_ended(ended, NOON + SECOND)


def started(*tasks, is_stored=True, **options) -> Evaluation:
    engine, run = evaluation(), run_of(tasks, **options)
    engine.start_run(run, NOON)
    if is_stored:
        run.stored_state = run.state
    engine.grant(NOON)
    return engine


def test_of_many_failures_the_first_are_told_of_and_the_others_are_counted():
    engine, log = started(*(task(f"t{n:02}") for n in range(MOST_LINES + 10))), TryLog(tells_all=False)
    end_all(engine, "failed")
    with capture_logs() as lines:
        log.stored(engine.pending, NOTHING_STALE, NOON)
        assert log.due_at == NOON + SPAN
        log.time_passed(NOON + SPAN - SECOND)
        assert [line["event"] for line in lines] == ["try.failed"] * MOST_LINES
        log.time_passed(NOON + SPAN)
        assert (lines[-1]["event"], lines[-1]["n_more"], log.due_at) == ("tries.failed", 10, None)
        log.stored(engine.pending, NOTHING_STALE, NOON + SPAN)
        log.flush()
    assert [line["event"] for line in lines] == 2 * [*["try.failed"] * MOST_LINES, "tries.failed"]
    told = lines[0]
    assert {name: told[name] for name in ("dag_id", "task_id", "try_number", "state", "reason", "seconds")} == {
        "dag_id": "dag", "task_id": "t00", "try_number": 1, "state": "failed", "reason": "it was failed",
        "seconds": 1.0,
    }  # fmt: skip


def test_a_failed_try_is_logged_with_its_number_after_the_next_has_begun():
    engine, log = started(task("t", retries=1, retry_delay=0.0)), TryLog(tells_all=False)
    engine.pending.mark_stored()
    end_all(engine, "failed")
    engine.time_passed(NOON + SECOND)
    engine.grant(NOON + SECOND)
    assert engine.pending.granted[-1].try_number == 2
    with capture_logs() as lines:
        log.stored(engine.pending, NOTHING_STALE, NOON + SECOND)
    [told] = lines
    assert (told["try_number"], told["state"], told["retry_at"]) == (1, "up_for_retry", "2026-01-01T12:00:01+00:00")


def test_starts_and_good_ends_are_told_of_only_where_all_is_wanted():
    events = []
    for tells_all in (False, True):
        engine, log = started(task("good")), TryLog(tells_all=tells_all)
        engine.pending.mark_stored()
        for ready in engine.pending.granted:
            engine.try_started(Started(ready.token, NOON, 1), NOON)
        with capture_logs() as lines:
            log.stored(engine.pending, NOTHING_STALE, NOON)
            engine.pending.mark_stored()
            end_all(engine, "success")
            log.stored(engine.pending, NOTHING_STALE, NOON)
        events.append([(line["event"], line["log_level"]) for line in lines])
    assert events == [[], [("try.started", "debug"), ("try.ended", "debug")]]


def test_what_was_not_stored_is_not_told_of():
    engine, log = started(task("t")), TryLog(tells_all=True)
    [ready] = engine.pending.granted
    end_all(engine, "failed")
    with capture_logs() as lines:
        log.stored(engine.pending, Stale(frozenset(), frozenset({(ready.run.id, "t", -1)})), NOON)
    assert lines == []


def test_the_start_of_a_run_and_the_tries_that_a_stop_has_ended_are_logged():
    engine, log = started(task("a"), task("b"), is_stored=False), TryLog(tells_all=False)
    with capture_logs() as lines:
        log.stored(engine.pending, NOTHING_STALE, NOON)
        engine.pending.mark_stored()
        for ready in list(engine.pending.granted):
            engine.try_ended(Ended(ready.token, "failed", NOON, NOON, "stop", cause="interrupted"), NOON)
        log.stored(engine.pending, NOTHING_STALE, NOON)
        log.stopped()
    assert [line["event"] for line in lines] == ["run.started", "tries.interrupted"]
    assert (lines[1]["n_tries"], lines[1]["then"]) == (2, "they begin again at the next start")
