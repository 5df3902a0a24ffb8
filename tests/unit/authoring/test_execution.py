"""What a task is given when it runs, and what becomes of its result."""

import datetime as dt
import logging
import os

import msgspec
import pytest

from asynsched import (
    DAG,
    AsynschedException,
    AsynschedFailException,
    AsynschedSensorTimeout,
    AsynschedSkipException,
    BaseNotifier,
    BashOperator,
    Connection,
    DagError,
    FileSensor,
    Param,
    ParamValidationError,
    PythonOperator,
    PythonSensor,
    TimeDeltaSensor,
    Variable,
    XComNotFound,
    get_current_context,
    literal,
    task,
)
from asynsched.authoring.running.context import build_context
from asynsched.authoring.running.dag_run import RunFacts
from asynsched.authoring.running.execution import execute
from asynsched.authoring.running.task_instance import TaskInstanceFacts
from asynsched.authoring.supervisor import SupervisorError, set_supervisor
from asynsched.errors import AsynschedError
from asynsched.foreground.run import run_in_foreground
from asynsched.foreground.supervisor import MemorySupervisor
from asynsched.store.dag_runs import DagRunRow

DATE = dt.datetime(2024, 5, 1, 12, 30, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


@pytest.fixture
def supervisor():
    memory = MemorySupervisor({"plain": "text", "data": '{"a": [1]}'}, {"db": {"host": "h", "password": "p"}})
    set_supervisor(memory)
    yield memory
    set_supervisor(None)


@pytest.fixture
def dag():
    return DAG("d", start_date=DATE, params={"n": Param(1, type="integer"), "free": "x"})


def run(operator, *, logical_date=DATE, conf=None, **facts):
    return execute(operator, context_of(operator, logical_date=logical_date, conf=conf, **facts))


def context_of(operator, *, logical_date=DATE, conf=None, **facts):
    interval = {} if logical_date is None else {"data_interval_start": DATE - DAY, "data_interval_end": DATE}
    about = RunFacts(
        dag_id="d", run_id="r1", run_type="manual", run_after=DATE, logical_date=logical_date, conf=conf, **interval
    )
    return build_context(operator, about, TaskInstanceFacts(**facts))


def rendered(dag, template, **kwargs):
    name = f"t{len(dag.tasks) or ''}"
    operator = PythonOperator(task_id=name, dag=dag, python_callable=lambda x: x, op_args=[template])
    return run(operator, **kwargs).value


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ ds }} {{ ds_nodash }}", "2024-05-01 20240501"),
        ("{{ ts }}", "2024-05-01T12:30:00+00:00"),
        ("{{ ts_nodash }} {{ ts_nodash_with_tz }}", "20240501T123000 20240501T123000+0000"),
        ("{{ data_interval_start | ds }}..{{ data_interval_end | ts_nodash }}", "2024-04-30..20240501T123000"),
        ("{{ logical_date | ds_nodash }} {{ logical_date | ts_nodash_with_tz }}", "20240501 20240501T123000+0000"),
        ("{{ dag.dag_id }} {{ task.task_id }} {{ ti.try_number }} {{ run_id }}", "d t 1 r1"),
        ("{{ dag_run.run_type }} {{ dag_run.logical_date.year }}", "manual 2024"),
        ("{{ task_instance_key_str }}", "d__t__20240501"),
        ("{{ data_interval_start.subtract(days=1).in_timezone('Asia/Tokyo') }}", "2024-04-29 21:30:00+09:00"),
        ("{{ logical_date.add(weeks=1).format('YYYY/MM/DD') }} {{ dag_run.run_after.day }}", "2024/05/08 1"),
        ("{{ macros.datetime_diff_for_humans(data_interval_start, logical_date) }}", "1 day before"),
        ("{{ params.n }} {{ params['free'] }} {{ conf }}", "1 x {}"),
        ("{{ macros.ds_add(ds, -1) }} {{ macros.ds_format(ds, '%Y-%m-%d', '%d.%m.') }}", "2024-04-30 01.05."),
        ("{{ macros.datetime(2024, 1, 1).year }} {{ macros.json.dumps([1]) }}", "2024 [1]"),
        ("{{ var.value.plain }} {{ var.json.data.a }} {{ var.value.get('no', 'default') }}", "text [1] default"),
        ("{{ conn.db.host }} {{ conn.get('no', 'none') }}", "h none"),
        ("{{ prev_start_date_success }}", "None"),
        (["a", {"k": ("{{ ds }}",)}], ["a", {"k": ("2024-05-01",)}]),
        ("no template\n", "no template"),
        (literal("{{ ds }}"), "{{ ds }}"),
    ],
)
def test_templates_have_airflows_variables(dag, supervisor, template, expected):
    assert rendered(dag, template) == expected


