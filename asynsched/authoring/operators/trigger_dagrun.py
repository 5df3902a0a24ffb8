"""TriggerDagRunOperator: triggers a run of a DAG."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.exceptions import AsynschedException, AsynschedSkipException
from asynsched.authoring.json_values import check_json
from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.params import NOTSET
from asynsched.authoring.running.task_instance import AsksElsewhere
from asynsched.authoring.supervisor import SupervisorNotFound, ask
from asynsched.authoring.timezone import parse
from asynsched.authoring.triggers.external_task import DagStateTrigger
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from asynsched.authoring.running.context import Context

XCOM_RUN_ID = "trigger_run_id"
XCOM_DAG_ID = "trigger_dag_id"


class DagRunAlreadyExists(AsynschedException):
    """A run with this run_id or logical date already exists."""


class DagIsPaused(AsynschedException):
    """The DAG to trigger is paused."""


class TriggerDagRunOperator(BaseOperator):
    """Triggers a run of a DAG, and can wait for it. It pushes the XComs `trigger_dag_id` and `trigger_run_id`.

    Args:
        trigger_dag_id: The DAG to trigger. (templated)
        trigger_run_id: The run's id; by default made from the logical date. (templated)
        conf: The run's conf, as JSON values. (templated)
        logical_date: The run's logical date, a datetime or a string; by default now, None for a run without one.
            (templated)
        reset_dag_run: If the run already exists, clear it so that it runs again; its conf does not change.
        wait_for_completion: Wait until the run has ended. (templated)
        poke_interval: The time between two checks, as a timedelta or seconds.
        allowed_states: The states of the run with which this task succeeds; by default `success`.
        failed_states: The states with which it fails; by default `failed`.
        skip_when_already_exists: If the run already exists, skip this task instead of failing it. (templated)
        fail_when_dag_is_paused: If the DAG is paused, fail instead of leaving the run to wait.
        deferrable: Wait in a DagStateTrigger, without a process or pool slots.
    """

    template_fields: Collection[str] = (
        "trigger_dag_id", "trigger_run_id", "logical_date", "conf", "wait_for_completion", "skip_when_already_exists",
    )  # fmt: skip
    ui_color = "#ffefeb"

    def __init__(
        self,
        *,
        trigger_dag_id: str,
        trigger_run_id: str | None = None,
        conf: dict[str, Any] | None = None,
        logical_date: str | dt.datetime | Any | None = NOTSET,
        reset_dag_run: bool = False,
        wait_for_completion: bool = False,
        poke_interval: dt.timedelta | float = 60,
        allowed_states: list[str] | None = None,
        failed_states: list[str] | None = None,
        skip_when_already_exists: bool = False,
        fail_when_dag_is_paused: bool = False,
        deferrable: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if logical_date is not NOTSET and not isinstance(logical_date, (str, dt.datetime, type(None))):
            raise DagError(f"task {self.task_id!r}: logical_date must be a datetime or a string, not {logical_date!r}")
        who = f"task {self.task_id!r}"
        self.trigger_dag_id = trigger_dag_id
        self.trigger_run_id = trigger_run_id
        self.conf = conf
        self.logical_date = logical_date if isinstance(logical_date, (str, dt.datetime)) else None
        self.has_logical_date = logical_date is not None
        self.reset_dag_run = reset_dag_run
        self.wait_for_completion = wait_for_completion
        self.poke_interval = arguments.duration(who, "poke_interval", poke_interval).total_seconds()
        self.allowed_states = _states(self.task_id, allowed_states or ["success"])
        self.failed_states = _states(self.task_id, ["failed"] if failed_states is None else failed_states)
        self.skip_when_already_exists = skip_when_already_exists
        self.fail_when_dag_is_paused = fail_when_dag_is_paused
        self.deferrable = deferrable

    def execute(self, context: Context) -> None:
        context["ti"].xcom_push(key=XCOM_DAG_ID, value=self.trigger_dag_id)
        run_id = self._trigger()
        self.log.info("Triggered the run %s of the DAG %s", run_id, self.trigger_dag_id)
        context["ti"].xcom_push(key=XCOM_RUN_ID, value=run_id)
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
        check_json(self.conf, "conf")
        date = parse(self.logical_date) if isinstance(self.logical_date, str) else self.logical_date
        try:
            answer: dict[str, Any] = ask(
                "run_trigger",
                dag_id=self.trigger_dag_id,
                run_id=None if self.trigger_run_id is None else str(self.trigger_run_id),
                conf=self.conf or {},
                logical_date=None if date is None else date.isoformat(),
                has_logical_date=self.has_logical_date,
                reset=self.reset_dag_run,
                fail_when_paused=self.fail_when_dag_is_paused,
            )
        except SupervisorNotFound:
            raise AsynschedException(f"there is no DAG {self.trigger_dag_id!r}") from None
        if answer["status"] == "paused":
            raise DagIsPaused(f"the DAG {self.trigger_dag_id!r} is paused")
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


def _states(task_id: str, states: list[str]) -> list[str]:
    from asynsched.states import DagRunState

    try:
        return [str(DagRunState(state)) for state in states]
    except ValueError as exc:
        raise DagError(f"task {task_id!r}: {exc}; use {', '.join(DagRunState)}") from exc
