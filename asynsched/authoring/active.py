"""The state of a DAG file's execution: the current DAG, task group, setup block and line; and the objects it made."""

from __future__ import annotations

import sys

from asynsched.errors import DagError, NoEffectWarning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType, FunctionType

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.task_group import TaskGroup
    from asynsched.authoring.xcom_arg import XComArg

_open: list[tuple[DAG | None, TaskGroup | None]] = []
_blocks: list[SetupTeardownContext] = []
_registered: dict[int, DAG] = {}
_dag_functions: dict[FunctionType, bool] = {}


class ParsingContext:
    """The DAG and the task that a file is loaded for. Both are always None: a file is loaded whole, for many tries."""

    __slots__ = ()
    dag_id: str | None = None
    task_id: str | None = None


def get_parsing_context() -> ParsingContext:
    """Return which DAG the file is loaded for: all of them, so a file that asks leaves none out."""
    return ParsingContext()


class Origin:
    """A place in a DAG file.

    The line is looked up on demand: a lookup walks through the code from its first line, which would take seconds in a
    file that defines thousands of DAGs.
    """

    __slots__ = ("_code", "_instruction")

    def __init__(self, code: CodeType, instruction: int) -> None:
        self._code = code
        self._instruction = instruction

    @property
    def filename(self) -> str:
        return self._code.co_filename

    @property
    def lineno(self) -> int:
        lines = (line for start, end, line in self._code.co_lines() if start <= self._instruction < end)
        return next(lines, None) or self._code.co_firstlineno

    def __str__(self) -> str:
        return f"{self.filename}, line {self.lineno}"


def where_made() -> Origin:
    """Return the innermost running statement outside of this package."""
    package = __name__.rpartition(".")[0]
    frame = sys._getframe(1)  # noqa: SLF001 - `inspect` calls the same, and is not worth its import
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(package):
        frame = frame.f_back
    return Origin(frame.f_code, frame.f_lasti)


def importing_file() -> str:
    """Return the file of the innermost module that is being imported; empty when none is."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - see `where_made`
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


def warn_of_no_effect(owner: str, arguments: tuple[str, ...]) -> None:
    """Warn that arguments of Airflow have no effect here."""
    warn_in_parses(NoEffectWarning(owner, arguments))


def warn_in_parses(message: Warning) -> None:
    """Warn, at the innermost running statement outside of this package."""
    import warnings

    where = where_made()
    show_only_in_parses(type(message))
    warnings.warn_explicit(message, type(message), where.filename, where.lineno)


def show_only_in_parses(category: type[Warning]) -> None:
    """Ignore warnings of a category, except in a parse: `dags errors --warnings` shows those.

    A try that loads its DAG file would repeat them all in its log.
    """
    import warnings

    warnings.filterwarnings("ignore", category=category, append=True)


def enter(dag: DAG | None, group: TaskGroup | None = None) -> None:
    """Enter a DAG or a task group. None hides the DAGs around; the groups of a DAG around do not take its tasks."""
    _open.append((dag, group))


def leave() -> None:
    """Leave the innermost DAG or task group."""
    _open.pop()


def current_dag() -> DAG | None:
    """Return the innermost DAG; None outside of all."""
    return _open[-1][0] if _open else None


def current_group(dag: DAG | None) -> TaskGroup | None:
    """Return the innermost task group if it belongs to `dag`, else that DAG's root group; None without a DAG."""
    group = _open[-1][1] if _open else None
    if group is not None and (dag is None or group.dag is dag):
        return group
    return None if dag is None else dag.task_group


class SetupTeardownContext:
    """A `with setup >> teardown:` block: the tasks made inside run between the two.

    Tasks inside without an upstream follow the setups; those without a downstream are followed by the teardowns. The
    setups and teardowns of an inner block lie between those of the outer one.

    Source: Apache Airflow's `SetupTeardownContext`.
    """

    def __init__(self, task: BaseOperator) -> None:
        if task.is_setup:
            self.setups, self.teardowns = [task], _nearest(task, "is_teardown")
        elif task.is_teardown:
            self.setups, self.teardowns = _nearest(task, "is_setup"), [task]
        else:
            raise DagError(f"task {task.task_id!r} is neither setup nor teardown: only these can be used with `with`")
        self.work: list[BaseOperator] = []

    def add_task(self, task: BaseOperator | XComArg) -> None:
        """Put a task that was made outside of the block between setup and teardown."""
        self.work.extend(task.leaves)

    def open(self) -> SetupTeardownContext:
        _blocks.append(self)
        return self

    def close(self) -> None:
        """End the block, and draw its arrows."""
        _blocks.remove(self)
        work = [task for task in self.work if not task.is_setup and not task.is_teardown]
        if work:
            for task in [task for task in work if not task.upstream_task_ids] or work[:1]:
                task.set_upstream(self.setups)
            for task in [task for task in work if not task.downstream_task_ids] or work[-1:]:
                task.set_downstream(self.teardowns)
        if _blocks:
            for setup in self.setups:
                setup.set_upstream(_blocks[-1].setups)
            for teardown in self.teardowns:
                teardown.set_downstream(_blocks[-1].teardowns)


def note_new_task(task: BaseOperator) -> None:
    """Put a new task into the innermost open setup block, if there is one."""
    if _blocks:
        _blocks[-1].work.append(task)


def close_block() -> None:
    """End the innermost setup block."""
    _blocks[-1].close()


def _nearest(task: BaseOperator, role: str) -> list[BaseOperator]:
    """Return the nearest setups or teardowns: downstream of a setup, upstream of a teardown."""
    upstream = role == "is_setup"
    level, seen = [task], {task.task_id}
    while level:
        found = [other for other in level if getattr(other, role)]
        if found:
            return found
        level = [other for near in level for other in near.get_direct_relatives(upstream) if other.task_id not in seen]
        seen.update(other.task_id for other in level)
    return []


def register(dag: DAG) -> None:
    """Remember a DAG that a file has made, even if the file keeps it in no variable."""
    # By identity: that two DAGs have one dag_id is found when they are collected.
    _registered[id(dag)] = dag


def registered() -> tuple[DAG, ...]:
    """Return the registered DAGs, in order."""
    return tuple(_registered.values())


def note_dag_function(function: FunctionType, *, is_called: bool) -> None:
    """Remember that a function was decorated with `@dag`, or that it was called."""
    _dag_functions[function] = is_called


def forgotten_dag_functions(path: str) -> list[FunctionType]:
    """Return the `@dag` functions of a file or an archive, if none of them was called."""
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