PREVIOUS = {
    "prev_data_interval_start_success": "2024-04-28T00:00:00+00:00",
    "prev_data_interval_end_success": "2024-04-29T00:00:00+00:00",
    "prev_start_date_success": "2024-04-29T00:01:00+00:00",
    "prev_end_date_success": "2024-04-29T00:02:00+00:00",
}


@pytest.fixture
def asked(supervisor):
    """Return the arguments of each question for the run before."""
    asked = []

    def answer(**arguments):
        asked.append(arguments)
        start, end, started, ended = map(dt.datetime.fromisoformat, PREVIOUS.values())
        row = DagRunRow(
            1, "d", "r0", "scheduled", "success", "", start, start, end, end, end, started, ended, {}, 1, "", 1
        )
        return msgspec.to_builtins(row)

    supervisor._answer_previous_run = answer
    return asked


@pytest.mark.parametrize(
    "read",
    [
        lambda context: context,
        lambda context: {name: context[name] for name in PREVIOUS},
        lambda context: {name: context.get(name) for name in PREVIOUS},
        lambda context: {**context},
        lambda context: context.copy(),
        lambda context: dict(context.items()),
        lambda context: dict(zip(context, context.values(), strict=True)),
        lambda context: (lambda **kwargs: kwargs)(**context),
    ],
)
def test_the_dates_of_the_last_success_are_asked_for_once_however_they_are_read(dag, asked, read):
    context = context_of(PythonOperator(task_id="t", dag=dag, python_callable=print))
    assert asked == []
    found = read(context)
    assert {name: found[name].isoformat() for name in PREVIOUS} == PREVIOUS
    assert asked == [{"state": "success"}]


def test_the_dates_of_the_last_success_are_asked_for_only_where_they_are_used(dag, asked):
    def takes(prev_end_date_success, ds):
        return [prev_end_date_success.isoformat(), ds]

    def takes_all(**context):
        return context["prev_end_date_success"].isoformat()

    end = PREVIOUS["prev_end_date_success"]
    assert rendered(dag, "{{ ds }}") == "2024-05-01"
    assert asked == []
    assert rendered(dag, "{{ prev_end_date_success | ts }} {{ prev_start_date_success | ds }}") == f"{end} 2024-04-29"
    assert run(PythonOperator(task_id="a", dag=dag, python_callable=takes)).value == [end, "2024-05-01"]
    assert run(PythonOperator(task_id="b", dag=dag, python_callable=takes_all)).value == end
    assert len(asked) == 3
    assert rendered(dag, "{{ prev_end_date_success }}", logical_date=None) == "None"
    assert len(asked) == 3


def test_the_run_and_the_task_instance_before_are_objects(dag, asked, supervisor):
    ti = context_of(PythonOperator(task_id="t", dag=dag, python_callable=print), try_number=3)["ti"]
    before = ti.get_previous_dagrun()
    assert (before.run_id, before.run_type, before.state, before.conf) == ("r0", "scheduled", "success", {})
    assert before.end_date.diff(before.start_date).in_seconds() == 60
    fields = {"dag_id": "d", "run_id": "r0", "task_id": "t", "map_index": -1, "state": "failed", "try_number": 2}
    dates = dict.fromkeys(("logical_date", "started_at"), "2024-04-29T00:00:00Z") | {"ended_at": "2024-04-29T00:01:00Z"}
    wanted = []
    supervisor._answer_previous_task_instance = lambda **arguments: wanted.append(arguments) or fields | dates
    found = ti.get_previous_ti(state="failed")
    assert wanted == [{"task_id": "t", "before": DATE.isoformat(), "map_index": -1, "state": "failed"}]
    assert (found.try_number, found.duration, found.start_date.add(days=1).day) == (2, 60, 30)
    assert ti.log_url == "asynsched tasks logs d r1 t --try 3"
    with pytest.raises(SupervisorError, match="run_count cannot be answered in a run without a scheduler"):
        ti.get_dr_count("d")


