"""Which tasks are meant when somebody clears or marks some."""

import pytest

from asynsched.scheduling.rules.clearing import TaskSelection
from tests.support.runs import task

# first -> su -> work -> check -> td -> last, and su is torn down by td; side has nothing to do with them.
CHAIN = TaskSelection(
    [
        task("first", "su"),
        task("su", "work", "td", is_setup=True),
        task("work", "check"),
        task("check", "td"),
        task("td", "last", is_teardown=True),
        task("last"),
        task("side"),
    ]
)


@pytest.mark.parametrize(
    ("task_id", "upstream", "downstream", "selected"),
    [
        ("side", False, False, {"side"}),
        ("work", False, False, {"work", "su", "td"}),
        ("check", False, True, {"check", "su", "td", "last"}),
        ("work", True, False, {"first", "su", "work", "td"}),
        ("su", False, False, {"su", "td"}),
        ("td", False, False, {"td"}),
        ("last", True, False, {"first", "su", "work", "check", "td", "last"}),
        ("first", False, True, {"first", "su", "work", "check", "td", "last"}),
    ],
)
def test_what_is_cleared_with_a_task_lets_it_run_again(task_id, upstream, downstream, selected):
    assert CHAIN.to_clear([task_id], upstream=upstream, downstream=downstream) == selected


def test_a_task_is_marked_without_its_setups():
    assert CHAIN.to_mark(["work"]) == {"work"}
    assert CHAIN.to_mark(["work"], upstream=True, downstream=True) == {"first", "su", "work", "check", "td", "last"}
