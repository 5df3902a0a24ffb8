"""What a task may ask about runs of any DAG. `ti` offers it under the names of Airflow's task SDK."""

from __future__ import annotations

from asynsched.authoring.supervisor import SupervisorNotFound, ask, ask_in_parts
from asynsched.authoring.timezone import coerce_datetime

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Mapping
    from typing import Any


class PreviousTaskInstance:
    """A task instance of an earlier run: its names, state, numbers and, as pendulum's instants, its dates."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.dag_id: str = fields["dag_id"]
        self.run_id: str = fields["run_id"]
        self.task_id: str = fields["task_id"]
        self.map_index: int = fields["map_index"]
        self.state: str | None = fields["state"]
        self.try_number: int = fields["try_number"]
        self.logical_date = _instant(fields["logical_date"])
        self.start_date = _instant(fields["started_at"])
        self.end_date = _instant(fields["ended_at"])

    @property
    def duration(self) -> float | None:
        """Seconds that its try took; None where it has not run to an end."""
        if self.start_date is None or self.end_date is None:
            return None
        seconds: float = (self.end_date - self.start_date).total_seconds()
        return seconds

    def __repr__(self) -> str:
        return f"<PreviousTaskInstance {self.dag_id} {self.run_id} {self.task_id} {self.state}>"


class AsksElsewhere:
    """The questions; each may be asked without a task instance, but only by a task that runs."""

    @staticmethod
    def get_ti_count(
        dag_id: str,
        map_index: int | None = None,
        task_ids: Collection[str] | None = None,
        task_group_id: str | None = None,
        logical_dates: Collection[dt.datetime] | None = None,
        run_ids: Collection[str] | None = None,
        states: Collection[str] | None = None,
    ) -> int:
        """Return how many task instances there are; what is None or empty limits nothing.

        Raises:
            SupervisorNotFound: The DAG has no such task group.
        """
        wanted = _wanted(dag_id, logical_dates, run_ids, states)
        n: int = ask("task_count", **wanted, **_tasks(map_index, task_ids, task_group_id))
        return n

    @staticmethod
    def get_task_states(
        dag_id: str,
        map_index: int | None = None,
        task_ids: Collection[str] | None = None,
        task_group_id: str | None = None,
        logical_dates: Collection[dt.datetime] | None = None,
        run_ids: Collection[str] | None = None,
    ) -> dict[str, dict[str, str | None]]:
        """Return states by run_id and then task_id, a mapped task's by task_id, `_` and index.

        Raises:
            SupervisorNotFound: The DAG has no such task group.
        """
        wanted = _wanted(dag_id, logical_dates, run_ids, None)
        states: dict[str, dict[str, str | None]] = {}
        for part in ask_in_parts("task_states", **wanted, **_tasks(map_index, task_ids, task_group_id)):
            for run_id, found in part.items():
                states.setdefault(run_id, {}).update(found)
        return states

    @staticmethod
    def get_dr_count(
        dag_id: str,
        logical_dates: Collection[dt.datetime] | None = None,
        run_ids: Collection[str] | None = None,
        states: Collection[str] | None = None,
    ) -> int:
        """Return how many runs there are; what is None or empty limits nothing."""
        n: int = ask("run_count", **_wanted(dag_id, logical_dates, run_ids, states))
        return n

    @staticmethod
    def get_dagrun_state(dag_id: str, run_id: str) -> str:
        """Return the state of a run. Raises SupervisorNotFound when there is none."""
        state: str = ask("run_state", dag_id=dag_id, run_id=run_id)
        return state


def previous_task_instance(**asked: Any) -> PreviousTaskInstance | None:
    """Return the task instance that `previous_task_instance` finds; None when there is none."""
    try:
        return PreviousTaskInstance(ask("previous_task_instance", **asked))
    except SupervisorNotFound:
        return None


def _wanted(
    dag_id: str,
    logical_dates: Collection[dt.datetime] | None,
    run_ids: Collection[str] | None,
    states: Collection[str] | None,
) -> dict[str, Any]:
    return {
        "dag_id": dag_id,
        "logical_dates": None if logical_dates is None else [date.isoformat() for date in logical_dates],
        "run_ids": None if run_ids is None else list(run_ids),
        "states": None if states is None else [str(state) for state in states],
    }


def _tasks(map_index: int | None, task_ids: Collection[str] | None, task_group_id: str | None) -> dict[str, Any]:
    names = None if task_ids is None else list(task_ids)
    return {"map_index": map_index, "task_ids": names, "task_group_id": task_group_id}


def _instant(text: str | None) -> Any:
    import datetime as dt

    return None if text is None else coerce_datetime(dt.datetime.fromisoformat(text))
