"""The context of a running task."""

import datetime as dt

import msgspec
import pytest

from asynsched import (
    DAG,
    AsynschedException,
    BaseHook,
    Connection,
    PythonOperator,
    PythonSensor,
    Variable,
    XComNotFound,
    get_current_context,
    literal,
)
from asynsched.authoring import defaults
from asynsched.authoring.supervisor import SupervisorError
from asynsched.settings import Settings, WebSettings
from asynsched.store.schema import DagRunRow
from tests.unit.authoring.one_task import DATE, context_of, rendered, run


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
        (
            "{{ ti.state }} {{ ti.state.value }} {{ dag_run.state.name }} {{ dag_run.run_type.value }}",
            "running running RUNNING manual",
        ),
        ("{{ task_instance_key_str }}", "d__t__20240501"),
        ("{{ data_interval_start.subtract(days=1).in_timezone('Asia/Tokyo') }}", "2024-04-29 21:30:00+09:00"),
        ("{{ logical_date.add(weeks=1).format('YYYY/MM/DD') }} {{ dag_run.run_after.day }}", "2024/05/08 1"),
        ("{{ macros.datetime_diff_for_humans(data_interval_start, logical_date) }}", "1 day before"),
        ("{{ params.n }} {{ params['free'] }} {{ conf }}", "1 x {}"),
        ("{{ macros.ds_add(ds, -1) }} {{ macros.ds_format(ds, '%Y-%m-%d', '%d.%m.') }}", "2024-04-30 01.05."),
        ("{{ macros.datetime(2024, 1, 1).year }} {{ macros.json.dumps([1]) }}", "2024 [1]"),
        ("{{ macros.yaml.safe_load('a: [1]') }}", "{'a': [1]}"),
        ("{{ var.value.plain }} {{ var.json.data.a }} {{ var.value.get('no', 'default') }}", "text [1] default"),
        ("{{ conn.db.host }} {{ conn.get('no', 'none') }}", "h none"),
        ("{{ macros.ds_format_locale(ds, '%Y-%m-%d', 'd. MMMM', 'de_DE') }}", "1. Mai"),
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
            id=1, dag_id="d", run_id="r0", run_type="scheduled", state="success", logical_date=start,
            data_interval_start=start, data_interval_end=end, run_after=end, queued_at=end, started_at=started,
            ended_at=ended, version_id=1, lease_epoch=1,
        )  # fmt: skip
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
        lambda context: context | {},
        lambda context: {name: context.setdefault(name) for name in PREVIOUS},
        lambda context: {name: context.pop(name) for name in PREVIOUS},
        lambda context: dict(context.popitem() for _ in range(len(context))),
        lambda context: dict(context.items()),
        lambda context: dict(zip(context, context.values(), strict=True)),
        lambda context: (lambda **kwargs: kwargs)(**context),
    ],
)
def test_the_dates_of_the_last_success_are_requested_once(dag, asked, read):
    context = context_of(PythonOperator(task_id="t", dag=dag, python_callable=print))
    assert asked == []
    found = read(context)
    assert {name: found[name].isoformat() for name in PREVIOUS} == PREVIOUS
    assert asked == [{"state": "success"}]


def test_a_context_is_a_dict_also_where_a_value_is_taken_out_or_missing(dag):
    context = context_of(PythonOperator(task_id="t", dag=dag, python_callable=print))
    assert (context.pop("nothing", 1), context.setdefault("something", 2), context["something"]) == (1, 2, 2)
    with pytest.raises(KeyError, match="nothing"):
        context.pop("nothing")


def test_dates_of_a_run_are_in_its_vars_only_once_they_are_read(dag):
    ti = context_of(PythonOperator(task_id="t", dag=dag, python_callable=print))["ti"]
    for shown, name in ((ti.dag_run, "logical_date"), (ti, "start_date")):
        assert name not in vars(shown)
        assert vars(shown)["run_id"] == "r1"
        assert getattr(shown, name) is vars(shown)[name]
        assert "facts" not in vars(shown)


def test_a_context_that_is_printed_shows_its_dates_and_asks_for_nothing(dag, asked):
    shown = repr(context_of(PythonOperator(task_id="t", dag=dag, python_callable=print)))
    assert "'logical_date': DateTime(2024, 5, 1, 12, 30" in shown
    assert "'start_date': None" in shown
    assert "'prev_end_date_success': ..." in shown
    assert asked == []


def test_unused_dates_of_the_last_success_are_not_requested(dag, asked):
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
    assert (ti.log_url, ti.duration) == ("asynsched tasks logs d r1 t --try 3", None)
    defaults.set_defaults(Settings(web=WebSettings(base_url="https://example.org/asynsched/")).airflow_options)
    assert ti.log_url == "https://example.org/asynsched/dags/d/runs/r1/tasks/t?map_index=-1&try_number=3"
    defaults.set_defaults({})
    with pytest.raises(SupervisorError, match="run_count cannot be answered in a run without a scheduler"):
        ti.get_dr_count("d")


def test_dates_are_undefined_without_a_logical_date(dag):
    with pytest.raises(AsynschedException, match=r"'op_args' cannot be rendered: 'ds' is undefined"):
        rendered(dag, "{{ ds }}", logical_date=None)
    assert rendered(dag, "{{ task_instance_key_str }}", logical_date=None) == "d__t1__r1"


