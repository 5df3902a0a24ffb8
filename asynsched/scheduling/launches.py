"""The launches with which an executor starts tries and callbacks."""

from collections.abc import Iterable

import msgspec

from asynsched.executors.log_paths import callback_log_path, log_path
from asynsched.keys import TaskInstanceKey
from asynsched.protocol.messages import CausingTry, Launch, RunContext
from asynsched.scheduling.evaluation.deferral import resumption
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.store.schema import CallbackRequest, DeadlineRow


def run_context(run: ActiveRun) -> RunContext:
    """Return the facts of a run that its tasks and callbacks get."""
    return RunContext(
        dag_id=run.key.dag_id,
        run_id=run.key.run_id,
        run_type=run.run_type,
        run_after=run.run_after,
        logical_date=run.logical_date,
        data_interval_start=run.data_interval_start,
        data_interval_end=run.data_interval_end,
        queued_at=run.queued_at,
        started_at=run.started_at,
        conf=run.conf,
        state=run.state,
        ended_at=run.ended_at,
    )


def task_launch(task: ActiveTask, max_map_length: int) -> Launch:
    """Return the launch of a task instance that has been granted its slots and given a token."""
    if task.token is None:
        raise ValueError(f"{task.key} has no token")
    return Launch(
        token=task.token,
        task_id=task.task_id,
        map_index=task.map_index,
        try_number=task.try_number,
        max_tries=task.max_tries,
        executor=task.task.executor,
        run=run_context(task.run),
        code=task.run.code,
        log_path=log_path(task.key, task.try_number),
        execution_timeout=task.task.execution_timeout,
        reschedule_started_at=task.started_at if task.task.sensor_mode == "reschedule" else None,
        resume=resumption(task.deferral),
        max_map_length=max_map_length,
    )


def callback_launch(request: CallbackRequest, run: ActiveRun, token: str, timeout_seconds: float) -> Launch:
    """Return the launch of a callback of a run, or of one of its task instances, under this token."""
    key = TaskInstanceKey(*run.key, request.task_id, request.map_index)
    caused_by = msgspec.json.decode(request.caused_by, type=CausingTry) if request.caused_by else None
    return Launch(
        token=token,
        task_id=request.task_id,
        map_index=request.map_index,
        try_number=request.try_number,
        max_tries=0 if caused_by is None else caused_by.max_tries,
        run=run_context(run),
        code=run.code,
        log_path=callback_log_path(key, request.event, request.try_number),
        execution_timeout=timeout_seconds,
        callback={"event": request.event, "reason": request.reason},
        caused_by=caused_by,
    )


def with_deadline(launch: Launch, deadlines: Iterable[DeadlineRow]) -> Launch:
    """Return a callback's launch with the missed deadline that it is for: the launch's try number is the deadline's."""
    found = [deadline for deadline in deadlines if deadline.number == launch.try_number]
    told = [{"number": one.number, "name": one.name, "due_at": one.due_at.isoformat()} for one in found]
    return msgspec.structs.replace(launch, callback=launch.callback | {"deadline": told[0] if told else {}})
