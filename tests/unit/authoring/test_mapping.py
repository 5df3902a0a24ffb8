"""Mapped tasks and task groups, as DAG files make them: each instance's arguments, and reasons to fail."""

import pytest

from asynsched import (
    DAG,
    BaseOperator,
    EmptyOperator,
    PythonOperator,
    get_current_context,
    setup,
    task,
    task_group,
    teardown,
)
from asynsched.authoring.supervisor import current_supervisor, set_supervisor
from asynsched.foreground.run import run_in_foreground
from asynsched.serialization.encode import serialize_dag
from asynsched.serialization.schema import MapConcat, MapLiteral, MapProduct, MapResult, MapZip
from tests.unit.authoring.mapped import DATE, Shout, echo, give, listed


@pytest.fixture
def dag():
    with DAG("d", start_date=DATE) as dag:
        yield dag


def results(dag, task_id):
    run = dag.test(logical_date=DATE)
    assert run.state == "success", [(found.task_id, found.reason) for found in run.tasks]
    return [found.result for found in run.tasks if found.task_id == task_id]


def test_the_scheduler_is_told_lengths_and_tasks_and_nothing_else(dag):
    first, second = give.override(task_id="first")([1]), give.override(task_id="second")([2])
    over = {
        "literal": echo.expand(x=[1, 2, 3]),
        "mapping": echo.expand(x={"a": 1}),
        "product": echo.expand(x=first, y=[1, 2]),
        "zip": echo.expand(x=first.zip(second)),
        "filled": echo.expand(x=first.zip(second, fillvalue=None)),
        "concat": echo.expand(x=first.concat(second).map(str)),
        "kwargs": echo.expand_kwargs(first),
        "dicts": echo.expand_kwargs([{"x": 1}, {"x": 2}]),
    }
    serialized = {found.task_id: found for found in serialize_dag(dag).tasks}
    one, two = MapResult("first"), MapResult("second")
    assert {name: serialized[arg.operator.task_id].map_length for name, arg in over.items()} == {
        "literal": MapLiteral(3),
        "mapping": MapLiteral(1),
        "product": MapProduct((one, MapLiteral(2))),
        "zip": MapZip((one, two)),
        "filled": MapZip((one, two), is_filled=True),
        "concat": MapConcat((one, two)),
        "kwargs": one,
        "dicts": MapLiteral(2),
    }
    assert serialized["first"].downstream_task_ids == tuple(
        sorted(over[name].operator.task_id for name in ("product", "zip", "filled", "concat", "kwargs"))
    )


def test_a_mapped_operator_has_its_own_class_and_shared_settings(dag):
    shout = Shout.partial(task_id="shout", retries=2, pool="loud", trigger_rule="all_done").expand(text=["a", "b"])
    nothing = EmptyOperator.partial(task_id="nothing").expand_kwargs([{}])
    shout >> nothing
    found = serialize_dag(dag).tasks
    assert [(each.task_type, each.retries, each.pool, each.is_empty) for each in found] == [
        ("Shout", 2, "loud", False),
        ("EmptyOperator", 0, "default_pool", True),
    ]
    assert (found[0].trigger_rule, found[0].template_fields) == ("all_done", ("text",))


def test_templates_are_rendered_in_the_file_and_not_in_results_of_tasks(dag):
    Shout.partial(task_id="said").expand(text=["{{ ti.map_index }}", "{{ ds }}"])

    @task
    def tell():
        return ["{{ ds }}"]

    told = tell()
    Shout.partial(task_id="told").expand(text=told)
    echo.partial(y="{{ ds }}").expand(x=told)
    assert results(dag, "said") == ["0", "2024-05-01"]
    assert results(dag, "told") == ["{{ ds }}"]
    assert results(dag, "echo") == [["{{ ds }}", "2024-05-01"]]


def test_a_task_knows_which_instance_it_is_and_of_how_many(dag):
    @task(map_index_template="{{ name }} of {{ expanded_ti_count }}")
    def knows(x, y, ti):
        get_current_context()["name"] = f"{x}{y}"
        return ti.map_index

    knows.expand(x=["a", "b"], y=give([1, 2, 3]))
    run = dag.test()
    found = [(each.result, each.rendered_map_index) for each in run.tasks if each.task_id == "knows"]
    assert found == [(n, f"{name} of 6") for n, name in enumerate(["a1", "a2", "a3", "b1", "b2", "b3"])]


