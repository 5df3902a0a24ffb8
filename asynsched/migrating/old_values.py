"""Finds where a DAG file reads values of Airflow 2's context. A parse cannot tell: it does not run the tasks."""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from asynsched.authoring.airflow_2 import OLD_VALUES
from asynsched.serialization.schema import ParseReport

_CONTEXT = re.compile(r"context|ctx|kwargs")
"""In the name of a variable that holds a context."""
_TEMPLATE = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_NAMES = re.compile(r"(?<![\w.'\"])(?:" + "|".join(sorted(OLD_VALUES, key=len, reverse=True)) + r")\b(?!\s*=[^=])")


class OldValue(NamedTuple):
    """A place at which a file reads such a value."""

    file: str
    line: int
    name: str

    @property
    def what(self) -> str:
        """What a user should know of it."""
        return f"{self.name} is a value of Airflow 2, which works here; write {OLD_VALUES[self.name]}"


def old_values(reports: Iterable[ParseReport]) -> list[OldValue]:
    """Return where DAG files, and the modules of the folder that they import, read values of Airflow 2."""
    texts = {source.path: source.text for report in reports for source in report.sources}
    return sorted({found for path, text in texts.items() for found in _in_text(path, text)})


def _in_text(path: str, text: str) -> Iterator[OldValue]:
    if not any(name in text for name in OLD_VALUES):
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    functions = _functions_of_tasks(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=of, slice=ast.Constant(value=str(name))) if name in OLD_VALUES and _is_context(of):
                yield OldValue(path, node.lineno, name)
            case ast.Call(
                func=ast.Attribute(value=of, attr="get" | "pop"), args=[ast.Constant(value=str(name)), *_]
            ) if name in OLD_VALUES and _is_context(of):
                yield OldValue(path, node.lineno, name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name in functions:
                given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                yield from (OldValue(path, one.lineno, one.arg) for one in given if one.arg in OLD_VALUES)
            case ast.Constant(value=str(content)):
                for template in _TEMPLATE.finditer(content):
                    yield from (OldValue(path, node.lineno, name) for name in _NAMES.findall(template[1]))


def _is_context(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name):
            return _CONTEXT.search(name.lower()) is not None
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name == "get_current_context"
    return False


def _functions_of_tasks(tree: ast.AST) -> set[str]:
    """Return the names of functions that get values of the context by the names of their parameters."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "python_callable" and isinstance(node.value, ast.Name):
            found.add(node.value.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(map(_is_task, node.decorator_list)):
            found.add(node.name)
    return found


def _is_task(decorator: ast.expr) -> bool:
    """Whether a decorator is `@task`, `@task.branch`, or one of them with arguments."""
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "task"
