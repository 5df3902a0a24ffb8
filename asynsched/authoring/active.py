"""Which DAG and task group the statements of a DAG file are inside of, and which DAGs a file has made, or has not."""

from __future__ import annotations

import sys

from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FunctionType

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.task_group import TaskGroup
    from asynsched.authoring.xcom_arg import XComArg


_dags: list[DAG | None] = []
_groups: list[TaskGroup | None] = []
_registered: dict[int, DAG] = {}
_dag_functions: dict[FunctionType, bool] = {}


def push_dag(dag: DAG | None) -> None:
    """Enter a DAG; None hides the DAGs around."""
    _dags.append(dag)
    # A group around does not hold the tasks of another DAG.
    _groups.append(None)


def pop_dag() -> DAG | None:
    """Leave the innermost DAG."""
    _groups.pop()
    return _dags.pop()


def current_dag() -> DAG | None:
    """Return the innermost DAG, None outside of all."""
    return _dags[-1] if _dags else None


def push_group(group: TaskGroup) -> None:
    """Enter a task group."""
    _groups.append(group)


def pop_group() -> TaskGroup | None:
    """Leave the innermost task group."""
    return _groups.pop()


def current_group(dag: DAG | None) -> TaskGroup | None:
    """Return the innermost task group if it belongs to `dag`, else that DAG's root group; None without a DAG."""
    group = _groups[-1] if _groups else None
    if group is not None and (dag is None or group.dag is dag):
        return group
    return None if dag is None else dag.task_group


def register(dag: DAG) -> None:
    """Remember a DAG that a file has made, also when it keeps it in no variable."""
    # By identity: two DAGs of one dag_id are two, and an error when they are collected.
    _registered[id(dag)] = dag


def registered() -> tuple[DAG, ...]:
    """Return the DAGs that were registered, in order."""
    return tuple(_registered.values())


def note_dag_function(function: FunctionType, *, is_called: bool) -> None:
    """Remember that a function was decorated with `@dag`, or that this was called."""
    _dag_functions[function] = is_called


def forgotten_dag_functions(path: str) -> list[FunctionType]:
    """Return the functions of a file, or of an archive, that were decorated with `@dag`, if none of them was called."""
    own = {
        function: is_called
        for function, is_called in _dag_functions.items()
        if hasattr(function, "__code__") and f"{function.__code__.co_filename}/".startswith(f"{path}/")
    }
    return [] if any(own.values()) else list(own)


def forget_registered() -> None:
    """Forget all registered DAGs, before another file is imported."""
    _registered.clear()
    _dag_functions.clear()


_open: list[SetupTeardownContext] = []


class SetupTeardownContext:
    """One `with` block around the work of a setup and a teardown."""

    def __init__(self, task: BaseOperator) -> None:
        if task.is_setup:
            self.setups, self.teardowns = [task], _nearest(task, "is_teardown")
        elif task.is_teardown:
            self.setups, self.teardowns = _nearest(task, "is_setup"), [task]
        else:
            raise DagError(f"task {task.task_id!r} is neither setup nor teardown: only these can be used with `with`")
        self.work: list[BaseOperator] = []

    def add_task(self, task: BaseOperator | XComArg) -> None:
        """Put a task, made outside of the block, between setup and teardown."""
        self.work.extend(task.leaves)

    def open(self) -> SetupTeardownContext:
        """Begin the block."""
        _open.append(self)
        return self

    def close(self) -> None:
        """End the block, and draw its arrows."""
        _open.remove(self)
        work = [task for task in self.work if not task.is_setup and not task.is_teardown]
        if work:
            for task in [task for task in work if not task.upstream_task_ids] or work[:1]:
                task.set_upstream(self.setups)
            for task in [task for task in work if not task.downstream_task_ids] or work[-1:]:
                task.set_downstream(self.teardowns)
        if _open:
            for setup in self.setups:
                setup.set_upstream(_open[-1].setups)
            for teardown in self.teardowns:
                teardown.set_downstream(_open[-1].teardowns)


def note_new_task(task: BaseOperator) -> None:
    """Put a task that was just made into the innermost open block, if there is one."""
    if _open:
        _open[-1].work.append(task)


def close_block() -> None:
    """End the innermost block."""
    _open[-1].close()


def _nearest(task: BaseOperator, role: str) -> list[BaseOperator]:
    """Return the setups or teardowns that are fewest arrows away, downstream of a setup, upstream of a teardown."""
    upstream = role == "is_setup"
    level, seen = [task], {task.task_id}
    while level:
        found = [other for other in level if getattr(other, role)]
        if found:
            return found
        level = [other for near in level for other in near.get_direct_relatives(upstream) if other.task_id not in seen]
        seen.update(other.task_id for other in level)
    return []


class Origin:
    """A place in a DAG file.

    Its line is looked up when it is asked for. That takes a walk through the code from its first line on: for each of
    thousands of DAGs of one file it would take seconds.
    """

    __slots__ = ("_code", "_instruction")

    def __init__(self, code: CodeType, instruction: int) -> None:
        self._code = code
        self._instruction = instruction

    @property
    def filename(self) -> str:
        """The file, as Python knows it."""
        return self._code.co_filename

    @property
    def lineno(self) -> int:
        """The line, counted from 1."""
        lines = (line for start, end, line in self._code.co_lines() if start <= self._instruction < end)
        return next(lines, None) or self._code.co_firstlineno


def where_made() -> Origin:
    """Return the innermost statement that is outside of this package."""
    package = __name__.rpartition(".")[0]
    frame = sys._getframe(1)  # noqa: SLF001 - `inspect` calls the same, and is not worth its import
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(package):
        frame = frame.f_back
    return Origin(frame.f_code, frame.f_lasti)


class ParsingContext:
    """For which DAG, and for which task, a file is loaded: None means for all.

    Attributes:
        dag_id: Always None: a file is loaded whole, once for many tries.
        task_id: Always None.
    """

    __slots__ = ()
    dag_id: str | None = None
    task_id: str | None = None


def get_parsing_context() -> ParsingContext:
    """Return for what the file is loaded: for all of its DAGs, so that one that asks leaves out none."""
    return ParsingContext()
