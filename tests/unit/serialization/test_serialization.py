"""The serialized form: whole DAGs survive it, and nothing that makes no sense gets through."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asynsched import (
    DAG,
    BashOperator,
    EmptyOperator,
    FileSensor,
    Param,
    PythonOperator,
    ShortCircuitOperator,
    TaskGroup,
)
from asynsched.authoring import defaults
from asynsched.authoring.priority_weight import PriorityWeightStrategy
from asynsched.authoring.trigger_rule import TriggerRule, WeightRule
from asynsched.errors import DagError, NoEffectWarning, SerializationError
from asynsched.serialization.decode import decode_dag, decode_report
from asynsched.serialization.encode import serialize_dag
from asynsched.serialization.schema import SCHEMA_VERSION, ParsedDag, ParseReport, SourceFile, version_hash
from asynsched.timetables import decode as decode_timetable

names = st.text(st.characters(categories=["L", "N"], include_characters="_-."), min_size=1, max_size=12)
lengths = st.timedeltas(min_value=timedelta(seconds=1), max_value=timedelta(days=400))
instants = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.none() | st.timezones())
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
callbacks = st.none() | st.just(print)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "owner": st.text(min_size=1),
        "retries": st.integers(0, 9),
        "retry_delay": lengths | st.floats(0, 1e6),
        "retry_exponential_backoff": st.booleans() | st.floats(0, 9),
        "max_retry_delay": lengths,
        "execution_timeout": lengths,
        "priority_weight": st.integers(),
        "weight_rule": st.sampled_from([*WeightRule]),
        "pool": st.text(min_size=1, max_size=256),
        "pool_slots": st.integers(1, 9),
        "trigger_rule": st.sampled_from([*TriggerRule]),
        "depends_on_past": st.booleans(),
        "wait_for_downstream": st.booleans(),
        "start_date": instants,
        "end_date": instants,
        "max_active_tis_per_dag": st.integers(1, 9),
        "do_xcom_push": st.booleans(),
        "doc_md": st.text(),
        "on_failure_callback": callbacks,
        "on_execute_callback": callbacks,
    },
)
dag_arguments = st.fixed_dictionaries(
    {},
    optional={
        "description": st.text(),
        "tags": st.lists(st.text(min_size=1, max_size=100)),
        "start_date": instants,
        "end_date": instants,
        "max_active_runs": st.integers(1, 9),
        "max_active_tasks": st.integers(1, 9),
        "dagrun_timeout": lengths,
        "is_paused_upon_creation": st.none() | st.booleans(),
        "params": st.dictionaries(st.text(), json, max_size=3),
        "schedule": st.sampled_from([None, "@daily", "*/5 * * * *", timedelta(hours=1), "@once"]),
        "on_success_callback": callbacks,
    },
)


@st.composite
def dags(draw):
    dag = DAG(draw(names), auto_register=False, **draw(dag_arguments))
    task_ids = draw(st.lists(names, unique=True, max_size=6))
    with dag:
        for number, task_id in enumerate(task_ids):
            kind = draw(
                st.sampled_from(
                    [
                        (EmptyOperator, {}),
                        (BashOperator, {"bash_command": "x"}),
                        (PythonOperator, {"python_callable": print}),
                        (FileSensor, {"filepath": "x", "mode": "reschedule"}),
                        (ShortCircuitOperator, {"python_callable": bool}),
                    ]
                )
            )
            with TaskGroup(f"g{number}") if draw(st.booleans()) else dag:
                task = kind[0](task_id=f"t{number}_{task_id}", **kind[1], **draw(arguments))
            for before in draw(st.lists(st.sampled_from(dag.tasks[:-1]), max_size=3)) if number else ():
                before >> task
    return dag


class Falling(PriorityWeightStrategy):
    def get_weight(self, ti):
        return 10 * ti.task.priority_weight - ti.try_number


class OfARun(PriorityWeightStrategy):
    def get_weight(self, ti):
        return ti.run_id


def test_a_strategy_gives_each_try_of_a_task_its_weight():
    with DAG("d", auto_register=False) as dag:
        EmptyOperator(task_id="a", weight_rule=Falling(), retries=2, priority_weight=3) >> EmptyOperator(task_id="b")
    first, second = serialize_dag(dag).tasks
    assert (first.try_weights, first.weight_rule) == ((30, 29, 28), "absolute")
    assert (second.try_weights, second.weight_rule) == ((), "downstream")


def test_a_strategy_that_needs_a_run_is_an_error_of_the_dag():
    with DAG("d", auto_register=False) as dag:
        EmptyOperator(task_id="a", weight_rule=OfARun())
    with pytest.raises(SerializationError, match=r"'a'.*OfARun: run_id is not known yet: .* before there is a run"):
        serialize_dag(dag)


def test_a_strategy_can_be_named_by_its_class_path():
    path = "asynsched.authoring.priority_weight.PriorityWeightStrategy"
    with DAG("d", auto_register=False):
        with pytest.raises(DagError, match=r"weight_rule 'a\.b' cannot be imported"):
            EmptyOperator(task_id="a", weight_rule="a.b")
        with pytest.raises(DagError, match=r"must name a subclass of PriorityWeightStrategy"):
            EmptyOperator(task_id="b", weight_rule="asynsched.DAG")
        with pytest.raises(TypeError, match="abstract"):
            EmptyOperator(task_id="c", weight_rule=path)


@settings(max_examples=60)
@given(dags())
def test_a_dag_survives_the_way_to_the_scheduler(dag):
    serialized = serialize_dag(dag)
    report = ParseReport(SCHEMA_VERSION, "a.py", dags=(ParsedDag(serialized, version_hash(serialized, ())),))
    assert decode_report(msgspec.json.encode(report)) == report
    assert decode_dag(msgspec.json.encode(serialized)) == serialized
    assert [task.task_id for task in serialized.tasks] == [task.task_id for task in dag.topological_sort()]
    assert decode_timetable(serialized.timetable) == dag.timetable


def serialized(**changes):
    with DAG("d", auto_register=False, schedule="@daily", start_date=datetime(2024, 1, 1)) as dag:
        with TaskGroup("g"):
            EmptyOperator(task_id="a") >> EmptyOperator(task_id="b")
        BashOperator(task_id="c", bash_command="x")
    return msgspec.to_builtins(serialize_dag(dag)) | changes


def task(number, **changes):
    tasks = [dict(one) for one in serialized()["tasks"]]
    tasks[number].update(changes)
    return {"tasks": tasks}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dag_id": "a b"}, "the dag_id is invalid"),
        ({"dag_id": "x" * 251}, "250"),
        ({"timetable": {"kind": "Nonsense"}}, "timetable"),
        ({"timetable": {}}, "timetable"),
        ({"start_date": "2024-01-01T00:00:00"}, "no offset"),
        ({"max_active_runs": -1}, "max_active_runs"),
        ({"max_active_runs": "1"}, "max_active_runs"),
        ({"dagrun_timeout": 0}, "dagrun_timeout"),
        ({"task_groups": [{"group_id": "g", "parent_id": "h"}]}, "parent 'h'"),
        ({"task_groups": []}, "task group 'g' is unknown"),
        (task(0, task_id="a b"), "'a b' is invalid"),
        (task(0, task_id="c"), "'c' twice"),
        (task(0, downstream_task_ids=["nowhere"]), "'nowhere' does not exist"),
        (task(0, downstream_task_ids=["g.b", "g.b"]), "'g.b' twice"),
        (task(2, downstream_task_ids=["g.a"]), "not in order"),
        (task(2, downstream_task_ids=["c"]), "not in order"),
        (task(0, trigger_rule="sometimes"), "trigger_rule"),
        (task(0, pool_slots=0), "pool_slots"),
        (task(0, retries=1.5), "retries"),
        (task(0, retries=10**10), "retries"),
        (task(0, pool_slots=2**40), "pool_slots"),
        (task(0, priority_weight=2**31), "priority_weight"),
        (task(0, queue="x" * 257), "queue"),
        ({"max_active_runs": 2**63}, "max_active_runs"),
        (task(0, retry_delay=-1), "retry_delay"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(changes, words):
    with pytest.raises(SerializationError) as caught:
        decode_dag(msgspec.json.encode(serialized(**changes)))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"schema_version": 1e999, "path": ""}', b'{"path": "a.py"}',
     b'{"schema_version": 99, "path": "a.py"}', b'{"schema_version": 1, "path": "a.py", "dags": [{}]}'],
)  # fmt: skip
def test_garbage_is_no_report(data):
    with pytest.raises(SerializationError):
        decode_report(data)


class ModelOfKubernetes:
    """As the models of the Kubernetes client are: attributes, with their names in the API."""

    attribute_map = {"node_selector": "nodeSelector", "containers": "containers"}  # noqa: RUF012

    def __init__(self, node_selector=None, containers=None):
        self.node_selector, self.containers = node_selector, containers


def test_the_executor_config_of_a_task_is_written_as_json_for_executors_that_read_it(monkeypatch):
    pod = ModelOfKubernetes({"gpu": "yes"}, [ModelOfKubernetes()])
    for config, written in (
        ({"pod_override": pod, "n": 1}, {"pod_override": {"nodeSelector": {"gpu": "yes"}, "containers": [{}]}, "n": 1}),
        (None, {}),
    ):
        with DAG("d") as dag:
            EmptyOperator(task_id="t", executor_config=config)
        assert serialize_dag(dag).tasks[0].executor_config == written
    for wrong in ({"f": print}, {"x": [object()]}):
        monkeypatch.setattr(defaults, "runs_on_this_machine", False)
        with DAG("d") as dag:
            EmptyOperator(task_id="t", executor_config=wrong)
        with pytest.raises(SerializationError, match=r"'t'.*executor_config cannot be written as JSON"):
            serialize_dag(dag)
        monkeypatch.setattr(defaults, "runs_on_this_machine", True)
        with DAG("d") as dag, pytest.warns(NoEffectWarning, match="executor_config has no effect in asynsched: the ex"):
            EmptyOperator(task_id="t", executor_config=wrong)
        assert serialize_dag(dag).tasks[0].executor_config == {}, "a local executor does not read it"


def test_a_report_has_each_dag_once_and_a_hash_for_it():
    dag = serialize_dag(DAG("d"))
    for parsed, words in (((ParsedDag(dag, "0" * 64),) * 2, "twice"), ((ParsedDag(dag, "0" * 63),), "hash")):
        with pytest.raises(SerializationError, match=words):
            decode_report(msgspec.json.encode(ParseReport(SCHEMA_VERSION, "a.py", dags=parsed)))


def test_what_only_the_author_can_know_reaches_the_scheduler():
    with DAG("d", params={"n": Param(3, type="integer", description="how many"), "must": Param(type="string")}) as dag:
        empty, heard = EmptyOperator(task_id="e"), EmptyOperator(task_id="h", on_success_callback=print)
        sensor = FileSensor(task_id="s", filepath="x", poke_interval=timedelta(minutes=1), timeout=30)
    sensor.retries = 7
    found = {one.task_id: one for one in serialize_dag(dag).tasks}
    assert (found["e"].is_empty, found["h"].is_empty, found["h"].callbacks) == (True, False, ("on_success",))
    assert (found["s"].is_sensor, found["s"].poke_interval, found["s"].sensor_timeout) == (True, 60, 30)
    assert found["s"].retries == 7
    params = serialize_dag(dag).params
    assert (params["n"].value, params["n"].schema, params["n"].description) == (3, {"type": "integer"}, "how many")
    assert (params["must"].has_default, params["must"].value) == (False, None)
    assert empty.dag is heard.dag


def test_a_dag_that_only_runs_on_demand_has_no_schedule_to_show():
    assert serialize_dag(DAG("d", schedule=None)).schedule_summary == ""
    assert serialize_dag(DAG("d", schedule="@once")).schedule_summary == "@once"


def test_keys_of_a_param_become_texts_as_json_has_them():
    params = {
        "n": Param(1, enum=[1, 2], values_display={1: "one", 2.5: {None: "none", True: "yes"}}),
        "d": {1: ({2: 3},)},
    }
    dag = DAG("d", params=params)
    params = serialize_dag(dag).params
    assert params["n"].schema == {
        "enum": [1, 2],
        "values_display": {"1": "one", "2.5": {"null": "none", "true": "yes"}},
    }
    assert params["d"].value == {"1": [{"2": 3}]}
    assert dag.params["d"] == {1: ({2: 3},)}, "the author's own code sees its own value"


CODE = 'def f(x):\n    """Doc."""\n    return x + 1\n'


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        ("# comment\n" + CODE.replace("x + 1", "(x +\n            1)"), True),
        (CODE.replace("Doc", "Other doc"), False),
        (CODE.replace("1", "2"), False),
        (CODE + "print('\\d')\n", False),
    ],
)
def test_a_version_is_what_code_means(text, is_same):
    dag = serialize_dag(DAG("d"))

    def hash_of(text):
        return version_hash(dag, [SourceFile("a.py", "a", "0", text), SourceFile("b.py", "b", "0", "")])

    assert (hash_of(text) == hash_of(CODE)) is is_same
    assert len(hash_of(text)) == 64


def test_a_version_depends_on_structure_and_on_code_that_cannot_parse():
    dag, other = serialize_dag(DAG("d")), serialize_dag(DAG("d", tags=["x"]))
    broken = [SourceFile("a.py", "a", "0", text) for text in ("def", "def # other", "\0", "-" * 200_000 + "1")]
    assert len({version_hash(dag, []), version_hash(other, []), *(version_hash(dag, [one]) for one in broken)}) == 6
    both = [broken[0], SourceFile("b.py", "b", "0", "x = 1")]
    assert version_hash(dag, both) == version_hash(dag, both[::-1])


def test_dates_are_utc_whatever_the_zone():
    from zoneinfo import ZoneInfo

    dag = serialize_dag(
        DAG("d", start_date=datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")), end_date=datetime(2024, 8, 1))
    )
    assert dag.timezone == "Europe/Berlin"
    assert (dag.start_date, dag.end_date) == (
        datetime(2024, 6, 30, 22, tzinfo=UTC), datetime(2024, 8, 1, tzinfo=UTC)
    )  # fmt: skip
