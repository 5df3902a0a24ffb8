"""Mapped tasks and task groups that a DAG file cannot have."""

import pytest

from asynsched import DAG, BashOperator, DagError, task, task_group, teardown
from asynsched.serialization.encode import serialize_dag
from tests.unit.authoring.mapped import DATE, Shout, echo, give


@pytest.fixture
def dag():
    with DAG("d", start_date=DATE) as dag:
        yield dag


REFUSED = {
    "no argument to map over": (lambda: echo.expand(), "'echo': expand() has no arguments"),
    "an argument that the function has not": (lambda: echo.expand(z=[1]), "echo.expand(): the function has no"),
    "a partial that the function has not": (lambda: echo.partial(z=1), "echo.partial(): the function has no"),
    "one of the context": (lambda: task(lambda x, ti: x).expand(x=[1], ti=[2]), "'ti' comes from the task's context"),
    "the same twice": (lambda: echo.partial(x=1).expand(x=[1]), "'echo': already given, or not mappable: x"),
    "the same partial twice": (lambda: echo.partial(x=1).partial(x=2), "already given"),
    "a number": (lambda: echo.expand(x=5), "'x' over a list, a dict or the result of a task, not over int: 5"),
    "a text": (lambda: echo.expand(x="abc"), "not over str"),
    "a set": (lambda: echo.expand(x={1, 2}), "not over set"),
    "another key than the result's": (lambda: echo.expand(x=give(1)["part"]), "'part' of task 'give'"),
    "a mapped one of another key": (lambda: give(1)["part"].map(str), "map() of the XCom 'part' of task 'give'"),
    "a task as a function of map": (lambda: give([1]).map(echo), "map() takes a plain function"),
    "no result in zip": (lambda: give([1]).zip([2]), "zip() takes results of tasks, not list"),
    "no result in concat": (lambda: give([1]).concat([2]), "concat() takes results of tasks, not list"),
    "expand_kwargs of a dict": (lambda: echo.expand_kwargs({"x": 1}), "expand_kwargs() takes a list of dicts"),
    "expand_kwargs of numbers": (lambda: echo.expand_kwargs([{"x": 1}, 2]), "not int: 2"),
    "a call after partial": (lambda: echo.partial(x=1)(y=2), "partial() must be followed by expand()"),
    "always, and a result": (
        lambda: echo.override(trigger_rule="always").expand(x=give([1])),
        "expand() over results of tasks is not allowed with the trigger_rule always",
    ),
    "always, and results in dicts": (
        lambda: echo.override(trigger_rule="always").expand_kwargs([{"x": give(1)}]),
        "expand_kwargs() over results of tasks is not allowed with the trigger_rule always",
    ),
    "an unknown argument of an operator": (
        lambda: BashOperator.partial(task_id="b", bash="x"), "BashOperator.partial() has no argument 'bash'",
    ),
    "an unknown one to map": (lambda: Shout.partial(task_id="s").expand(txt=[1]), "has no argument 'txt'"),
    "values that all share": (
        lambda: Shout.partial(task_id="s", text="a").expand(retries=[1, 2]), "not mappable: retries",
    ),
    "expand of a mapped task in a mapped group": (
        lambda: in_group(), "expand() inside the mapped task group 'g' is not supported",
    ),
    "a mapped group over an argument of one": (lambda: nested_over_argument(), "an argument of a mapped task group"),
    "the result of a mapped group that returns nothing": (
        lambda: echo(in_group_of_nothing()), "echo() receives the task group 'g', which has no result of its own",
    ),
    "a mapped group with * and expand_kwargs": (
        lambda: task_group(lambda *args: None).expand_kwargs([{}]), "needs a function without * and **",
    ),
    "a wrong value of an argument that all share": (
        lambda: echo.override(retries=-1).expand(x=[1]), "retries must be at least 0",
    ),
    "a teardown with a trigger rule": (
        lambda: teardown(task(task_id="t", trigger_rule="all_done")(lambda x: x)).expand(x=[1]),
        "cannot have a trigger_rule",
    ),
}  # fmt: skip


def in_group_of_nothing():
    @task_group
    def g(v):
        echo(v)

    return g.expand(v=[1])


def in_group():
    @task_group
    def g(v):
        echo.expand(x=[v])

    g.expand(v=[1])


def nested_over_argument():
    @task_group
    def inner(w):
        echo(w)

    @task_group
    def outer(v):
        inner.expand(w=v)

    outer.expand(v=[[1], [2]])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_mapped_is_refused_with_what_is_wrong(dag, name):
    make, message = REFUSED[name]
    with pytest.raises((TypeError, DagError)) as caught:
        make()
    assert message in str(caught.value)


def test_a_mapped_group_refuses_a_task_that_would_not_wait_for_it(dag):
    @task_group
    def g(v):
        echo.override(trigger_rule="always")(v)

    g.expand(v=[1])
    with pytest.raises(
        DagError, match=r"task 'g\.echo' is in the mapped task group 'g', where the trigger_rule always"
    ):
        serialize_dag(dag)
