"""A task that defers itself: its arguments, its resumption, and its end when its trigger does not fire."""

import asyncio
import datetime as dt
import re
from pathlib import Path

import pytest

from asynsched import (
    DAG,
    AsynschedException,
    BaseOperator,
    BaseSensorOperator,
    BaseTrigger,
    DagError,
    DateTimeSensor,
    DateTimeSensorAsync,
    DateTimeTrigger,
    FileSensor,
    StartTriggerArgs,
    TaskFailedEvent,
    TaskSkippedEvent,
    TaskSuccessEvent,
    TimeDeltaSensor,
    TimeSensor,
    TriggerEvent,
    WaitSensor,
    task,
    timezone,
)

EVENTS = {"success": TaskSuccessEvent(xcoms={"rows": 3}), "failed": TaskFailedEvent(), "skipped": TaskSkippedEvent()}
CLEANED: list[str] = []


class Does(BaseTrigger):
    """A trigger that does as it is told, and has `word` as payload."""

    def __init__(self, what, word=None):
        super().__init__()
        self.what, self.word = what, word

    def serialize(self):
        return f"{__name__}.Does", {"what": self.what, "word": self.word}

    async def run(self):
        if self.what in EVENTS:
            yield EVENTS[self.what]
        if self.what == "raises":
            raise ValueError("no luck")
        if self.what == "yields no event":
            yield "text"
        if self.what == "waits":
            await asyncio.sleep(3600)
        if self.what != "ends":
            yield TriggerEvent(self.word)

    async def cleanup(self):
        CLEANED.append(self.what)


class Waiter(BaseOperator):
    def __init__(self, what="fires", word=None, wait=None, given=None, **kwargs):
        super().__init__(**kwargs)
        self.what, self.word, self.wait, self.given = what, word, wait, given

    def execute(self, context):
        self.defer(trigger=Does(self.what, self.word), method_name="go_on", kwargs=self.given, timeout=self.wait)

    def go_on(self, context, event, **given):
        return repr((event, given, context["ti"].try_number))


class WaitingSensor(BaseSensorOperator):
    def __init__(self, what, error=RuntimeError, **kwargs):
        super().__init__(**kwargs)
        self.what, self.error = what, error

    def execute(self, context):
        self.defer(trigger=Does(self.what), method_name="go_on", timeout=0.01)

    def go_on(self, context, event):
        raise self.error("the event is unusable")


def outcome(make, **kwargs):
    """Return the task of a run of just this one."""
    with DAG("d"):
        made = make(task_id="t", **kwargs)
    return made.dag.test().task("t")


