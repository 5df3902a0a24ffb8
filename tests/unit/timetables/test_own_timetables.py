"""A timetable of an author's own: asked ahead of time where its file is parsed, used by the scheduler when due."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from asynsched import DAG, EmptyOperator
from asynsched.errors import PlanNeeded, SerializationError, TimetableError
from asynsched.serialization.decode import decode_dag, restriction
from asynsched.serialization.encode import serialize_dag
from asynsched.serialization.schema import RunByHand, TimetableQuestion
from asynsched.states import DagRunType
from asynsched.timetables import (
    CronDataIntervalTimetable,
    DagRunInfo,
    DataInterval,
    PlannedInterval,
    PlannedRun,
    TimeRestriction,
    Timetable,
    decode,
)
from sandbox.parsing.importing import AskedTimetable

MONDAY = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def day(number):
    return MONDAY + number * DAY


THURSDAY = day(3)


class Workdays(Timetable):
    """As an author would write it for Airflow: it is given pendulum's dates, and gives some."""

    def next_dagrun_info(self, *, last_automated_data_interval, restriction):
        start = restriction.earliest if last_automated_data_interval is None else last_automated_data_interval.end
        while start.weekday() >= 5:
            start = start.add(days=1)
        if restriction.latest is not None and start > restriction.latest:
            return None
        return DagRunInfo.interval(start, start.add(days=1))

    def infer_manual_data_interval(self, *, run_after):
        return DataInterval.exact(run_after.start_of("day"))


class Later(CronDataIntervalTimetable):
    """Extends one of asynsched's own, as it would Airflow's: without the time as an argument, and with pendulum."""

    def next_dagrun_info(self, **question):
        info = super().next_dagrun_info(**question)
        assert info.logical_date.add(days=1) == info.data_interval.end
        return DagRunInfo(info.run_after.add(hours=1), info.data_interval)

    def infer_manual_data_interval(self, *, run_after):
        interval = super().infer_manual_data_interval(run_after=run_after)
        return DataInterval(interval.start.subtract(hours=1), interval.end)


class Answers(Timetable):
    """Returns its argument, or raises it."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def next_dagrun_info(self, *, last_automated_data_interval, restriction):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def asked(timetable, *, now=THURSDAY, end=None, catchup=True):
    with DAG("d", schedule=timetable, start_date=MONDAY, end_date=end, catchup=catchup) as dag:
        EmptyOperator(task_id="only")
    serialized = decode_dag(msgspec.json.encode(serialize_dag(dag)))
    return AskedTimetable(dag, serialized, now), serialized


def days_of(plan):
    return [(run.interval.start - MONDAY).days for run in plan.runs]


def test_it_is_asked_for_the_runs_that_follow_the_last_one():
    plan = asked(Workdays())[0].plan(TimetableQuestion(PlannedRun(day(3), PlannedInterval(day(2), day(3))), n_runs=4))
    assert days_of(plan) == [3, 4, 7, 8]
    assert (plan.after, plan.asked_at, plan.is_complete) == (PlannedInterval(day(2), day(3)), day(3), False)


def test_it_may_say_that_no_run_follows():
    plan = asked(Workdays(), end=day(4))[0].plan(TimetableQuestion(n_runs=50))
    assert (days_of(plan), plan.is_complete) == ([0, 1, 2, 3, 4], True)


def test_of_missed_runs_only_the_newest_is_planned_with_catchup_latest():
    plan = asked(Workdays(), now=day(9) + DAY / 2, catchup="latest")[0].plan(TimetableQuestion(n_runs=3))
    assert days_of(plan) == [8, 9, 10]


def test_one_that_extends_a_known_one_is_told_the_time():
    plan = asked(Later("@daily", "UTC"), now=day(3), catchup=False)[0].plan(TimetableQuestion(n_runs=2))
    assert [run.run_after for run in plan.runs] == [day(3) + timedelta(hours=1), day(4) + timedelta(hours=1)]


class AfterTheRun(Timetable):
    """Implements Airflow 3.3's method: each run begins when the one before was due."""

    def next_dagrun_info_v2(self, *, last_dagrun_info, restriction):
        start = restriction.earliest if last_dagrun_info is None else last_dagrun_info.run_after
        return DagRunInfo(start.add(days=2), DataInterval(start, start.add(days=1)))


