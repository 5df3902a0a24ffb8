"""`with setup() >> teardown():` — the tasks inside run between the two.

Source: Apache Airflow's SetupTeardownContext. What is inside and has no upstream follows the setups, what has no
downstream is followed by the teardowns; of two blocks, the inner one's setups and teardowns lie between the outer's.
"""

from __future__ import annotations

from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.xcom_arg import XComArg

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
