"""Which queued runs start: limits, pauses, and turns between DAGs."""

from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asynsched.keys import DagRunKey
from asynsched.scheduling.admission import A_FEW, Admission
from asynsched.store.runs.queue import QueuedGroup, QueuedRun

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def queued(number, dag_id, *, minutes=0, asked=None, is_paused=False, max_active_runs=1, **backfill):
    """Return a queued run; `asked`: the minute at which it was triggered, for a later one."""
    return QueuedRun(
        id=number, dag_id=dag_id, run_id=f"run-{number}", run_type="scheduled" if asked is None else "manual",
        state="queued", run_after=NOON + timedelta(minutes=minutes), logical_date=None, data_interval_start=None,
        data_interval_end=None, queued_at=NOON + timedelta(minutes=minutes if asked is None else asked),
        started_at=None, conf={}, lease_epoch=1, version_id=1,
        is_paused=is_paused, max_active_runs=max_active_runs, **backfill,
    )  # fmt: skip


def test_a_dag_with_a_thousand_queued_runs_does_not_hold_up_a_dag_with_one():
    admission = Admission(at_once=4)
    for number in range(1000):
        admission.add(queued(number, "busy", max_active_runs=1000))
    admission.add(queued(1000, "small", minutes=99))
    assert [run.dag_id for run in admission.admit()] == ["busy", "small", "busy", "busy"]


def test_what_an_unpaused_dag_has_waiting_takes_turns_in_order_of_arrival():
    admission = Admission(at_once=20)
    for number in range(20):
        admission.add(queued(number, "d", is_paused=True, backfill_id=number, backfill_max_active_runs=1))
    admission.update_dag("d", is_paused=False, max_active_runs=1)
    assert [run.id for run in admission.admit()] == list(range(20)), "this order is that of a set of texts"


def test_a_dag_stays_known_while_others_are_counted_to_run_it():
    """Otherwise that count would never be read again, and would hold up the next run."""
    admission = Admission(20)
    for n_runs, known in ((1, {"a"}), (0, set())):
        admission.note_elsewhere({("a", None): n_runs})
        assert admission.dag_ids == known


def test_a_run_that_is_left_to_others_holds_up_no_other_of_its_dag():
    admission, waiting = Admission(at_once=4), {}
    for number in range(100):
        run = queued(number, "d", max_active_runs=1)
        waiting[run.key] = run
        admission.add(run)
    started = []
    while (admitted := admission.admit()) or (wanted := admission.to_read()):
        if not admitted:
            [(_, n)] = wanted
            found = first_of(waiting, "d", n)
            admission.take_first(("d", None), found, is_all=len(found) < n)
            continue
        [run] = admitted
        if run.id in (0, 50):
            admission.leave_to_others(run)
            continue
        del waiting[run.key]
        admission.ended(run.key)
        started.append(run.id)
    assert started == [number for number in range(100) if number not in (0, 50)]
    admission.add(waiting.pop(queued(50, "d").key))
    assert [run.id for run in admission.admit()] == [50], "it was announced again"


def test_a_dag_that_left_many_runs_to_others_waits_until_all_are_reread():
    admission = Admission(at_once=2)
    for number in range(9):
        admission.add(queued(number, "d", max_active_runs=9))
    for _ in range(2):
        [run] = admission.admit(at_most=1)
        admission.leave_to_others(run)
    assert not admission.may_start_any


def first_of(waiting, dag_id, n):
    """Return the database's answer: this many of the queued runs of a DAG, the oldest first."""
    found = [run for run in waiting.values() if run.dag_id == dag_id]
    return sorted(found, key=lambda run: (run.run_after, run.id))[:n]


def test_the_oldest_queued_runs_are_kept_in_memory_and_all_start_in_order():
    admission, waiting = Admission(at_once=2), {}
    for number in range(1000):
        run = queued(number, "busy", minutes=1000 - number if number % 2 else number)
        waiting[run.key] = run
        admission.add(run)
        assert len(admission.waiting_of(["busy"])) <= 2 + A_FEW
    started = []
    while waiting:
        for (dag_id, _), n in admission.to_read():
            assert n <= 1 + A_FEW
            found = first_of(waiting, dag_id, n)
            admission.take_first((dag_id, None), found, is_all=len(found) < n)
        [run] = admission.admit()
        del waiting[run.key]
        admission.ended(run.key)
        started.append(run)
    assert started == sorted(started, key=lambda run: (run.run_after, run.id))
    assert not admission.may_start_any
    assert admission.dag_ids == set()