def test_one_may_answer_from_the_newest_run_and_not_from_its_data_interval():
    last = PlannedRun(day(4), PlannedInterval(day(2), day(3)))
    assert days_of(asked(AfterTheRun())[0].plan(TimetableQuestion(last, n_runs=2))) == [4, 6]
    assert days_of(asked(AfterTheRun())[0].plan(TimetableQuestion(n_runs=2))) == [0, 2]


def test_it_says_the_data_interval_of_a_manual_run():
    noon = day(3) + DAY / 2
    assert asked(Workdays())[0].by_hand(RunByHand(noon, noon)) == (PlannedInterval(day(3), day(3)), "")
    extended, _ = asked(Later("@daily", "UTC"))[0].by_hand(RunByHand(noon, noon))
    assert extended == PlannedInterval(day(2) - timedelta(hours=1), day(3))
    assert asked(Answers())[0].by_hand(RunByHand(noon)) == (None, ""), "a run without a date has no data interval"
    assert DagRunInfo(day(3), None).logical_date is None


class Named(Workdays):
    """Names runs by their day; `name` is returned in place of such a name."""

    def __init__(self, name=None):
        self.name = name

    def generate_run_id(self, *, run_type, run_after, data_interval, **extra):
        if self.name is not None:
            return self.name
        if run_type == DagRunType.SCHEDULED:
            return data_interval.end.format("YYYY-MM-DD_dddd") + str(extra["partition_key"] or "")
        return super().generate_run_id(run_type=run_type, run_after=run_after.add(days=1), data_interval=data_interval)


def test_it_names_runs_of_the_schedule_and_those_that_are_triggered_without_a_name():
    asking, _ = asked(Named())
    plan = asking.plan(TimetableQuestion(n_runs=1))
    assert (plan.runs[0].run_id, plan.names_runs) == ("2026-06-02_Tuesday", True)
    assert asking.by_hand(RunByHand(day(1))) == (None, "manual__2026-06-03T00:00:00+00:00")
    materialized = RunByHand(day(1), day(5), run_type=DagRunType.ASSET_MATERIALIZATION)
    assert asking.by_hand(materialized)[1] == "asset_materialization__2026-06-03T00:00:00+00:00"
    # As in Airflow, backfills and the operator that triggers runs name these.
    [of_backfill] = asking.plan(TimetableQuestion(n_runs=1, span=PlannedInterval(day(1), day(2)))).runs
    assert of_backfill.run_id == ""
    assert asked(Workdays())[0].plan(TimetableQuestion(n_runs=1)).names_runs is False


@pytest.mark.parametrize(
    ("given", "is_named"),
    [
        ({"run_id": "mine", "run_type": DagRunType.MANUAL}, True),
        ({"run_id": None, "run_type": DagRunType.OPERATOR_TRIGGERED}, True),
        ({"run_id": None, "run_type": DagRunType.MANUAL}, False),
    ],
)
def test_it_is_not_asked_to_name_a_run_that_has_a_name(given, is_named):
    question = TimetableQuestion.about_run(day(1), date=None, run_after=None, **given)
    fails = asked(Named("no name"))[0].by_hand
    if is_named:
        assert fails(question.run_by_hand) == (None, "")
    else:
        with pytest.raises(TimetableError):
            fails(question.run_by_hand)


@pytest.mark.parametrize("name", ["", "a/b", "..", "latest", "a b", "two\nlines", "line\n", "x" * 251, 7])
def test_a_name_that_no_run_can_have_is_refused(name):
    with pytest.raises(TimetableError, match="its timetable Named gives the run id"):
        asked(Named(name))[0].plan(TimetableQuestion(n_runs=1))


