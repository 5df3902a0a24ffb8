"""Finds where a DAG file reads values of Airflow 2's context, by its text: a parse does not run the tasks."""

import ast
import re
from collections.abc import Iterator

from asynsched.authoring.airflow_2 import OLD_VALUES

_CONTEXT = re.compile(r"context|ctx|kwargs")
"""In the name of a variable that holds a context."""
_TEMPLATE = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_NAMES = re.compile(r"(?<![\w.'\"])(?:" + "|".join(sorted(OLD_VALUES, key=len, reverse=True)) + r")\b(?!\s*=[^=])")


def old_values(text: str) -> list[tuple[str, int]]:
    """Return what the text of a DAG file, or of a module that it imports, should write instead, with each line."""
    return sorted({(f"{name} is now {OLD_VALUES[name]}", line) for line, name in _in_text(text)})


def _in_text(text: str) -> Iterator[tuple[int, str]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    functions = _functions_of_tasks(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=of, slice=ast.Constant(value=str(name))) if name in OLD_VALUES and _is_context(of):
                yield node.lineno, name
            case ast.Call(
                func=ast.Attribute(value=of, attr="get" | "pop"), args=[ast.Constant(value=str(name)), *_]
            ) if name in OLD_VALUES and _is_context(of):
                yield node.lineno, name
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name in functions:
                given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                yield from ((one.lineno, one.arg) for one in given if one.arg in OLD_VALUES)
            case ast.Constant(value=str(content)):
                for template in _TEMPLATE.finditer(content):
                    yield from ((node.lineno, name) for name in _NAMES.findall(template[1]))


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