def test_dates_are_undefined_without_a_logical_date(dag):
    with pytest.raises(AsynschedException, match=r"'op_args' cannot be rendered: 'ds' is undefined"):
        rendered(dag, "{{ ds }}", logical_date=None)
    assert rendered(dag, "{{ task_instance_key_str }}", logical_date=None) == "d__t1__r1"


def test_conf_overrides_params_and_must_fit_them(dag):
    assert rendered(dag, "{{ params.n }} {{ dag_run.conf.extra }}", conf={"n": 5, "extra": 1}) == "5 1"
    with pytest.raises(ParamValidationError, match=r"run 'r1': param 'n': 'x' is not of type 'integer'"):
        rendered(dag, "", conf={"n": "x"})


def test_templates_come_from_files_and_native_dags_render_to_values(tmp_path):
    (tmp_path / "query.sql").write_text("select {{ params.n }}")
    dag = DAG("d", params={"n": 3}, template_searchpath=str(tmp_path), render_template_as_native_obj=True)
    operator = PythonOperator(
        task_id="t", dag=dag, python_callable=lambda *a: a, op_args=["query.sql", "{{ [params.n] }}"],
        templates_exts=[".sql"],
    )  # fmt: skip
    assert run(operator).value == ("select 3", [3])
    missing = PythonOperator(task_id="m", dag=dag, python_callable=print, op_args=["no.sql"], templates_exts=[".sql"])
    with pytest.raises(AsynschedException, match=r"Task\(PythonOperator\): m.*'op_args'.*no\.sql"):
        run(missing)


def test_templates_cannot_reach_pythons_internals(dag):
    with pytest.raises(AsynschedException, match="unsafe"):
        rendered(dag, "{{ dag.__class__.__mro__ }}")


def test_a_function_gets_of_the_context_what_it_asks_for(dag, supervisor):
    def ask(a, b=2, *, ds, ti=None, **rest):
        return [a, b, ds, ti.task_id, "dag_run" in rest, "a" in rest]

    assert run(PythonOperator(task_id="t", dag=dag, python_callable=ask, op_args=[1])).value == [
        1, 2, "2024-05-01", "t", True, False
    ]  # fmt: skip
    assert run(PythonOperator(task_id="u", dag=dag, python_callable=max, op_args=[1, 2])).value == 2
    with pytest.raises(AsynschedError, match="inside of a running task"):
        get_current_context()


def test_branches_are_checked_and_short_circuits_reported(dag, supervisor):
    with dag:

        def choose(**context):
            return context["params"]["free"]

        branch = task.branch(choose)().operator
        stop = task.short_circuit(ignore_downstream_trigger_rules=False)(lambda: 0).override(task_id="stop")().operator
    with pytest.raises(DagError, match="branch 'choose' chose 'x': no task and no task group of DAG 'd'"):
        run(branch)
    result = run(branch, conf={"free": "stop"})
    assert (result.follow, result.short_circuit) == (("stop",), None)
    assert run(stop).short_circuit is False


def test_multiple_outputs_push_each_item(dag, supervisor):
    def make() -> dict:
        return {"a": 1, "b": [2]}

    with dag:
        made = task(make)()
        show = task(lambda *x: x).override(task_id="show")(made["a"], made["b"], made["never"]).operator
    supervisor.running_task = "make"
    run(made.operator)
    supervisor.running_task = "show"
    assert run(show).value == (1, [2], None)


def test_an_unknown_xcom_key_fails_and_a_missing_result_is_none(dag, supervisor):
    with dag:
        first = PythonOperator(task_id="first", python_callable=lambda: None)
        good = PythonOperator(task_id="good", python_callable=lambda x: x is None, op_args=[first.output])
        bad = PythonOperator(task_id="bad", python_callable=print, op_args=[first.output["key"]])
        text = PythonOperator(task_id="text", python_callable=lambda x: x, op_args=[f"<{first.output}>"])
    assert run(good).value is True
    with pytest.raises(XComNotFound, match="task 'first' pushed no XCom 'key'"):
        run(bad)
    supervisor.keep_result("first", 7)
    assert run(text).value == "<7>"


