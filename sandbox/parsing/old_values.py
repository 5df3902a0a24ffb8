"""Finds where a DAG file reads values of Airflow 2's context, by its text: a parse does not run the tasks."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from asynsched.authoring.airflow_2 import OLD_VALUES

_CONTEXT = re.compile(r"context|ctx")
"""Matches names of variables that hold a context. In a task's function, names with `kwargs` do, too."""
OPERATORS = "(operators)"
"""In place of a function's name: it is not known to which function an operator gives its arguments."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_TEMPLATE = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_NAMES = re.compile(r"(?<![\w.'\"])(?:" + "|".join(sorted(OLD_VALUES, key=len, reverse=True)) + r")\b(?!\s*=[^=])")


@dataclass
class _Given:
    """The arguments that a file itself gives to a function, at most."""

    n_in_order: int = 0
    by_name: set[object] = field(default_factory=set)


def old_values(text: str) -> list[tuple[str, int]]:
    """Return advice on each old value that the text of a DAG file, or of its module, reads, with the line."""
    return sorted({(f"{name} is now {OLD_VALUES[name]}", line) for line, name in _in_text(text)})


def _in_text(text: str) -> Iterator[tuple[int, str]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    functions = _functions_of_tasks(tree)
    of_tasks = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=of, slice=ast.Constant(value=str(name))):
                if name in OLD_VALUES and _is_context(of, in_task=id(node) in of_tasks):
                    yield node.lineno, name
            case ast.Call(func=ast.Attribute(value=of, attr="get" | "pop"), args=[ast.Constant(value=str(name)), *_]):
                if name in OLD_VALUES and _is_context(of, in_task=id(node) in of_tasks):
                    yield node.lineno, name
            case ast.Constant(value=str(content)):
                for template in _TEMPLATE.finditer(content):
                    yield from ((node.lineno, name) for name in _NAMES.findall(template[1]))
    yield from _in_parameters(functions, _arguments_given(tree))


def _in_parameters(functions: Iterable[_Function], given: defaultdict[str, _Given]) -> Iterator[tuple[int, str]]:
    """Yield the parameters that get an old value, unless the file itself may give them another one."""
    for function in functions:
        sources = given[function.name], given[OPERATORS]
        n_given = max(one.n_in_order for one in sources)
        for one in (*(*function.args.posonlyargs, *function.args.args)[n_given:], *function.args.kwonlyargs):
            if one.arg in OLD_VALUES and not any(one.arg in source.by_name for source in sources):
                yield one.lineno, one.arg


def _arguments_given(tree: ast.AST) -> defaultdict[str, _Given]:
    """Return the arguments that calls give to functions, by name; for OPERATORS, those that operators give."""
    found: defaultdict[str, _Given] = defaultdict(_Given)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name), args=args):
                found[name].n_in_order = max(found[name].n_in_order, len(args))
                found[name].by_name.update(one.arg for one in node.keywords)
            case ast.keyword(arg="op_args", value=ast.List(elts=args) | ast.Tuple(elts=args)):
                found[OPERATORS].n_in_order = max(found[OPERATORS].n_in_order, len(args))
            case ast.keyword(arg="op_kwargs", value=ast.Dict(keys=keys)):
                found[OPERATORS].by_name.update(key.value for key in keys if isinstance(key, ast.Constant))
    return found


def _is_context(node: ast.expr, *, in_task: bool) -> bool:
    match node:
        case ast.Name(id=name):
            return _CONTEXT.search(name.lower()) is not None or (in_task and "kwargs" in name.lower())
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name == "get_current_context"
    return False


def _functions_of_tasks(tree: ast.AST) -> list[_Function]:
    """Return the functions that get values of the context by the names of their parameters."""
    called = {
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "python_callable" and isinstance(node.value, ast.Name)
    }
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, _Function) and (node.name in called or any(map(_is_task, node.decorator_list)))
    ]


def _is_task(decorator: ast.expr) -> bool:
    """Whether a decorator is `@task`, `@task.branch`, or one of them with arguments."""
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "task"