class Admitting(RuleBasedStateMachine):
    """Any order of events against a model that looks through everything; memory has few of the queued runs."""

    def __init__(self):
        super().__init__()
        self.admission = Admission(at_once=1)
        self.limits = {dag_id: [False, 1] for dag_id in "abc"}
        self.waiting = {}
        self.active = set()
        self.n_runs = 0
        self.minute = 0

    def may_start(self, dag_id):
        is_paused, limit = self.limits[dag_id]
        n_active = sum(key.dag_id == dag_id for key in self.active)
        oldest = first_of(self.waiting, dag_id, 1)
        now = NOON + timedelta(minutes=self.minute)
        is_due = any(run.run_after <= max(now, run.queued_at) for run in oldest)
        return not is_paused and n_active < limit and is_due

    @rule(dag_id=st.sampled_from("abc"), minutes=st.integers(0, 5))
    def add(self, dag_id, minutes):
        self.n_runs += 1
        is_paused, limit = self.limits[dag_id]
        run = queued(self.n_runs, dag_id, minutes=minutes, is_paused=is_paused, max_active_runs=limit)
        self.admission.add(run)
        self.admission.add(run)  # announced twice
        self.waiting[run.key] = run

    @rule(dag_id=st.sampled_from("abc"), minutes=st.integers(1, 5))
    def add_for_later(self, dag_id, minutes):
        self.n_runs += 1
        is_paused, limit = self.limits[dag_id]
        later = {"minutes": self.minute + minutes, "asked": self.minute}
        run = queued(self.n_runs, dag_id, is_paused=is_paused, max_active_runs=limit, **later)
        self.admission.add(run)
        self.waiting[run.key] = run

    @rule(minutes=st.integers(1, 3))
    def pass_time(self, minutes):
        self.minute += minutes
        self.admission.time_passed(NOON + timedelta(minutes=self.minute))

    @rule(dag_id=st.sampled_from("abc"), is_paused=st.booleans(), limit=st.integers(1, 3))
    def change_dag(self, dag_id, is_paused, limit):
        self.limits[dag_id] = [is_paused, limit]
        self.admission.update_dag(dag_id, is_paused=is_paused, max_active_runs=limit)

    @rule(data=st.data())
    def end(self, data):
        if self.active:
            key = data.draw(st.sampled_from(sorted(self.active)))
            self.active.discard(key)
            self.admission.ended(key)

    @rule(data=st.data())
    def cancel(self, data):
        if self.waiting:
            key = data.draw(st.sampled_from(sorted(self.waiting)))
            del self.waiting[key]
            self.admission.withdraw(key)

    @rule(dag_id=st.sampled_from("abc"), minutes=st.integers(0, 5))
    def add_many(self, dag_id, minutes):
        for _ in range(A_FEW):
            self.add(dag_id, minutes)

    @rule(dag_id=st.sampled_from("abc"))
    def lose_a_message(self, dag_id):
        """A run is made without an announcement, until a sweep finds it."""
        self.n_runs += 1
        is_paused, limit = self.limits[dag_id]
        run = queued(self.n_runs, dag_id, minutes=-1, is_paused=is_paused, max_active_runs=limit)
        self.waiting[run.key] = run
        self.sweep()

    @rule()
    def sweep(self):
        dag_ids = sorted({key.dag_id for key in self.waiting})
        groups = [QueuedGroup(dag_id, *self.limits[dag_id]) for dag_id in dag_ids]
        assert list(self.admission.read_anew(groups)) == groups

    @rule()
    def admit(self):
        while wanted := self.admission.to_read():
            for (dag_id, _), n in wanted:
                is_paused, limit = self.limits[dag_id]
                found = first_of(self.waiting, dag_id, n)
                rows = [msgspec.structs.replace(run, is_paused=is_paused, max_active_runs=limit) for run in found]
                self.admission.take_first((dag_id, None), rows, is_all=len(found) < n)
        could_start = any(map(self.may_start, "abc"))
        admitted = self.admission.admit()
        assert bool(admitted) == could_start
        for run in admitted:
            assert self.may_start(run.dag_id)
            oldest = min((r.run_after, r.id) for r in self.waiting.values() if r.dag_id == run.dag_id)
            assert (run.run_after, run.id) == oldest
            del self.waiting[run.key]
            self.active.add(DagRunKey(run.dag_id, run.run_id))

    @invariant()
    def whatever_could_start_is_known(self):
        # The withdrawn run may have been the last: that is known after a read.
        assert self.admission.may_start_any or not any(map(self.may_start, "abc"))
        assert self.admission.next_start is None or self.admission.next_start > NOON + timedelta(minutes=self.minute)
        assert len(self.admission.waiting_of("abc")) <= 3 * (1 + A_FEW)
        assert self.admission.dag_ids >= {key.dag_id for key in self.waiting} | {key.dag_id for key in self.active}


TestAdmitting = Admitting.TestCase
TestAdmitting.settings = settings(max_examples=60)


def test_a_backfill_has_its_own_limit_and_waits_while_it_or_its_dag_pauses():
    admission = Admission(at_once=10)
    for number in range(4):
        admission.add(queued(number, "dag", minutes=number, max_active_runs=1))
        admission.add(queued(10 + number, "dag", minutes=number, backfill_id=7, backfill_max_active_runs=2))
    admitted = admission.admit()
    assert sorted(run.id for run in admitted) == [0, 10, 11]
    assert "max_active_runs of the backfill 7 is 2" in admission.verdict("dag", 7).reason
    admission.ended(admitted[0].key)
    assert [run.id for run in admission.admit()] == [1]
    paused = queued(12, "dag", minutes=2, backfill_id=7, backfill_max_active_runs=2, backfill_is_paused=True)
    admission.add(paused)
    admission.ended(DagRunKey("dag", "run-10"))
    assert admission.admit() == []
    assert "unpause 7" in admission.verdict("dag", 7).release
    admission.add(msgspec.structs.replace(paused, backfill_is_paused=False))
    admission.update_dag("dag", is_paused=True, max_active_runs=9)
    assert admission.admit() == []
    admission.update_dag("dag", is_paused=False, max_active_runs=1)
    assert [run.id for run in admission.admit()] == [12]
    for number in range(20, 23):
        day = NOON + timedelta(days=number)
        run = queued(number, "other", backfill_id=8, backfill_max_active_runs=1, backfill_is_reverse=True)
        admission.add(msgspec.structs.replace(run, logical_date=day))
    assert [run.id for run in admission.admit()] == [22]
    for number in range(30, 33):
        date = NOON + timedelta(days=number)
        options = {"backfill_id": 9, "backfill_max_active_runs": 1, "backfill_is_reverse": True}
        admission.add(queued(number, "parts", minutes=number, partition_date=date, **options))
    assert [run.id for run in admission.admit()] == [32]
