"""What an executor is told to start a try."""

from asynsched.executors.log_paths import log_path
from asynsched.scheduling.active_run import ActiveRun, ActiveTask
from sandbox.protocol import Launch, RunContext


def run_context(run: ActiveRun) -> RunContext:
    """Return what tasks and callbacks of a run are told of it."""
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
    )


def task_launch(task: ActiveTask) -> Launch:
    """Return the launch of a task instance that has been granted its slots and given a token."""
    if task.token is None:
        raise ValueError(f"{task.key} has no token")
    return Launch(
        token=task.token,
        task_id=task.task_id,
        map_index=task.map_index,
        try_number=task.try_number,
        max_tries=task.max_tries,
        run=run_context(task.run),
        code=task.run.code,
        log_path=log_path(task.key, task.try_number),
        execution_timeout=task.task.execution_timeout,
        reschedule_started_at=task.started_at if task.task.sensor_mode == "reschedule" else None,
    )