def test_hooks_run_around_the_task_in_order(dag):
    seen = []

    class Noisy(PythonOperator):
        def pre_execute(self, context):
            seen.append("pre_execute")

        def post_execute(self, context, result=None):
            seen.append(f"post_execute {result}")

    def broken(context):
        seen.append("on_execute")
        raise RuntimeError("ignored")

    operator = Noisy(
        task_id="t", dag=dag, python_callable=lambda: 1, on_execute_callback=[broken],
        pre_execute=lambda context: seen.append("pre"), post_execute=lambda context, result: seen.append("post"),
    )  # fmt: skip
    run(operator)
    assert seen == ["pre", "pre_execute", "on_execute", "post", "post_execute 1"]


def test_bash_sees_its_environment_and_exit_codes_decide(dag, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="asynsched")
    script = tmp_path / "script.sh"
    script.write_text("echo {{ ds }}\necho $AIRFLOW_CTX_TASK_ID $HOME\n")
    dag.template_searchpath.append(str(tmp_path))
    assert run(BashOperator(task_id="s", dag=dag, bash_command="script.sh", env={"HOME": "h"})).value == "s h"
    assert "2024-05-01" in [record.getMessage() for record in caplog.records]
    here = BashOperator(task_id="c", dag=dag, bash_command="pwd", cwd=str(tmp_path), output_processor=str.upper)
    assert run(here).value == str(tmp_path).upper()
    inherits = BashOperator(task_id="i", dag=dag, bash_command="echo $PATH$X", append_env=True, env={"X": "!"})
    assert run(inherits).value == os.environ["PATH"] + "!"
    with pytest.raises(AsynschedSkipException):
        run(BashOperator(task_id="k", dag=dag, bash_command="exit 99"))
    for code in (1, 98):
        with pytest.raises(AsynschedException, match=f"exit code {code}"):
            run(BashOperator(task_id=f"f{code}", dag=dag, bash_command=f"exit {code}", skip_on_exit_code=[97]))
    with pytest.raises(AsynschedException, match="no folder"):
        run(BashOperator(task_id="n", dag=dag, bash_command="pwd", cwd="/nowhere"))


def test_a_timeout_ends_the_command_too(dag, tmp_path):
    mark = tmp_path / "pid"
    slow = BashOperator(
        task_id="slow", dag=dag, bash_command=f"echo $$ > {mark}; exec sleep 600", execution_timeout=0.5
    )
    run_of_it = run_in_foreground(slow.dag)
    assert "execution_timeout of 0.5 s is over" in run_of_it.task("slow").reason
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_sensors_wait_time_out_skip_and_look_again(dag, supervisor, tmp_path, monkeypatch):
    wanted = tmp_path / "sub" / "file.txt"
    looks = {"poke_interval": 0, "timeout": 0, "dag": dag}
    missing = FileSensor(task_id="f", filepath=wanted, **looks)
    with pytest.raises(AsynschedSensorTimeout, match="its timeout is 0"):
        run(missing)
    with pytest.raises(AsynschedSkipException):
        run(FileSensor(task_id="soft", filepath=wanted, soft_fail=True, **looks))
    wanted.parent.mkdir()
    wanted.write_text("")
    monkeypatch.setenv("AIRFLOW_CONN_FOLDER", f'{{"conn_type": "fs", "extra": {{"path": "{tmp_path}"}}}}')
    assert run(FileSensor(task_id="g", filepath="**/*.txt", recursive=True, fs_conn_id="folder", **looks)).value is None

    def broken():
        raise RuntimeError("down")

    with pytest.raises(RuntimeError):
        run(PythonSensor(task_id="b", python_callable=broken, **looks))
    with pytest.raises(AsynschedSkipException, match="down"):
        run(PythonSensor(task_id="never", python_callable=broken, never_fail=True, **looks))
    with pytest.raises(AsynschedSensorTimeout):
        run(PythonSensor(task_id="silent", python_callable=broken, silent_fail=True, **looks))
    run(TimeDeltaSensor(task_id="past", delta=60, **looks))
    for deferrable in (False, True):
        run(TimeDeltaSensor(task_id=f"delta_{deferrable}", delta=60, deferrable=deferrable, **looks))
        run(FileSensor(task_id=f"file_{deferrable}", filepath=wanted, deferrable=deferrable, **looks))


