"""ExternalTaskSensor, which waits for runs or tasks of another DAG, and ExternalTaskMarker."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.exceptions import AsynschedException, AsynschedSkipException
from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.base import EmptyOperator
from asynsched.authoring.operators.python import keyword_arguments
from asynsched.authoring.sensors.base import BaseSensorOperator
from asynsched.authoring.supervisor import SupervisorNotFound, ask
from asynsched.authoring.triggers.external_task import WorkflowTrigger, count_in_states
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any

    from asynsched.authoring.running.context import Context


class ExternalTaskSensor(BaseSensorOperator):
    """Waits for tasks, a task group or a run of another DAG, by default with the same logical date.

    Args:
        external_dag_id: The other DAG. (templated)
        external_task_id: The task to wait for. (templated)
        external_task_ids: Several tasks, instead of one. (templated)
        external_task_group_id: A task group, instead of tasks. Without any of these, the sensor waits for the run.
            (templated)
        allowed_states: The states that end the wait; by default `success`.
        skipped_states: States that skip this task as soon as one task has one of them.
        failed_states: States that fail this task, or skip it with `soft_fail`, as soon as one task has one of them.
        execution_delta: How much earlier the other run's logical date is.
        execution_date_fn: Instead of `execution_delta`, a function that returns the other logical date, or several. It
            receives this run's logical date, and the context's values for its other parameters.
        check_existence: Fail immediately if the DAG, task or task group does not exist. Otherwise the log names what is
            missing, and the sensor waits for a DAG or task; without the task group it fails, as in Airflow.
        poll_interval: With `deferrable`, the time between two checks, as a timedelta or seconds.
        deferrable: Wait in a WorkflowTrigger, without a process or pool slots.
    """

    template_fields: Collection[str] = (
        "external_dag_id", "external_task_id", "external_task_ids", "external_task_group_id",
    )  # fmt: skip
    ui_color = "#4db7db"

    def __init__(
        self,
        *,
        external_dag_id: str,
        external_task_id: str | None = None,
        external_task_ids: Collection[str] | None = None,
        external_task_group_id: str | None = None,
        allowed_states: Iterable[str] | None = None,
        skipped_states: Iterable[str] | None = None,
        failed_states: Iterable[str] | None = None,
        execution_delta: dt.timedelta | None = None,
        execution_date_fn: Callable[..., Any] | None = None,
        check_existence: bool = False,
        poll_interval: dt.timedelta | float = 2.0,
        deferrable: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        from asynsched.states import DagRunState, TaskInstanceState

        who = f"task {self.task_id!r}"
        self.allowed_states = _names(allowed_states) or [str(TaskInstanceState.SUCCESS)]
        self.skipped_states = _names(skipped_states)
        self.failed_states = _names(failed_states)
        if sum(bool(given) for given in (external_task_id, external_task_ids, external_task_group_id)) > 1:
            raise DagError(f"{who}: give one of external_task_id, external_task_ids and external_task_group_id")
        if execution_delta is not None and execution_date_fn is not None:
            raise DagError(f"{who}: execution_delta and execution_date_fn cannot be combined")
        of_tasks = external_task_id or external_task_ids or external_task_group_id
        _check_states(
            who,
            [*self.allowed_states, *self.skipped_states, *self.failed_states],
            [*map(str, TaskInstanceState if of_tasks else DagRunState)],
        )
        self.external_dag_id = external_dag_id
        self.external_task_id = external_task_id
        self.external_task_ids = [external_task_id] if external_task_id else external_task_ids or None
        self.external_task_group_id = external_task_group_id
        self.execution_delta = execution_delta
        self.execution_date_fn = execution_date_fn
        self.check_existence = check_existence
        self.poll_interval = arguments.duration(who, "poll_interval", poll_interval).total_seconds()
        self.deferrable = deferrable

    @property
    def subject(self) -> str:
        """The runs, tasks or group that the sensor waits for, in words."""
        if self.external_task_ids:
            return f"the tasks {', '.join(self.external_task_ids)} of the DAG {self.external_dag_id}"
        if self.external_task_group_id:
            return f"the task group {self.external_task_group_id} of the DAG {self.external_dag_id}"
        return f"the DAG {self.external_dag_id}"

    def execute(self, context: Context) -> Any:
        self._check_task_ids()
        is_first = not self.reschedule or context["ti"].get_first_reschedule_date(context) is None
        missing = self._missing() if self.check_existence or is_first else ""
        if missing and self.check_existence:
            raise AsynschedException(missing)
        if missing:
            self.log.warning("%s; waiting for it", missing)
        if self.deferrable:
            self.defer(trigger=self._trigger(context), method_name="execute_complete", timeout=self.timeout or None)
        return super().execute(context)

    def _trigger(self, context: Context) -> WorkflowTrigger:
        return WorkflowTrigger(
            external_dag_id=self.external_dag_id,
            external_task_ids=None if self.external_task_ids is None else list(self.external_task_ids),
            external_task_group_id=self.external_task_group_id,
            allowed_states=self.allowed_states,
            failed_states=self.failed_states,
            skipped_states=self.skipped_states,
            poke_interval=self.poll_interval,
            soft_fail=self.soft_fail,
            logical_dates=self._logical_dates(context),
        )

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> None:
        """Continue when the trigger has fired."""
        self._end_by((event or {}).get("status", ""))

    def poke(self, context: Context) -> bool:
        dates = self._logical_dates(context)
        self.log.info("Waiting for %s on %s", self.subject, ", ".join(date.isoformat() for date in dates))
        if self.failed_states and self._count(self.failed_states, dates):
            self._end_by("failed")
        if self.skipped_states and self._count(self.skipped_states, dates):
            self._end_by("skipped")
        return self._count(self.allowed_states, dates) == len(dates)

    def _count(self, states: list[str], dates: list[dt.datetime]) -> float:
        return count_in_states(
            self.external_dag_id,
            states,
            logical_dates=dates,
            task_ids=self.external_task_ids,
            task_group_id=self.external_task_group_id,
        )

    def _end_by(self, status: str) -> None:
        if status == "skipped":
            raise AsynschedSkipException(f"{self.subject}: skipped, so this task is skipped too")
        if status != "success":
            message = f"{self.subject}: failed"
            raise (AsynschedSkipException if self.soft_fail else AsynschedException)(message)
        self.log.info("%s: success", self.subject)

    def _logical_dates(self, context: Context) -> list[dt.datetime]:
        own = context.get("logical_date") or context["dag_run"].run_after
        if self.execution_delta is not None:
            return [own - self.execution_delta]
        if self.execution_date_fn is None:
            return [own]
        given = {name: context[name] for name in context if name != "logical_date"} | {"context": context}
        found = self.execution_date_fn(own, **keyword_arguments(self.execution_date_fn, [own], {}, given))
        return list(found) if isinstance(found, (list, tuple)) else [found]

    def _check_task_ids(self) -> None:
        # Rendering may have changed the arguments.
        if self.external_task_id is not None:
            self.external_task_ids = [self.external_task_id]
        if self.external_task_ids and len(set(self.external_task_ids)) < len(self.external_task_ids):
            raise AsynschedException(f"task {self.task_id!r}: external_task_ids contains an id twice")

    def _missing(self) -> str:
        """Return a sentence about the first missing object; empty if the DAG, tasks and task group all exist."""
        try:
            names: dict[str, list[str]] = ask("dag_names", dag_id=self.external_dag_id)
        except SupervisorNotFound:
            return f"there is no DAG {self.external_dag_id!r}"
        missing = sorted(set(self.external_task_ids or ()) - set(names["task_ids"]))
        if missing:
            return f"the DAG {self.external_dag_id!r} has no task {', '.join(map(repr, missing))}"
        if self.external_task_group_id and self.external_task_group_id not in names["group_ids"]:
            return f"the DAG {self.external_dag_id!r} has no task group {self.external_task_group_id!r}"
        return ""


class ExternalTaskMarker(EmptyOperator):
    """Documents that a task of another DAG depends on this one; it does nothing.

    Args:
        external_dag_id: The DAG of the dependent task. (templated)
        external_task_id: The dependent task. (templated)
        logical_date: The logical date of its run. (templated)
        recursion_depth: The longest chain of markers to follow.
    """

    template_fields: Collection[str] = ("external_dag_id", "external_task_id", "logical_date")
    ui_color = "#4db7db"

    def __init__(
        self,
        *,
        external_dag_id: str,
        external_task_id: str,
        logical_date: str | dt.datetime | None = "{{ logical_date.isoformat() }}",
        recursion_depth: int = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(logical_date, (str, dt.datetime)):
            raise DagError(f"task {self.task_id!r}: logical_date must be a datetime or a string, not {logical_date!r}")
        if recursion_depth <= 0:
            raise DagError(f"task {self.task_id!r}: recursion_depth must be at least 1")
        self.external_dag_id = external_dag_id
        self.external_task_id = external_task_id
        self.logical_date = logical_date.isoformat() if isinstance(logical_date, dt.datetime) else logical_date
        self.recursion_depth = recursion_depth


def _names(states: Iterable[str] | None) -> list[str]:
    return [str(getattr(state, "value", state)) for state in states or ()]


def _check_states(who: str, given: list[str], allowed: list[str]) -> None:
    if len(set(given)) < len(given):
        raise DagError(f"{who}: allowed_states, skipped_states and failed_states contain a state twice")
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise DagError(f"{who}: {', '.join(map(repr, unknown))} is not a state; use {', '.join(allowed)}")