RUN = DagRunInfo.interval(day(0), day(1))


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([ValueError("no calendar")], "Answers raised ValueError: no calendar"),
        ([5], "run_after is not a datetime: 5"),
        ([DagRunInfo(datetime(2026, 6, 1), RUN.data_interval)], "naive date 2026-06-01T00:00:00 as run_after"),
        ([DagRunInfo.interval(datetime(2026, 6, 1), day(1))], "naive date 2026-06-01T00:00:00 as start"),
        ([DagRunInfo.interval(day(1), day(0))], "ends at 2026-06-01.* before it starts"),
        ([RUN, RUN], "each must start later than the one before"),
        ([RUN, DagRunInfo.interval(day(-1), day(3))], "each must start later than the one before"),
        ([RUN, DagRunInfo(day(0), DataInterval(day(1), day(2)))], "must not be due earlier than the one before"),
    ],
    ids=str,
)
def test_nonsense_is_an_error_that_names_the_dag_and_the_class(answers, says):
    with pytest.raises(TimetableError, match=says) as caught:
        asked(Answers(*answers))[0].plan(TimetableQuestion())
    assert str(caught.value).startswith("DAG 'd': its timetable Answers ")


def test_a_timetable_that_has_no_manual_interval_says_so():
    with pytest.raises(TimetableError, match="Answers has no infer_manual_data_interval"):
        asked(Answers())[0].by_hand(RunByHand(MONDAY, MONDAY))


@pytest.mark.parametrize("attribute", ["summary", "description"])
def test_a_description_that_raises_names_the_dag_and_the_class(attribute):
    broken = type("Broken", (Workdays,), {attribute: property(lambda self: 1 / 0)})
    with pytest.raises(SerializationError, match=r"DAG 'd': its timetable Broken .* ZeroDivisionError"):
        asked(broken())


# What the scheduler makes of it


def planned(catchup=True):
    question, serialized = asked(Workdays(), now=day(2), catchup=catchup)
    plan = question.plan(TimetableQuestion(PlannedRun(day(2), PlannedInterval(day(1), day(2))), n_runs=3))
    return decode(serialized.timetable).planned(msgspec.json.decode(msgspec.json.encode(plan), type=type(plan)))


def test_the_scheduler_uses_the_planned_runs_one_after_the_other():
    timetable = planned()
    bounds, last, found = TimeRestriction(MONDAY, None, True), DataInterval(day(1), day(2)), []
    for _ in range(3):
        info = timetable.next_run(last, bounds, day(2))
        last = info.data_interval
        found.append(info.run_after)
    assert found == [day(3), day(4), day(5)]
    assert timetable.n_left(DataInterval(day(1), day(2))) == 3
    assert timetable.n_left(last) == 0


@pytest.mark.parametrize(
    ("last", "now", "catchup"),
    [
        pytest.param(DataInterval(day(4), day(5)), day(2), True, id="they are used up"),
        pytest.param(DataInterval(day(0), day(1)), day(2), True, id="the last run is another than was assumed"),
        pytest.param(None, day(2), True, id="there was no run yet"),
        pytest.param(DataInterval(day(1), day(2)), day(3) + timedelta(minutes=2), False, id="it is late"),
    ],
)
def test_the_author_s_code_is_asked_again_when(last, now, catchup):
    with pytest.raises(PlanNeeded):
        planned(catchup).next_run(last, TimeRestriction(MONDAY, None, catchup), now)


def test_a_run_on_time_or_with_catchup_is_not_asked_about_again():
    last = DataInterval(day(1), day(2))
    for now, catchup in ((day(3) + timedelta(seconds=30), False), (day(9), True)):
        assert planned(catchup).next_run(last, TimeRestriction(MONDAY, None, catchup), now).run_after == day(3)


def test_the_planned_runs_are_no_part_of_the_version():
    _, serialized = asked(Workdays())
    assert restriction(serialized).catchup is True
    assert serialized.timetable == {
        "kind": "custom", "name": "Workdays", "fields": {}, "summary": "Workdays", "description": "",
        "can_be_scheduled": True, "active_runs_limit": None,
    }  # fmt: skip