def test_the_looks_of_a_sensor_grow_apart_as_airflows_do(dag):
    def sensor(**options):
        growing = {"exponential_backoff": True, "poke_interval": 10, "task_id": f"s{len(dag.tasks)}", **options}
        return PythonSensor(python_callable=lambda: False, dag=dag, **growing)

    poking, bounded = sensor(), sensor(max_wait=60)
    for n, least in enumerate([5, 10, 20, 40, 80], start=1):
        assert least <= poking._next_interval(n, 0.0, DATE) < 2 * least
        assert bounded._next_interval(n, 0.0, DATE) <= 60
    assert poking._next_interval(4, 0.0, DATE) == poking._next_interval(4, 0.0, DATE)
    assert sensor(timeout=100)._next_interval(4, 97.5, DATE) == 3
    rescheduled = sensor(mode="reschedule")
    passed = 0.0
    for n in range(1, 6):
        # A new process makes each look, and knows only when the first one was.
        assert rescheduled._next_interval(1, passed, DATE) == rescheduled._grown_interval(n, DATE)
        passed += rescheduled._grown_interval(n, DATE)
    assert sensor(exponential_backoff=False)._next_interval(9, 0.0, DATE) == 10


def test_failures_retry_fail_or_end_at_once_with_their_callbacks(dag):
    called = []

    class Notify(BaseNotifier):
        template_fields = ("text",)

        def __init__(self, text):
            self.text = text

        def notify(self, context):
            called.append(self.text)

    def give_up():
        raise AsynschedFailException("enough")

    tries = []

    def flaky():
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("again")

    says = {f"on_{event}_callback": Notify("{{ ti.task_id }} " + event) for event in ("retry", "success", "failure")}
    with dag:
        PythonOperator(task_id="give_up", python_callable=give_up, retries=5, **says)
        PythonOperator(task_id="flaky", python_callable=flaky, retries=2, **says)
        PythonOperator(task_id="leave", python_callable=lambda: exit(3), retries=0, **says)
        PythonSensor(task_id="wait", python_callable=lambda: False, poke_interval=0, timeout=0, retries=5, **says)
    dag.on_failure_callback = [lambda context: called.append(context["reason"])]
    ended = run_in_foreground(dag)
    assert [(task.try_number, str(task.state)) for task in ended.tasks] == [
        (1, "failed"),
        (3, "success"),
        (1, "failed"),
        (1, "failed"),
    ]
    assert called == [
        "flaky retry", "give_up failure", "leave failure", "wait failure", "flaky retry", "flaky success",
        "task_failure",
    ]  # fmt: skip
    assert ended.task("leave").reason == "SystemExit: 3"


def test_in_the_foreground_too_a_dag_that_fails_fast_gives_up_all_but_its_teardowns():
    with DAG("d", fail_fast=True) as dag:
        first = BashOperator(task_id="first", bash_command="exit 1")
        PythonOperator(task_id="other", python_callable=lambda: None)
        after = BashOperator(task_id="after", bash_command="true")
        first >> after >> BashOperator(task_id="td", bash_command="true").as_teardown()
    run = dag.test()
    assert {task.task_id: task.state for task in run.tasks} == {
        "first": "failed", "other": "skipped", "after": "skipped", "td": "success",
    }  # fmt: skip


def test_variables_and_connections_come_from_the_environment_first(supervisor, monkeypatch):
    monkeypatch.setenv("AIRFLOW_VAR_PLAIN", "env")
    monkeypatch.setenv("AIRFLOW_CONN_WEB", "https://me:se%2Fcret@Host.example:8443/path?timeout=5")
    assert Variable.get("plain") == "env"
    Variable.set("made", {"a": 1}, serialize_json=True)
    assert Variable.get("made", deserialize_json=True) == {"a": 1}
    Variable.delete("made")
    assert Variable.get("made", default=None) is None
    with pytest.raises(KeyError, match="there is no variable 'made'"):
        Variable.get("made")
    web = Connection.get("web")
    assert (web.host, web.port, web.password, web.extra_dejson) == ("Host.example", 8443, "se/cret", {"timeout": "5"})
    assert "se" + "/cret" not in repr(web)
    with pytest.raises(KeyError, match="there is no connection 'nope'"):
        Connection.get("nope")


def test_variables_are_items_of_the_context_too(dag, supervisor):
    var = context_of(PythonOperator(task_id="t", dag=dag, python_callable=print))["var"]
    assert (var["value"].get("plain"), var["json"].get("data")) == ("text", {"a": [1]})
    with pytest.raises(KeyError, match="var has 'value' and 'json', not 'plain'"):
        var["plain"]


