"""Arrows: between tasks, groups, lists and labels."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynsched import DAG, EmptyOperator, Label, TaskGroup, chain, chain_linear, cross_downstream, task, task_group
from asynsched.errors import DagCycleError


def edges(dag):
    return {f"{one.task_id}>{after}" for one in dag.tasks for after in one.downstream_task_ids}


@pytest.fixture
def dag():
    with DAG("d") as dag:
        yield dag


@pytest.fixture
def abcd(dag):
    return [EmptyOperator(task_id=name) for name in "abcd"]


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (lambda a, b, c, d: a >> [b, c] >> d, {"a>b", "a>c", "b>d", "c>d"}),
        (lambda a, b, c, d: d << (b, c) << a, {"a>b", "a>c", "b>d", "c>d"}),
        (lambda a, b, c, d: [a, b] << c, {"c>a", "c>b"}),
        (lambda a, b, c, d: [a, b] >> Label("x") >> [c, d], {"a>c", "a>d", "b>c", "b>d"}),
        (lambda a, b, c, d: c << Label("x") << a, {"a>c"}),
        (lambda a, b, c, d: chain(a, Label("x"), [b, c], d), {"a>b", "a>c", "b>d", "c>d"}),
        (lambda a, b, c, d: chain([a, b], [c, d]), {"a>c", "b>d"}),
        (lambda a, b, c, d: chain_linear(a, [b, c], [], d), {"a>b", "a>c", "b>d", "c>d"}),
        (lambda a, b, c, d: cross_downstream([a, b], [c, d]), {"a>c", "a>d", "b>c", "b>d"}),
        (lambda a, b, c, d: a.set_downstream([b, [c, d]]), {"a>b", "a>c", "a>d"}),
        (lambda a, b, c, d: (a.output >> b.output, a.output["k"] << c), {"a>b", "c>a"}),
    ],
)
def test_arrows(dag, abcd, draw, expected):
    draw(*abcd)
    assert edges(dag) == expected


def test_the_decorators_of_a_dag_make_tasks_of_that_dag():
    dag = DAG("own")

    @dag.task
    def first():
        return 1

    @dag.task(retries=2)
    def second(value):
        return value + 1

    second(first()) >> dag.task.bash(lambda: "true").override(task_id="third")()
    assert edges(dag) == {"first>second", "second>third"}
    assert (dag.get_task("second").retries, dag.test().task("second").result) == (2, 2)


def test_labels_are_kept_with_their_arrows(dag, abcd):
    a, b, c, _ = abcd
    a >> Label("rain") >> [b, c]
    assert dag.get_edge_info("a", "b") == dag.get_edge_info("a", "c") == {"label": "rain"}
    assert dag.get_edge_info("b", "c") == {}


def test_groups_stand_for_their_first_and_last_tasks(dag, abcd):
    a, b, _, _ = abcd
    with TaskGroup("g", default_args={"retries": 4}) as outer:
        with TaskGroup("h", prefix_group_id=False) as inner:
            x = EmptyOperator(task_id="x")
        y = EmptyOperator(task_id="y", retries=1)
    inner >> y
    a >> outer >> b
    assert edges(dag) == {"a>x", "x>g.y", "g.y>b"}
    assert (x.retries, y.retries, inner.group_id, y.label) == (4, 1, "g.h", "y")
    assert outer["y"] is y
    assert outer.has_task(x)


def test_arrows_go_through_an_empty_group(dag, abcd):
    a, b, _, _ = abcd
    with TaskGroup("empty") as empty:
        pass
    a >> empty >> b
    assert edges(dag) == {"a>b"}


def test_a_group_knows_what_it_was_put_after_and_before(dag, abcd):
    a, b, c, d = abcd
    with TaskGroup("first", dag=dag) as first, TaskGroup("inner"):
        EmptyOperator(task_id="e")
    second = TaskGroup("second", dag=dag)
    a >> [first, second] >> Label("then") >> b
    first >> second >> [c, d]
    assert (first.upstream_task_ids, first.downstream_task_ids) == ({"a"}, {"b"})
    assert (second.upstream_task_ids, second.downstream_task_ids) == ({"a"}, {"b", "c", "d"})
    assert (first.upstream_group_ids, first.downstream_group_ids) == (set(), {"second"})
    assert (second.upstream_group_ids, second.downstream_group_ids) == ({"first"}, set())


def test_an_arrow_from_a_group_does_not_wait_for_its_teardowns(dag, abcd):
    with TaskGroup("g") as group:
        make, work, clean = (EmptyOperator(task_id=name) for name in ("make", "work", "clean"))
        make >> work >> clean.as_teardown(setups=make)
    group >> abcd[0]
    assert abcd[0].upstream_task_ids == {"g.work"}


def test_repeated_functions_and_groups_get_numbers(dag):
    @task
    def step(): ...

    @task_group
    def part():
        step()
        step.override(task_id="other")()

    step(), step(), step()
    part(), part()
    assert dag.task_ids == [
        "step", "step__1", "step__2", "part.step", "part.other", "part__1.step", "part__1.other"
    ]  # fmt: skip


@given(st.integers(2, 12).flatmap(lambda n: st.lists(st.tuples(st.integers(0, n), st.integers(0, n)), max_size=40)))
def test_every_order_is_topological_and_every_circle_is_real(pairs):
    with DAG("d", auto_register=False) as dag:
        tasks = [EmptyOperator(task_id=f"t{number}") for number in range(13)]
    for before, after in pairs:
        tasks[before] >> tasks[after]
    try:
        ordered = dag.topological_sort()
    except DagCycleError as exc:
        circle = str(exc).rpartition(": ")[2].split(" >> ")
        assert circle[0] == circle[-1]
        for before, after in pairwise(circle):
            assert after in dag.get_task(before).downstream_task_ids
    else:
        position = {one.task_id: place for place, one in enumerate(ordered)}
        assert len(position) == 13
        assert all(position[f"t{before}"] < position[f"t{after}"] for before, after in pairs)


def test_a_task_group_tells_the_id_of_its_dag():
    with DAG("d", auto_register=False), TaskGroup("g") as group:
        pass
    assert group.dag_id == "d"
