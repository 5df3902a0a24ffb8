"""Why a run does not start or does not go on, or why it ended as it did."""

from asynsched.explaining.grouping import grouped, shortened
from asynsched.explaining.reason import Explanation, Reason
from asynsched.explaining.service import with_service
from asynsched.explaining.snapshot import Snapshot
from asynsched.explaining.tasks import Told, held_up_by, open_ends_of, reasons_of, task_name
from asynsched.scheduling.evaluation.active_run import ActiveRun
from asynsched.states import FAILED_TASK_STATES, FINISHED_RUN_STATES, FINISHED_TASK_STATES, DagRunState
from asynsched.store.runs.dag_runs import DagRunRow


def explain_run(snapshot: Snapshot, row: DagRunRow, run: ActiveRun | None) -> Explanation:
    """Return why a run does not start or go on, or why it ended as it did.

    Args:
        snapshot: What the scheduler would do now.
        row: The run as it is stored.
        run: With its task instances; None for one that would not start now, or whose code cannot be read.
    """
    subject = f"{row.run_id} of {row.dag_id}"
    if row.state in FINISHED_RUN_STATES:
        colon = "" if row.reason.startswith("because") else ":"
        why = f"{colon} {row.reason}" if row.reason else ""
        return Explanation(subject, row.state, f"It ended as {row.state}{why}.", _ends(snapshot, run))
    reasons: tuple[Reason, ...] = ()
    if run is None and row.state == DagRunState.RUNNING:
        reasons = (Reason("code", "its code cannot be read by this version", "a scheduler that can has taken it over"),)
    elif run is None:
        verdict = snapshot.admission(row.dag_id, row.backfill_id)
        reasons = (Reason("admission", verdict.reason, verdict.release),)
    elif row.state != DagRunState.QUEUED:
        reasons = _open_ends(snapshot, run) or _processes(run)
    found = with_service(reasons, snapshot.unserved, snapshot.lack_of_owner(run))
    answer = held_up_by(found) or "Nothing holds it up: it goes on now."
    return Explanation(subject, row.state, answer, found)


def _open_ends(snapshot: Snapshot, run: ActiveRun) -> tuple[Reason, ...]:
    """Return what each unfinished task instance waits for that waits for no other one of the run."""
    return grouped(
        (task, reason)
        for task in run.all_instances()
        if not task.is_finished and task not in snapshot.starting
        for reason in open_ends_of(snapshot, task)
    )


def _processes(run: ActiveRun) -> tuple[Reason, ...]:
    """Return why a run goes on of which all is stored that is to happen: only its scheduler knows what is left."""
    if not all(task.stored_state in FINISHED_TASK_STATES for task in run.all_instances()):
        return ()
    text = (
        "all its tasks have ended: it ends once no process is left of tasks that were marked or removed while they ran"
    )
    return (Reason("processes", text),)


def _ends(snapshot: Snapshot, run: ActiveRun | None) -> tuple[Reason, ...]:
    if run is None:
        return ()
    failed = [task for task in run.all_instances() if task.state in FAILED_TASK_STATES]
    told = Told()
    return shortened(
        failed, lambda task: Reason("task", f"{task_name(task)}: {task.state}", causes=reasons_of(snapshot, task, told))
    )
