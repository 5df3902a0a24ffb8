"""What depends on other DAGs: TriggerDagRunOperator, ExternalTaskSensor and ExternalTaskMarker."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring import defaults
from asynsched.authoring.exceptions import (
    AsynschedException,
    AsynschedSkipException,
    DagIsPaused,
    DagRunAlreadyExists,
    ExternalDagFailedError,
    ExternalDagNotFoundError,
    ExternalTaskFailedError,
    ExternalTaskGroupFailedError,
    ExternalTaskGroupNotFoundError,
    ExternalTaskNotFoundError,
)
from asynsched.authoring.json_values import check_json
from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.base import BaseOperator, EmptyOperator
from asynsched.authoring.operators.python import keyword_arguments
from asynsched.authoring.params import NOTSET
from asynsched.authoring.running.task_instance import AsksElsewhere
from asynsched.authoring.sensors.base import BaseSensorOperator
from asynsched.authoring.supervisor import SupervisorNotFound, ask
from asynsched.authoring.timezone import aware, parsed
from asynsched.authoring.triggers.external_task import DagStateTrigger, WorkflowTrigger
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any, Unpack

    from asynsched.authoring.keywords import SensorKeywords, TaskKeywords
    from asynsched.authoring.running.context import Context


class TriggerDagRunOperator(BaseOperator):
    """Triggers a run of a DAG, and can wait for it. It pushes the XComs `trigger_dag_id` and `trigger_run_id`.

    Args:
        trigger_dag_id: The DAG to trigger. (templated)
        trigger_run_id: The run's id; by default made from its earliest start, or from the logical date. (templated)
        conf: The run's conf, as JSON values, or as the JSON text of a dict. (templated)
        logical_date: The run's logical date, a datetime or a string; None for a run without one. By default now, or
            none if `run_after` is given. (templated)
        reset_dag_run: If the run already exists, clear it so that it runs again; its conf does not change.
        wait_for_completion: Wait until the run has ended. (templated)
        poke_interval: The time between two checks, as a timedelta or seconds.
        allowed_states: The states of the run with which this task succeeds; by default `success`.
        failed_states: The states with which it fails; by default `failed`.
        skip_when_already_exists: If the run already exists, skip this task instead of failing it. (templated)
        fail_when_dag_is_paused: If the DAG is paused, fail instead of leaving the run to wait.
        deferrable: Wait in a DagStateTrigger, without a process or pool slots; None: if the option `[operators]
            default_deferrable` says so.
        note: A note about the run, of 1,000 characters at most. (templated)
        run_after: The run's earliest start, a datetime or a string; by default it may start at once. (templated)
        openlineage_inject_parent_info: Accepted for Airflow's files; nothing is added to the conf.
    """

    template_fields: Collection[str] = (
        "trigger_dag_id", "trigger_run_id", "logical_date", "conf", "wait_for_completion", "skip_when_already_exists",
        "note", "run_after",
    )  # fmt: skip
    ui_color = "#ffefeb"

    def __init__(
        self,
        *,
        trigger_dag_id: str,
        trigger_run_id: str | None = None,
        conf: dict[str, Any] | str | None = None,
        logical_date: str | dt.datetime | Any | None = NOTSET,
        reset_dag_run: bool = False,
        wait_for_completion: bool = False,
        poke_interval: dt.timedelta | float = 60,
        allowed_states: list[str] | None = None,
        failed_states: list[str] | None = None,
        skip_when_already_exists: bool = False,
        fail_when_dag_is_paused: bool = False,
        deferrable: bool | None = None,
        note: str | None = None,
        run_after: str | dt.datetime | None = None,
        openlineage_inject_parent_info: bool = True,
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(**kwargs)
        if logical_date is not NOTSET and not isinstance(logical_date, (str, dt.datetime, type(None))):
            raise DagError(f"task {self.task_id!r}: logical_date must be a datetime or a string, not {logical_date!r}")
        who = f"task {self.task_id!r}"
        self.trigger_dag_id = trigger_dag_id
        self.trigger_run_id = trigger_run_id
        self.conf = conf
        self.logical_date = logical_date if isinstance(logical_date, (str, dt.datetime)) else None
        self.has_logical_date = run_after is None if logical_date is NOTSET else logical_date is not None
        self.reset_dag_run = reset_dag_run
        self.wait_for_completion = wait_for_completion
        self.poke_interval = arguments.duration(who, "poke_interval", poke_interval).total_seconds()
        self.allowed_states = _states(self.task_id, allowed_states or ["success"])
        self.failed_states = _states(self.task_id, ["failed"] if failed_states is None else failed_states)
        self.skip_when_already_exists = skip_when_already_exists
        self.fail_when_dag_is_paused = fail_when_dag_is_paused
        self.deferrable = defaults.is_deferrable(deferrable)
        self.note = note
        self.run_after = run_after
        self.openlineage_inject_parent_info = openlineage_inject_parent_info

    def execute(self, context: Context) -> None:
        context["ti"].xcom_push(key="trigger_dag_id", value=self.trigger_dag_id)
        run_id = self._trigger()
        self.log.info("Triggered the run %s of the DAG %s", run_id, self.trigger_dag_id)
        context["ti"].xcom_push(key="trigger_run_id", value=run_id)
        if not self.wait_for_completion:
            return
        if self.deferrable:
            states = [*self.allowed_states, *self.failed_states]
            trigger = DagStateTrigger(self.trigger_dag_id, states, [run_id], poll_interval=self.poke_interval)
            self.defer(trigger=trigger, method_name="execute_complete")
        self._wait(run_id)

    def execute_complete(self, context: Context, event: tuple[str, dict[str, Any]]) -> None:
        """Continue when the run has ended."""
        for run_id in event[1]["run_ids"]:
            self._check(run_id, event[1][run_id])

    def _trigger(self) -> str:
        """Trigger the run, and return its run_id."""
        try:
            answer = request_run(
                self.trigger_dag_id,
                run_id=self.trigger_run_id,
                conf=self.conf,
                logical_date=self.logical_date,
                has_logical_date=self.has_logical_date,
                run_after=self.run_after,
                reset=self.reset_dag_run,
                fail_when_paused=self.fail_when_dag_is_paused,
                note=self.note,
            )
        except SupervisorNotFound:
            raise AsynschedException(f"there is no DAG {self.trigger_dag_id!r}") from None
        if answer["status"] == "paused":
            raise DagIsPaused(self.trigger_dag_id)
        if answer["status"] == "exists":
            if self.skip_when_already_exists:
                raise AsynschedSkipException(answer["reason"])
            raise DagRunAlreadyExists(answer["reason"])
        run_id: str = answer["run_id"]
        return run_id

    def _wait(self, run_id: str) -> None:
        import time

        while not self._check(run_id, AsksElsewhere.get_dagrun_state(self.trigger_dag_id, run_id)):
            time.sleep(self.poke_interval)

    def _check(self, run_id: str, state: str) -> bool:
        """Return whether the run has an allowed state. Raises AsynschedException if it has a failed one."""
        if state in self.failed_states:
            raise AsynschedException(f"run {run_id} of the DAG {self.trigger_dag_id} is {state}")
        return state in self.allowed_states


def request_run(
    dag_id: str,
    *,
    run_id: str | None,
    conf: dict[str, Any] | str | None,
    logical_date: str | dt.datetime | None,
    has_logical_date: bool,
    run_after: str | dt.datetime | None,
    reset: bool = False,
    fail_when_paused: bool = False,
    note: str | None = None,
) -> dict[str, Any]:
    """Ask the scheduler for a run of a DAG; return its answer to `run_trigger`.

    Raises:
        SupervisorNotFound: There is no such DAG.
        ValueError: The conf is a text that is no JSON.
        TypeError: The conf cannot be written as JSON.
    """
    conf = _read(conf) if isinstance(conf, str) else conf
    check_json(conf, "conf")
    answer: dict[str, Any] = ask(
        "run_trigger",
        dag_id=dag_id,
        run_id=str(run_id) if run_id else None,
        conf=conf or {},
        logical_date=_instant(logical_date),
        has_logical_date=has_logical_date,
        run_after=_instant(run_after),
        reset=reset,
        fail_when_paused=fail_when_paused,
        note=note or "",
    )
    return answer


def _read(conf: str) -> Any:
    """Return a conf that is given as a text, such as a template renders. Raises ValueError unless it is JSON."""
    import json

    try:
        return json.loads(conf or "{}")
    except ValueError as exc:
        raise ValueError(f"the conf is no JSON: {exc}: {conf!r:.100}") from exc


def _instant(given: str | dt.datetime | None) -> str | None:
    """Return a date for the scheduler; an empty text, as a template may render to, is none."""
    if not given:
        return None
    return (parsed(given) if isinstance(given, str) else aware(given)).isoformat()


def _states(task_id: str, states: list[str]) -> list[str]:
    from asynsched.states import DagRunState

    try:
        return [str(DagRunState(state)) for state in states]
    except ValueError as exc:
        raise DagError(f"task {task_id!r}: {exc}; use {', '.join(DagRunState)}") from exc


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
        deferrable: Wait in a WorkflowTrigger, without a process or pool slots; None: if the option `[operators]
            default_deferrable` says so.
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
        deferrable: bool | None = None,
        **kwargs: Unpack[SensorKeywords],
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
        self.deferrable = defaults.is_deferrable(deferrable)

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
        missing = self._missing() if self.check_existence or is_first else None
        if missing is not None and self.check_existence:
            raise missing
        if missing is not None:
            self.log.warning("%s; waiting for it", missing)
        if self.deferrable:
            self.defer(
                trigger=self._trigger(self._logical_dates(context)),
                method_name="execute_complete",
                timeout=self.timeout or None,
            )
        return super().execute(context)

    def _trigger(self, dates: list[dt.datetime]) -> WorkflowTrigger:
        return WorkflowTrigger(
            external_dag_id=self.external_dag_id,
            external_task_ids=None if self.external_task_ids is None else list(self.external_task_ids),
            external_task_group_id=self.external_task_group_id,
            allowed_states=self.allowed_states,
            failed_states=self.failed_states,
            skipped_states=self.skipped_states,
            poke_interval=self.poll_interval,
            soft_fail=self.soft_fail,
            logical_dates=dates,
        )

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> None:
        """Continue when the trigger has fired."""
        self._end_by((event or {}).get("status", ""))

    def poke(self, context: Context) -> bool:
        dates = self._logical_dates(context)
        self.log.info("Waiting for %s on %s", self.subject, ", ".join(date.isoformat() for date in dates))
        status = self._trigger(dates).status()
        if status in ("failed", "skipped"):
            self._end_by(status)
        return status == "success"

    def _end_by(self, status: str) -> None:
        if status == "skipped":
            raise AsynschedSkipException(f"{self.subject}: skipped, so this task is skipped too")
        if status != "success":
            error: type[AsynschedException] = (
                ExternalTaskFailedError if self.external_task_ids else ExternalDagFailedError
            )
            if self.external_task_group_id:
                error = ExternalTaskGroupFailedError
            raise (AsynschedSkipException if self.soft_fail else error)(f"{self.subject}: failed")
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

    def _missing(self) -> AsynschedException | None:
        """Return an error about the first missing object; None if the DAG, tasks and task group all exist."""
        try:
            names: dict[str, list[str]] = ask("dag_names", dag_id=self.external_dag_id)
        except SupervisorNotFound:
            return ExternalDagNotFoundError(f"there is no DAG {self.external_dag_id!r}")
        missing = sorted(set(self.external_task_ids or ()) - set(names["task_ids"]))
        if missing:
            tasks = ", ".join(map(repr, missing))
            return ExternalTaskNotFoundError(f"the DAG {self.external_dag_id!r} has no task {tasks}")
        if self.external_task_group_id and self.external_task_group_id not in names["group_ids"]:
            group = repr(self.external_task_group_id)
            return ExternalTaskGroupNotFoundError(f"the DAG {self.external_dag_id!r} has no task group {group}")
        return None


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
        **kwargs: Unpack[TaskKeywords],
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
