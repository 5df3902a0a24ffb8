"""Runs the callbacks of a task or a DAG, as a try of their own."""

from datetime import datetime

from asynsched.authoring.dag import DAG
from asynsched.authoring.exceptions import AsynschedException
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.running.context import Context, CurrentContext
from asynsched.authoring.running.execution import run_callbacks
from asynsched.authoring.timezone import coerce_datetime
from asynsched.protocol.messages import Launch
from sandbox.running.raised_exceptions import rebuilt

_STATE_AT = {
    "on_execute": "running",
    "on_success": "success",
    "on_failure": "failed",
    "on_retry": "up_for_retry",
    "on_skipped": "skipped",
}
_MISS = "on_deadline_miss"


class CallbacksFailed(AsynschedException):
    """Callbacks of an event raised exceptions; each is in the log."""


def callback_task(launch: Launch, dag: DAG) -> BaseOperator:
    """Return the task whose context the callbacks are given: for those of a DAG, its last one, as in Airflow."""
    return dag.get_task(launch.task_id) if launch.task_id else dag.topological_sort()[-1]


def call_back(launch: Launch, dag: DAG, context: Context) -> list[str]:
    """Call what the launch's event has, and return what went wrong; one that fails keeps no other from running."""
    event, reason = launch.callback["event"], launch.callback.get("reason", "")
    if event == _MISS:
        return _call_for_deadline(launch, dag, context)
    owner = context["task"] if launch.task_id else dag
    if launch.task_id:
        context["ti"].state = _STATE_AT.get(event)
    context["reason"] = reason
    if launch.task_id and event in ("on_failure", "on_retry"):
        context["exception"] = rebuilt(launch.caused_by.exception if launch.caused_by else None, reason)
    with CurrentContext(context):
        return run_callbacks(list(getattr(owner, f"{event}_callback", None) or ()), context, context["task"])


def _call_for_deadline(launch: Launch, dag: DAG, context: Context) -> list[str]:
    told = launch.callback["deadline"]
    if told["number"] >= len(dag.deadline):
        return [f"the version of DAG {dag.dag_id!r} that this run has, has no deadline {told['number'] + 1}"]
    context["reason"] = launch.callback.get("reason", "")
    context["deadline"] = {
        "name": told["name"],
        "deadline_time": coerce_datetime(datetime.fromisoformat(told["due_at"])),
    }
    with CurrentContext(context):
        return run_callbacks([dag.deadline[told["number"]].callback], context, context["task"])
