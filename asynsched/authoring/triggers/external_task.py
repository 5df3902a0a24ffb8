"""WorkflowTrigger and DagStateTrigger: fire when runs or tasks of another DAG reach certain states."""

from __future__ import annotations

from asynsched.authoring.running.task_instance import AsksElsewhere
from asynsched.authoring.triggers.base import PollingTrigger, TriggerEvent

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection
    from typing import Any


class WorkflowTrigger(PollingTrigger):
    """Fires when runs of a DAG, or tasks or a task group in them, reach certain states.

    The payload is `{"status": "success"}`, `{"status": "failed"}` or `{"status": "skipped"}`.

    Args:
        execution_dates: The older name of `logical_dates`.
        logical_dates: The logical dates of the runs, instead of `run_ids`.
        external_task_group_id: The task group, instead of tasks. Without either, the runs themselves count.
        failed_states: If any has one of these states, the trigger fires as failed.
        skipped_states: If any has one of these states, the trigger fires as skipped.
        allowed_states: When all have one of these states, the trigger fires as success.
        poke_interval: The seconds between two checks.
        soft_fail: Accepted as in Airflow; the sensor decides.
    """

    fields = (
        "external_dag_id", "run_ids", "logical_dates", "external_task_ids", "external_task_group_id", "failed_states",
        "skipped_states", "allowed_states", "poke_interval", "soft_fail",
    )  # fmt: skip

    def __init__(
        self,
        external_dag_id: str,
        run_ids: list[str] | None = None,
        execution_dates: list[dt.datetime] | None = None,
        logical_dates: list[dt.datetime] | None = None,
        external_task_ids: Collection[str] | None = None,
        external_task_group_id: str | None = None,
        failed_states: Collection[str] | None = None,
        skipped_states: Collection[str] | None = None,
        allowed_states: Collection[str] | None = None,
        poke_interval: float = 2.0,
        soft_fail: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.external_dag_id = external_dag_id
        self.run_ids = run_ids
        self.logical_dates = logical_dates or execution_dates
        self.external_task_ids = external_task_ids
        self.external_task_group_id = external_task_group_id
        self.failed_states = failed_states
        self.skipped_states = skipped_states
        self.allowed_states = allowed_states
        self.poke_interval = poke_interval
        self.soft_fail = soft_fail

    def check(self) -> TriggerEvent | None:
        status = self.status()
        return None if status is None else TriggerEvent({"status": status})

    def status(self) -> str | None:
        """Return the status of the payload; None while the states are others."""
        if self.failed_states and self._count(self.failed_states):
            return "failed"
        if self.skipped_states and self._count(self.skipped_states):
            return "skipped"
        expected = len(self.run_ids or self.logical_dates or ())
        return "success" if self._count(self.allowed_states or ["success"]) == expected else None

    def _count(self, states: Collection[str]) -> float:
        """Return the number of runs whose tasks, task group, or without either the run itself, are in these states.

        If some of a run's tasks are, the run counts as a fraction.
        """
        runs: dict[str, Any] = {"logical_dates": self.logical_dates, "run_ids": self.run_ids}
        if self.external_task_ids:
            tasks = self.external_task_ids
            return AsksElsewhere.get_ti_count(self.external_dag_id, task_ids=tasks, states=states, **runs) / len(tasks)
        if group := self.external_task_group_id:
            by_run = AsksElsewhere.get_task_states(self.external_dag_id, task_group_id=group, **runs)
            return sum(bool(tasks) and all(state in states for state in tasks.values()) for tasks in by_run.values())
        return AsksElsewhere.get_dr_count(self.external_dag_id, states=states, **runs)


class DagStateTrigger(PollingTrigger):
    """Fires when all given runs of a DAG are in certain states.

    The payload is the path of this class, and its arguments with each run's state by run_id.

    Args:
        execution_dates: The logical dates of the runs, instead of `run_ids`.
        poll_interval: The seconds between two checks.
    """

    fields = ("dag_id", "states", "run_ids", "execution_dates", "poll_interval")

    def __init__(
        self,
        dag_id: str,
        states: list[str],
        run_ids: list[str] | None = None,
        execution_dates: list[dt.datetime] | None = None,
        poll_interval: float = 5.0,
    ) -> None:
        super().__init__()
        self.dag_id = dag_id
        self.states = [str(state) for state in states]
        self.run_ids = run_ids
        self.execution_dates = execution_dates
        self.poll_interval = self.poke_interval = poll_interval

    def check(self) -> TriggerEvent | None:
        found = AsksElsewhere.get_dr_count(
            self.dag_id, logical_dates=self.execution_dates, run_ids=self.run_ids, states=self.states
        )
        if found != len(self.run_ids or self.execution_dates or ()):
            return None
        states = {run_id: AsksElsewhere.get_dagrun_state(self.dag_id, run_id) for run_id in self.run_ids or ()}
        path, arguments = self.serialize()
        return TriggerEvent((path, {**arguments, **states}))
