"""Where a task stands in its DAG: what it follows, what follows it, which group, whether setup or teardown."""

from __future__ import annotations

from asynsched.authoring.node import DAGNode, flatten
from asynsched.authoring.setup_teardown import SetupTeardownContext, close_block
from asynsched.authoring.trigger_rule import TriggerRule
from asynsched.authoring.xcom_arg import XComArg
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.operators.base import BaseOperator


class TaskRelations(DAGNode):
    """The part of BaseOperator that knows the task's place."""

    task_id: str
    upstream_task_ids: set[str]
    downstream_task_ids: set[str]
    trigger_rule: str
    is_setup: bool
    is_teardown: bool
    on_failure_fail_dagrun: bool
    _dag: DAG | None = None

    @property
    def node_id(self) -> str:
        return self.task_id

    @property
    def dag(self) -> DAG:
        """The task's DAG. Raises DagError when it has none yet."""
        if self._dag is None:
            raise DagError(f"task {self.task_id!r} belongs to no DAG yet")
        return self._dag

    @dag.setter
    def dag(self, dag: DAG) -> None:
        dag.add_task(self)  # type: ignore[arg-type]

    def has_dag(self) -> bool:
        """Return whether the task belongs to a DAG."""
        return self._dag is not None

    def get_dag(self) -> DAG | None:
        """Return the task's DAG, None when it has none yet."""
        return self._dag

    @property
    def dag_id(self) -> str:
        """Its DAG's id; `_in_memory_dag_` when it has none yet, as in Airflow."""
        return "_in_memory_dag_" if self._dag is None else self._dag.dag_id

    def join_dag(self, dag: DAG) -> None:
        """Called by `DAG.add_task` alone. Raises DagError when the task belongs to another DAG."""
        if self._dag is not None and self._dag is not dag:
            raise DagError(
                f"task {self.task_id!r} belongs to DAG {self._dag.dag_id!r}, so DAG {dag.dag_id!r} cannot have it"
            )
        self._dag = dag
        if self.task_group is None:
            self.task_group = dag.task_group

    @property
    def roots(self) -> list[BaseOperator]:
        return [self]  # type: ignore[list-item]

    @property
    def leaves(self) -> list[BaseOperator]:
        return [self]  # type: ignore[list-item]

    @property
    def output(self) -> XComArg:
        """What the task returns, to be passed to another task."""
        return XComArg(self)  # type: ignore[arg-type]

    def get_direct_relative_ids(self, upstream: bool = False) -> set[str]:
        """Return the task_ids that are one arrow away."""
        return self.upstream_task_ids if upstream else self.downstream_task_ids

    def get_direct_relatives(self, upstream: bool = False) -> list[BaseOperator]:
        """Return the tasks that are one arrow away."""
        return [self.dag.task_dict[name] for name in sorted(self.get_direct_relative_ids(upstream))]

    @property
    def upstream_list(self) -> list[BaseOperator]:
        """The tasks that this one follows directly."""
        return self.get_direct_relatives(upstream=True)

    @property
    def downstream_list(self) -> list[BaseOperator]:
        """The tasks that follow this one directly."""
        return self.get_direct_relatives(upstream=False)

    def get_flat_relative_ids(self, *, upstream: bool = False) -> set[str]:
        """Return the task_ids upstream or downstream, any number of arrows away."""
        found: set[str] = set()
        todo = list(self.get_direct_relative_ids(upstream))
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo.extend(self.dag.task_dict[name].get_direct_relative_ids(upstream))
        return found

    def get_flat_relatives(self, upstream: bool = False) -> list[BaseOperator]:
        """Return the tasks upstream or downstream, any number of arrows away."""
        return [self.dag.task_dict[name] for name in sorted(self.get_flat_relative_ids(upstream=upstream))]

    def as_setup(self) -> Self:
        if self.is_teardown:
            raise DagError(f"task {self.task_id!r} is a teardown, so it cannot be a setup")
        self.is_setup = True
        return self

    def as_teardown(self, *, setups: Any = None, on_failure_fail_dagrun: bool | None = None) -> Self:
        if self.is_setup:
            raise DagError(f"task {self.task_id!r} is a setup, so it cannot be a teardown")
        self.is_teardown = True
        self.trigger_rule = TriggerRule.ALL_DONE_SETUP_SUCCESS
        if on_failure_fail_dagrun is not None:
            self.on_failure_fail_dagrun = on_failure_fail_dagrun
        for setup in flatten([] if setups is None else setups):
            setup.as_setup()
            setup.set_downstream(self)
        return self

    def __enter__(self) -> SetupTeardownContext:
        return SetupTeardownContext(self).open()  # type: ignore[arg-type]

    def __exit__(self, *_: object) -> None:
        close_block()