def test_an_instance_that_fails_has_its_name_too(dag):
    @task(map_index_template="file {{ task.op_kwargs['x'] }}")
    def fails(x):
        raise ValueError(x)

    fails.expand(x=["a"])
    [failed] = dag.test().tasks
    assert (failed.state, failed.rendered_map_index, failed.reason) == ("failed", "file a", "ValueError: a")


def test_nested_mapped_groups_get_each_combination_and_own_results(dag):
    @task_group
    def inner(w, v):
        listed.override(task_id="below")(echo(v, w))

    @task_group
    def outer(v):
        above = give(v)
        inner.partial(v=above).expand(w=[1, 2, 3])
        return above

    listed.override(task_id="end")(outer.expand(v=["a", "b"]))
    expected = [[v, w] for v in "ab" for w in (1, 2, 3)]
    assert results(dag, "outer.inner.echo") == expected
    assert results(dag, "outer.inner.below") == expected
    assert results(dag, "end") == [["a", "b"]]


def test_a_task_after_a_nested_group_gets_the_results_of_its_own_group(dag):
    @task_group
    def inner(w):
        return give(w)

    @task_group
    def outer(v):
        listed.override(task_id="own")(inner.expand(w=[1, 2]))
        echo(v)

    outer.expand(v=["a", "b", "c"])
    assert results(dag, "outer.own") == [[1, 2]] * 3


@pytest.mark.parametrize(("values", "expected"), [(["a"], ["a"]), ([], [])])
def test_a_task_after_a_group_of_one_or_no_instance_gets_a_sequence(dag, values, expected):
    @task_group
    def group(v):
        return give(v)

    listed.override(task_id="end", trigger_rule="all_done")(group.expand(v=values))
    assert results(dag, "end") == [expected]


def test_zipped_and_concatenated_results_are_mapped_over_beside_others(dag):
    few, many = give.override(task_id="few")([1, 2]), give.override(task_id="many")([3, 4, 5])
    listed.override(task_id="pairs").expand(xs=few.zip(many, fillvalue=0))
    echo.expand(x=few.zip(many, fillvalue=0), y=few.concat(many))
    zipped, joined = [(1, 3), (2, 4), (0, 5)], [1, 2, 3, 4, 5]
    assert results(dag, "echo") == [[x, y] for x in zipped for y in joined]
    assert results(dag, "pairs") == [list(pair) for pair in zipped]


def test_a_thousand_results_take_few_requests_and_one_value_takes_one(dag):
    asked = []

    class Counting:
        """Passes questions on, and counts them."""

        def __init__(self, inner):
            self.inner = inner

        def request(self, operation, **arguments):
            asked.append(operation)
            return self.inner.request(operation, **arguments)

    @task
    def ask_for_all(xs):
        set_supervisor(Counting(current_supervisor()))
        total = sum(xs)
        return [total, len(xs), xs[3], xs[-1], xs[2:4], 999 in xs, xs == list(range(1000))]

    ask_for_all(give.expand(value=list(range(1000))))
    assert results(dag, "ask_for_all") == [[499500, 1000, 3, 999, [2, 3], True, True]]
    assert len(asked) < 20


def test_mapped_params_are_merged_with_the_shared_params(dag):
    dag.params["from_dag"] = 1
    PythonOperator.partial(
        task_id="p", params={"shared": 2}, python_callable=lambda params: dict(params)
    ).expand(params=[{"own": 3}, {"shared": 4}])  # fmt: skip
    assert results(dag, "p") == [{"from_dag": 1, "shared": 2, "own": 3}, {"from_dag": 1, "shared": 4}]