def test_a_date_param_must_be_a_date_with_a_zone():
    param = Param(type="string", format="date-time")
    assert param.resolve("2024-05-01T12:30:00+02:00") == "2024-05-01T12:30:00+02:00"
    for wrong in ("yesterday", "2024-05-01", "2024-05-01T12:30:00"):
        with pytest.raises(ParamValidationError, match=f"'{wrong}' is not a 'date-time'"):
            param.resolve(wrong)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"format": "date"}, "2024-02-29", "2023-02-29"),
        ({"format": "time"}, "12:30:00", "25:00:00"),
        ({"format": "uuid"}, "6c1a2f5e-3c55-4f0b-9d8d-0a3a0f6f0a11", "6c1a"),
        ({"format": "ipv4"}, "10.0.0.1", "10.0.0.256"),
        ({"format": "email"}, "a@b.c", "a"),
        ({"format": "regex"}, "a+", "("),
        ({"$ref": "#/$defs/size", "$defs": {"size": {"enum": ["s", "m"]}}}, "m", "l"),
        ({"oneOf": [{"type": "integer"}, {"type": "array", "items": {"const": 1}, "maxItems": 2}]}, [1, 1], [1, 1, 1]),
        ({"type": "object", "required": ["a"], "dependentRequired": {"b": ["c"]}}, {"a": 1}, {"a": 1, "b": 2}),
        ({"if": {"minimum": 10}, "then": {"multipleOf": 10}}, 20, 21),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_param_takes_what_its_json_schema_allows_and_nothing_else(schema, right, wrong):
    param = Param(schema=schema)
    assert param.resolve(right) == right
    with pytest.raises(ParamValidationError):
        param.resolve(wrong)


@pytest.mark.parametrize("elsewhere", ["#/$defs/no", "http://127.0.0.1:9/schema.json", "file:///etc/hostname"])
def test_a_schema_is_never_fetched_from_elsewhere(elsewhere):
    with pytest.raises(ParamValidationError, match="refers to something that is not in it"):
        Param(schema={"$ref": elsewhere}).resolve(1)


def test_the_default_of_a_variable_hides_no_failure(supervisor):
    def fail(**_):
        raise SupervisorError("the keeper is gone")

    supervisor._answer_variable_get = fail
    with pytest.raises(SupervisorError, match="the keeper is gone"):
        Variable.get("plain", default="d")


def test_variables_are_not_there_while_a_file_is_parsed(monkeypatch):
    assert Variable.get("x", default="d") == "d"
    with pytest.raises(SupervisorError, match=r"while a task runs.*\{\{ var\.value\.name \}\}"):
        Variable.get("x")
    monkeypatch.setenv("AIRFLOW_VAR_X", "1")
    assert Variable.get("x") == "1"


def test_xcom_pull_gives_values_lists_and_defaults(dag, supervisor):
    ti = context_of(PythonOperator(task_id="t", dag=dag, python_callable=print))["ti"]
    supervisor.keep_result("a", (1, 2))
    supervisor.running_task = "t"
    ti.xcom_push("own", {"k": 1})
    assert ti.xcom_pull("a") == [1, 2]
    assert ti.xcom_pull(["a", "b"], default=0) == [[1, 2], 0]
    assert ti.xcom_pull(key="own") == {"k": 1}
    pulled = []
    supervisor._answer_xcom_pull = lambda *, map_indexes, **_: pulled.append(map_indexes) or [("a", -1, 5)]
    assert ti.xcom_pull("a", map_indexes=-1) == 5
    ti.xcom_pull("a", map_indexes=range(2))
    ti.xcom_pull("a")
    assert pulled == [[-1], [0, 1], None]
    assert ti.get_previous_dagrun() is None
    with pytest.raises(TypeError, match="XCom 'bad'"):
        ti.xcom_push("bad", object())


def test_in_the_foreground_others_run_while_a_rescheduled_sensor_does_not_look(tmp_path):
    flag = tmp_path / "flag"
    with DAG("waits") as dag:

        @task.sensor(poke_interval=0.05, timeout=60, mode="reschedule")
        def wait():
            return flag.exists()

        @task
        def after():
            return "seen"

        @task
        def make():
            flag.touch()

        wait() >> after()
        make()
    run = dag.test()
    assert (str(run.state), flag.exists()) == ("success", True)