def test_templates_come_from_files_and_native_dags_render_to_values(tmp_path):
    (tmp_path / "query.sql").write_text("select {{ params.n }}")
    dag = DAG("d", params={"n": 3}, template_searchpath=str(tmp_path), render_template_as_native_obj=True)
    operator = PythonOperator(
        task_id="t", dag=dag, python_callable=lambda *a: a,
        op_args=["2024", "{'a': None}", "text", "", "query.sql", "{{ [params.n] }}"], templates_exts=[".sql"],
    )  # fmt: skip
    assert run(operator).value == (2024, {"a": None}, "text", None, "select 3", [3])
    as_texts = PythonOperator(
        task_id="s", dag=dag, python_callable=lambda *a: a, op_args=["2024"], render_template_as_native_obj=False
    )
    assert run(as_texts).value == ("2024",)
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
    with pytest.raises(RuntimeError, match="inside a running task"):
        get_current_context()


@pytest.mark.parametrize("make", [PythonOperator, PythonSensor])
def test_the_arguments_of_a_function_are_values_of_the_context(dag, supervisor, make):
    found = []

    def ask(templates_dict, **rest):
        context = get_current_context()
        found.append([templates_dict, context["templates_dict"], context["day"], context["params"], rest["day"]])
        return context["ti"].task_id

    given = {"day": "{{ ds }}", "params": 1, "ti": 2}
    run(make(task_id="t", dag=dag, python_callable=ask, op_kwargs=given))
    run(make(task_id="u", dag=dag, python_callable=ask, op_kwargs=given, templates_dict={"n": "{{ 1 }}"}))
    day = "2024-05-01"
    assert found == [[None, None, day, 1, day], [{"n": "1"}, {"n": "1"}, day, 1, day]]


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


def test_variables_and_connections_come_from_the_environment_first(supervisor, monkeypatch):
    monkeypatch.setenv("AIRFLOW_VAR_PLAIN", "env")
    monkeypatch.setenv("AIRFLOW_CONN_WEB", "https://me:se%2Fcret@Host.example:8443/path?timeout=5")
    assert Variable.get("plain") == "env"
    Variable.set("made", {"a": 1}, serialize_json=True)
    assert Variable.get("made", deserialize_json=True) == {"a": 1}
    assert (Variable.keys(), Variable.keys("ma"), Variable.keys("x")) == (["data", "made", "plain"], ["made"], [])
    Variable.delete("made")
    assert (Variable.get("made", default=None), Variable.keys("ma")) == (None, [])
    with pytest.raises(KeyError, match="there is no variable 'made'"):
        Variable.get("made")
    with pytest.raises(ValueError, match="Default Value must be set"):
        Variable.setdefault("made", None)
    given = [Variable.setdefault("made", value, deserialize_json=True) for value in ([1], [2])]
    assert (given, Variable.get("made")) == ([[1], [1]], "[\n  1\n]")
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


def test_the_default_of_a_variable_hides_no_failure(supervisor):
    def fail(**_):
        raise SupervisorError("the keeper is gone")

    supervisor._answer_variable_get = fail
    with pytest.raises(SupervisorError, match="the keeper is gone"):
        Variable.get("plain", default="d")


def test_a_program_without_a_supervisor_has_no_stored_variables(monkeypatch):
    assert Variable.get("x", default="d") == "d"
    with pytest.raises(SupervisorError, match="AIRFLOW_VAR_X, or give a default"):
        Variable.get("x")
    monkeypatch.setenv("AIRFLOW_VAR_X", "1")
    assert Variable.get("x") == "1"


def test_a_rescheduled_try_knows_when_its_first_process_began(dag):
    operator = PythonOperator(task_id="t", dag=dag, python_callable=print)
    for first, n in ((None, 0), (DATE, 1)):
        context = context_of(operator, reschedule_started_at=first)
        assert (context["ti"].get_first_reschedule_date(context), context["task_reschedule_count"]) == (first, n)


def test_xcom_pull_gives_values_lists_and_defaults(dag, supervisor):
    ti = context_of(PythonOperator(task_id="t", dag=dag, python_callable=print))["ti"]
    supervisor.keep_result("a", (1, 2))
    supervisor.running_task = "t"
    ti.xcom_push("own", {"k": 1})
    assert ti.xcom_pull("a") == [1, 2]
    assert ti.xcom_pull(["a", "b"], default=0) == [[1, 2], 0]
    assert ti.xcom_pull(key="own") == {"k": 1}
    ti.xcom_push("nothing", None)
    assert (ti.xcom_pull(key="nothing", default=3), ti.xcom_pull(key="nothing", map_indexes=-1, default=3)) == (None, 3)
    pulled = []
    part = {"found": [("a", -1, 5)], "place": None}
    supervisor._answer_xcom_pull = lambda *, map_indexes, **_: pulled.append(map_indexes) or part
    assert ti.xcom_pull("a", map_indexes=-1) == 5
    ti.xcom_pull("a", map_indexes=range(2))
    ti.xcom_pull("a")
    assert pulled == [[-1], [0, 1], None]
    supervisor._answer_xcom_pull = lambda *, task_ids, **_: {"found": [(task_ids[0], -1, task_ids)], "place": None}
    assert ti.xcom_pull(["a", "b"], include_prior_dates=True) == [["a"], ["b"]], "each from a run of its own"
    assert ti.get_previous_dagrun() is None
    with pytest.raises(TypeError, match="XCom 'bad'"):
        ti.xcom_push("bad", object())


def test_a_hook_has_a_logger_even_if_its_class_does_not_call_init():
    class Hook(BaseHook):
        def __init__(self):
            self.mine = 1

    assert Hook().log.name.endswith("Hook")


def test_a_hook_may_extend_the_form_that_airflow_shows_for_its_connections():
    class Hook(BaseHook):
        @classmethod
        def get_ui_field_behaviour(cls):
            return {**super().get_connection_form_widgets(), **super().get_ui_field_behaviour(), "hidden_fields": []}

    assert Hook.get_ui_field_behaviour() == {"hidden_fields": []}