def test_setups_and_teardowns_can_be_mapped(dag):
    made, work, gone = setup(give), give.override(task_id="work"), teardown(echo)
    up = made.expand(value=[1, 2])
    up >> work(0) >> gone.expand(x=up).as_teardown(setups=up)
    found = {each.task_id: each for each in serialize_dag(dag).tasks}
    assert (found["give"].is_setup, found["echo"].is_teardown) == (True, True)
    assert found["echo"].trigger_rule == "all_done_setup_success"
    assert results(dag, "echo") == [[1, None], [2, None]]


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (None, "what task 'give' returned is mapped over by another task, so it must be a list or a dict, not None"),
        ("text", "not str"),
        (list(range(1025)), "has 1025 values: more than the setting max_map_length = 1024 allows"),
    ],
)
def test_a_result_that_cannot_be_mapped_over_fails_its_task(dag, returned, reason):
    echo.expand(x=give(returned))
    run = run_in_foreground(dag)
    assert [found.state for found in run.tasks] == ["failed", "upstream_failed"]
    assert reason in run.task("give").reason


@pytest.mark.parametrize(
    ("kwargs", "strict", "reason"),
    [
        ([{"x": 1, "y": 2}], True, "already given, or not mappable: y"),
        ([{"x": 1, "z": 2}], True, "echo() cannot be called like this"),
        ([{"y": 1}], False, "echo() lacks the argument 'x'"),
        ([{1: 1}], True, "dicts with strings as keys, not 1"),
        ([5], True, "a list of dicts, not of int"),
    ],
)
def test_dicts_that_do_not_fit_fail_their_instance_with_what_is_wrong(dag, kwargs, strict, reason):
    echo.partial(y=0).expand_kwargs(listed_by_task(kwargs), strict=strict)
    run = dag.test()
    assert run.task("echo", 0).state == "failed"
    assert reason in run.task("echo", 0).reason


def listed_by_task(value):
    return give([0] * len(value)).map(lambda _: value[0])


def test_without_strict_the_values_of_a_dict_win_over_those_that_all_share(dag):
    echo.partial(y=0).expand_kwargs([{"x": 1, "y": 2}, {"x": 3}], strict=False)
    assert results(dag, "echo") == [[1, 2], [3, 0]]


class Coloured:
    """A base class that is no operator."""

    def __init__(self, colour, size):
        self.colour, self.size = colour, size


def test_instances_of_a_task_function_take_default_args(dag):
    dag.default_args["y"] = "default"
    with dag:
        echo.expand(x=[1, 2])
        echo.override(task_id="over").expand(x=[3], y=[4])
    assert (results(dag, "echo"), results(dag, "over")) == ([[1, "default"], [2, "default"]], [[3, 4]])


class Careful(Shout):
    def __init__(
        self, *, retries=3, trigger_rule="all_done", owner="carla", queue=None, priority_weight=None, **kwargs
    ):
        super().__init__(retries=retries, trigger_rule=trigger_rule, owner=owner, queue=queue, **kwargs)


class Templated(Careful):
    template_ext = (".txt",)

    def __init__(self, *, retries=5, **kwargs):
        super().__init__(retries=retries, **kwargs)


def test_a_mapped_task_has_the_defaults_of_its_class_under_those_of_the_file():
    with DAG("d", auto_register=False, default_args={"owner": "ada"}) as dag:
        for operator, given in ((Careful, {}), (Templated, {}), (Templated, {"retries": 1, "owner": "eve"})):
            operator.partial(task_id=f"t{len(dag.tasks)}", **given).expand(text=["a"])
    tasks = serialize_dag(dag).tasks
    assert [(each.retries, each.trigger_rule, each.owner, each.queue) for each in tasks] == [
        (3, "all_done", "ada", "default"),
        (5, "all_done", "ada", "default"),
        (1, "all_done", "eve", "default"),
    ]
    assert [task.template_ext for task in dag.tasks] == [(), (".txt",), (".txt",)]


class ColouredTask(Coloured, BaseOperator):
    def __init__(self, *args, **kwargs):
        Coloured.__init__(self, kwargs.pop("colour"), kwargs.pop("size"))
        BaseOperator.__init__(self, *args, **kwargs)


def test_arguments_of_base_classes_that_are_no_operators_can_be_mapped():
    with DAG("d", auto_register=False):
        mapped = ColouredTask.partial(task_id="t", colour="red").expand(size=[1, 2])
    assert mapped.shared["colour"] == "red"
