"""Every figure: its name, labels and meaning.

Names and labels are Airflow's where the meaning is the same; figures that only asynsched has begin with
`scheduler.logs`, `scheduler.loop` or `scheduler.stale`.

Source: Apache Airflow 3's metrics (`metrics_template.yaml`).
"""

from typing import Literal, NamedTuple


class Figure(NamedTuple):
    """One figure. A counter only grows; a timer has a number and a sum of lengths; a gauge is read on demand."""

    kind: Literal["counter", "timer", "gauge"]
    labels: tuple[str, ...]
    meaning: str


_TASK = ("dag_id", "task_id")

FIGURES: dict[str, Figure] = {
    "ti.start": Figure("counter", _TASK, "Tries that have begun."),
    "ti.finish": Figure("counter", (*_TASK, "state"), "Tries that have ended, by the state of their task after that."),
    "ti_successes": Figure("counter", _TASK, "Tries that have succeeded."),
    "ti_failures": Figure("counter", _TASK, "Tries that have failed, including those that are retried."),
    "operator_successes": Figure("counter", ("operator_name",), "Tries that have succeeded, by operator."),
    "operator_failures": Figure("counter", ("operator_name",), "Tries that have failed, by operator."),
    "task.duration": Figure("timer", _TASK, "How long tries ran."),
    "task.scheduled_duration": Figure("timer", _TASK, "How long tasks were ready before they were queued."),
    "task.queued_duration": Figure("timer", _TASK, "How long tries were queued before they began."),
    "dagrun.duration.success": Figure("timer", ("dag_id",), "How long successful runs took."),
    "dagrun.duration.failed": Figure("timer", ("dag_id",), "How long failed runs took."),
    "dagrun.schedule_delay": Figure("timer", ("dag_id",), "How long after their due time scheduled runs started."),
    "asset.updates": Figure("counter", (), "Updates of assets by tasks."),
    "asset.triggered_dagruns": Figure("counter", (), "Runs that were triggered by assets."),
    "dag.callback_exceptions": Figure("counter", ("dag_id",), "Callbacks that have failed."),
    "dag_processing.last_duration": Figure("timer", ("file_name",), "How long parses of a file took."),
    "dag_processing.processor_timeouts": Figure("counter", ("file_path",), "Parses that took too long."),
    "triggers.succeeded": Figure("counter", (), "Triggers that have fired."),
    "triggers.failed": Figure("counter", (), "Triggers that have failed."),
    "scheduler_heartbeat": Figure("counter", (), "Beats of the event loop: one a second, unless it is stalled."),
    "dagbag_size": Figure("gauge", (), "DAGs that the files define."),
    "dag_processing.import_errors": Figure("gauge", (), "Errors of files and of their DAGs."),
    "dag_processing.file_path_queue_size": Figure("gauge", (), "Files that wait for a parse."),
    "executor.open_slots": Figure("gauge", (), "Tasks that the parallelism lets start."),
    "executor.queued_tasks": Figure("gauge", (), "Tries that were launched and have not begun."),
    "executor.running_tasks": Figure("gauge", (), "Tries that run."),
    "pool.open_slots": Figure("gauge", ("pool_name",), "Free slots of a pool; none for one without a limit."),
    "pool.queued_slots": Figure("gauge", ("pool_name",), "Slots of tries that were launched and have not begun."),
    "pool.running_slots": Figure("gauge", ("pool_name",), "Slots of tries that run."),
    "pool.deferred_slots": Figure("gauge", ("pool_name",), "Slots of deferred tasks."),
    "scheduler.dagruns.running": Figure("gauge", (), "Active runs of this scheduler."),
    "triggers.running": Figure("gauge", (), "Triggers that run."),
    "scheduler.logs_waiting": Figure("gauge", (), "Logs of ended tries that are still to be copied to `log.store`."),
    "scheduler.loop_age_seconds": Figure("gauge", ("loop",), "Time since the last step of a loop ended."),
    "scheduler.loop_step_seconds": Figure(
        "gauge", ("loop",), "Age of the step that a loop is in; 0 between two steps."
    ),
    "scheduler.stale_messages": Figure("gauge", (), "Messages and changes that came too late and changed nothing."),
}
