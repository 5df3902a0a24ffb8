"""Every argument of tasks and DAGs has an effect, or is listed as one without."""

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

from asynsched.authoring.dag import DagArguments
from asynsched.authoring.operators.base import BaseOperator
from asynsched.errors import WITHOUT_EFFECT

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs" / "discussion" / "differences-from-airflow.md"
TAKEN = {
    BaseOperator: ROOT / "asynsched/authoring/operators/base.py",
    DagArguments: ROOT / "asynsched/authoring/dag.py",
}
"""Where each takes its arguments: that alone is no effect."""
HERE = {
    BaseOperator: {"dag", "kwargs", "logger_name", "task_group", "task_id"},
    DagArguments: {"auto_register", "dag_id", "unknown"},
}
"""Arguments that have their effect where they are taken."""


@cache
def names_in(path: Path) -> set[str]:
    """Return the attributes that a module reads, and the texts in it, by which it may read some."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def names_read(*, except_in: Path) -> set[str]:
    """Return the names that any other module reads."""
    modules = {*ROOT.glob("asynsched/**/*.py"), *ROOT.glob("sandbox/**/*.py")}
    read = set().union(*(names_in(path) for path in modules - {except_in, ROOT / "asynsched/errors.py"}))
    return read | {f"on_{event}_callback" for event in ("execute", "success", "failure", "retry", "skipped")}


@pytest.mark.parametrize("owner", TAKEN)
def test_an_argument_that_no_code_reads_is_listed_as_without_effect(owner):
    given = set(inspect.signature(owner.__init__).parameters) - {"self"} - HERE[owner]
    assert given - names_read(except_in=TAKEN[owner]) - WITHOUT_EFFECT.keys() == set()


def test_the_page_of_differences_lists_every_argument_without_effect():
    section = DOCS.read_text(encoding="utf-8").partition("## Accepted without effect")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ") and "`" in line]
    listed = {name for row in rows for name in re.findall(r"`(\w+)[=`]", row)} - {"local", "sequential"}
    assert listed == WITHOUT_EFFECT.keys()
    known = {name for owner in TAKEN for name in inspect.signature(owner.__init__).parameters}
    assert listed - known == set()