def test_a_task_goes_on_with_the_payload_and_its_own_values_as_they_were():
    given = {"day": dt.date(2026, 1, 1), "pair": (1, {"a"}), "length": dt.timedelta(hours=1)}
    ended = outcome(Waiter, word={"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}, given=given)
    assert ended.state == "success"
    assert ended.result == repr(({"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}, given, 1))
    assert CLEANED[-1] == "fires"


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("raises", "TaskDeferralError: Trigger failure: ValueError: no luck"),
        ("ends", "TaskDeferralError: Trigger failure: AsynschedException: <Does> ended without an event"),
        ("yields no event", "TaskDeferralError: Trigger failure: AsynschedException: <Does> must yield a TriggerEvent"),
        ("waits", "TaskDeferralTimeout: Trigger timeout: <Does> did not fire within 0:00:00.010000"),
    ],
)
def test_a_trigger_that_does_not_fire_fails_its_task_and_says_why(what, reason, caplog):
    ended = outcome(Waiter, what=what, wait=0.01, retries=1)
    assert (ended.state, ended.try_number) == ("failed", 2)
    assert ended.reason.startswith(reason)
    # Its author sees the trigger's own frames, and none of asynsched's.
    shown = {Path(path).name for path in re.findall(r'File "([^"]+)", line', caplog.text)}
    assert shown == ({"test_deferral.py"} if what == "raises" else set())


@pytest.mark.parametrize("state", EVENTS)
def test_a_trigger_may_end_its_task_which_is_then_not_retried(state):
    ended = outcome(Waiter, what=state, retries=3)
    assert (ended.state, ended.try_number, ended.reason) == (state, 1, "its trigger has ended it")


def test_the_xcoms_of_a_trigger_that_ends_its_task_are_its_tasks():
    with DAG("d") as dag:

        @task(trigger_rule="all_done")
        def reads(ti=None):
            return ti.xcom_pull(task_ids="t", key="rows")

        Waiter(task_id="t", what="success") >> reads()
    assert dag.test().task("reads").result == 3


@pytest.mark.parametrize(
    ("what", "options", "state", "reason"),
    [
        ("waits", {}, "failed", "AsynschedSensorTimeout: Trigger timeout"),
        ("waits", {"soft_fail": True}, "skipped", "Skipping instead of failing: Trigger timeout"),
        ("waits", {"never_fail": True}, "skipped", "Skipping instead of failing: Trigger timeout"),
        ("raises", {"soft_fail": True}, "skipped", "Skipping instead of failing: Trigger failure: ValueError: no luck"),
        ("raises", {"never_fail": True}, "skipped", "Skipping instead of failing: Trigger failure"),
        ("fires", {"soft_fail": True}, "failed", "RuntimeError: the event is unusable"),
        (
            "fires",
            {"soft_fail": True, "error": AsynschedException},
            "skipped",
            "Skipping instead of failing: the event",
        ),
    ],
)
def test_a_deferred_sensor_fails_or_skips_as_one_that_pokes(what, options, state, reason):
    ended = outcome(WaitingSensor, what=what, **options)
    assert ended.state == state
    assert ended.reason.startswith(reason)


def test_a_task_may_begin_with_a_trigger():
    class Begins(Waiter):
        start_from_trigger = True
        start_trigger_args = StartTriggerArgs(f"{__name__}.Does", "go_on", {"what": "fires", "word": 7}, {"x": (1,)})

        def execute(self, context):
            raise AssertionError("its execute() is not called")

    assert outcome(Begins).result == repr((7, {"x": (1,)}, 1))


class Wrong(BaseOperator):
    def __init__(self, arguments, **kwargs):
        super().__init__(**kwargs)
        self.arguments = arguments

    def execute(self, context):
        self.defer(**{"trigger": Does("fires"), "method_name": "execute", **self.arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trigger": "no trigger"}, "trigger must be a BaseTrigger"),
        ({"method_name": "go_no"}, "Wrong has no method 'go_no'"),
        ({"timeout": -1}, "timeout must not be negative"),
        ({"trigger": Does("fires", object())}, "which cannot be passed on"),
        ({"kwargs": {"given": {1: 2}}}, "keys must be strings"),
    ],
)
def test_a_wrong_deferral_says_what_is_wrong(arguments, message):
    assert message in outcome(Wrong, arguments=arguments).reason


@pytest.mark.parametrize("ago", [dt.timedelta(hours=1), dt.timedelta(seconds=-0.2)])
def test_the_deferrable_sensors_wait_until_it_is_time(ago, tmp_path):
    moment = timezone.utcnow() - ago
    (tmp_path / "there").touch()
    with DAG("d") as dag:
        DateTimeSensorAsync(task_id="datetime", target_time=moment)
        DateTimeSensorAsync(task_id="ended", target_time="{{ params.moment }}", end_from_trigger=True)
        DateTimeSensor(task_id="poked", target_time=moment.isoformat(), poke_interval=0.05)
        TimeSensor(task_id="time", target_time=(timezone.utcnow() - dt.timedelta(seconds=1)).time(), deferrable=True)
        TimeDeltaSensor(task_id="delta", delta=dt.timedelta(seconds=0.1), deferrable=True)
        WaitSensor(task_id="wait", time_to_wait=dt.timedelta(seconds=0.1), deferrable=True)
        WaitSensor(task_id="no_wait", time_to_wait="{{ 0 }}")
        FileSensor(task_id="file", filepath=str(tmp_path / "*"), deferrable=True, start_from_trigger=True)
        dag.params["moment"] = moment.isoformat()
    run = dag.test()
    assert {task.task_id: task.state for task in run.tasks} == dict.fromkeys(dag.task_dict, "success")
    assert timezone.utcnow() > moment


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, TypeError),
        ({"moment": "2026-01-01"}, TypeError),
        ({"moment": dt.datetime(2026, 1, 1)}, ValueError),
        ({"moment": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "target_time": "2026-01-01"}, TypeError),
    ],
)
def test_a_date_time_trigger_refuses_a_moment_that_is_none(arguments, error):
    with pytest.raises(error):
        DateTimeTrigger(**arguments)


def test_dag_error_is_raised_at_once_for_a_trigger_class_that_is_none():
    with DAG("d"), pytest.raises(DagError, match="no start_trigger_args"):
        Waiter(task_id="t").defer_at_start({})


class StartsWith(BaseOperator):
    template_fields = ("word",)
    start_from_trigger = True

    def __init__(self, *, what, **kwargs):
        super().__init__(**kwargs)
        self.word = "{{ ds }}"
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=f"{__name__}.Does", trigger_kwargs={"what": what, "word": self.word}, next_method="done"
        )

    def done(self, context, event=None):
        return event


def test_a_trigger_at_the_start_has_rendered_arguments_and_the_time_of_the_task():
    with DAG("d") as dag:
        StartsWith(task_id="fires", what="fires")
        StartsWith(task_id="waits", what="waits", execution_timeout=dt.timedelta(seconds=0.1))
    run = dag.test(logical_date=dt.datetime(2026, 1, 31, tzinfo=dt.UTC))
    assert run.task("fires").result == "2026-01-31"
    assert "TaskDeferralTimeout" in run.task("waits").reason
