"""Calls of task functions: valid if a call of the function itself is, except for the context."""

from datetime import UTC, datetime
from functools import wraps

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynsched import DAG, task
from asynsched.errors import DagError


@st.composite
def functions(draw):
    """Make a function with parameters of all kinds, some with a default."""
    n_only, n_position, n_name = (draw(st.integers(0, 2)) for _ in range(3))
    n_defaults = draw(st.integers(0, n_only + n_position))
    by_position = [f"p{number}" for number in range(n_only + n_position)]
    written = [
        f"{name}=0" if number >= len(by_position) - n_defaults else name for number, name in enumerate(by_position)
    ]
    if n_only:
        written.insert(n_only, "/")
    by_name = [f"n{number}=0" if draw(st.booleans()) else f"n{number}" for number in range(n_name)]
    if draw(st.booleans()):
        written.append("*rest")
    elif by_name:
        written.append("*")
    written += by_name
    if draw(st.booleans()):
        written.append("**more")
    made = {}
    exec(f"def function({', '.join(written)}): pass", made)
    return made["function"]


CALLS = st.tuples(
    st.lists(st.just(1), max_size=4),
    st.dictionaries(st.sampled_from(["p0", "p1", "p2", "p3", "n0", "n1", "other"]), st.just(1), max_size=4),
)


@given(functions(), CALLS)
def test_a_task_function_can_be_called_as_the_function_itself_can(function, call):
    args, kwargs = call
    try:
        function(*args, **kwargs)
    except TypeError:
        with DAG("d"), pytest.raises(DagError, match=r"function\(\) (cannot be called like this|lacks)"):
            task(function)(*args, **kwargs)
    else:
        with DAG("d"):
            task(function)(*args, **kwargs)


@pytest.mark.parametrize("default", ["", "=None"])
def test_what_the_context_gives_may_be_left_out(default):
    made = {}
    exec(f"def function(x, ti{default}): pass", made)
    with DAG("d"):
        task(made["function"])(1)


def test_a_parameter_that_the_context_gives_has_no_other_default_than_none():
    def function(x, ti=1):
        pass

    with DAG("d"), pytest.raises(DagError, match="'ti' comes from the task's context"):
        task(function)(1)


def test_default_args_are_arguments_that_the_call_does_not_give():
    def function(a, b=0, c=0, *, retries=0, d): ...

    @wraps(function)
    def wrapped(*args, **kwargs): ...

    with DAG("d", default_args={"a": "no", "b": "b", "c": "no", "d": "d", "retries": 2, "other": 1}):
        for called in (function, wrapped):
            made = task(called)(1, c=3).operator
            assert (made.op_args, made.op_kwargs) == ((1,), {"b": "b", "c": 3, "d": "d", "retries": 2})


def test_dates_of_default_args_are_aware_arguments_and_sensors_take_none():
    with DAG("d", default_args={"start_date": datetime(2026, 1, 1), "end_date": "2027-01-01", "timeout": 60.0}):

        @task
        def dated(start_date=None, end_date="never"): ...

        @task.sensor
        def ready(timeout=5): ...

        given = dated().operator.op_kwargs
        assert given == {"start_date": datetime(2026, 1, 1, tzinfo=UTC), "end_date": datetime(2027, 1, 1, tzinfo=UTC)}
        assert given["end_date"].add(days=1).day == 2, "a pendulum DateTime"
        assert ready().operator.op_kwargs == {}


def test_a_parameter_named_conf_may_have_a_default():
    with DAG("d"):
        assert task(lambda conf=1: conf, task_id="a")().operator.op_kwargs == {}
