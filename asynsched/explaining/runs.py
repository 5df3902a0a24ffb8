"""Why a run does not start or does not go on, or why it ended as it did."""

import msgspec

from asynsched.explaining.reason import Explanation, Reason
from asynsched.explaining.service import with_service
from asynsched.explaining.snapshot import Snapshot
from asynsched.explaining.tasks import MOST_CAUSES, held_up_by, reasons_of, task_name
from asynsched.scheduling.evaluation.active_run import ActiveRun
from asynsched.states import FAILED_TASK_STATES, FINISHED_RUN_STATES, DagRunState
from asynsched.store.dag_runs import DagRunRow


def explain_run(snapshot: Snapshot, row: DagRunRow, run: ActiveRun | None) -> Explanation:
    """Return why a run does not start or go on, or why it ended as it did.

    Args:
        snapshot: What the scheduler would do now.
        row: The run as it is stored.
        run: With its task instances; None for one that is queued and would not start now.
    """
    subject = f"{row.run_id} of {row.dag_id}"
    if row.state in FINISHED_RUN_STATES:
        colon = "" if row.reason.startswith("because") else ":"
        why = f"{colon} {row.reason}" if row.reason else ""
        return Explanation(subject, row.state, f"It ended as {row.state}{why}.", _ends(snapshot, run))
    if run is None:
        verdict = snapshot.admission(row.dag_id, row.backfill_id)
        reasons = [Reason("admission", verdict.reason, verdict.release)]
    elif row.state == DagRunState.QUEUED:
        reasons = []
    else:
        reasons = _open_ends(snapshot, run)
    found = with_service(reasons, snapshot.unserved)
    answer = held_up_by(found) or "Nothing holds it up: it goes on now."
    return Explanation(subject, row.state, answer, found)


def _open_ends(snapshot: Snapshot, run: ActiveRun) -> list[Reason]:
    """Return what each unfinished task instance waits for that waits for no other one of the run."""
    reasons = []
    for task in run.all_instances():
        if task.is_finished or task in snapshot.starting:
            continue
        found = [reason for reason in reasons_of(snapshot, task) if reason.rule not in ("trigger_rule", "setups")]
        name = f"task {task_name(task)}"
        reasons += [msgspec.structs.replace(reason, text=f"{name}: {reason.text}") for reason in found]
    return reasons


def _ends(snapshot: Snapshot, run: ActiveRun | None) -> tuple[Reason, ...]:
    if run is None:
        return ()
    failed = [task for task in run.all_instances() if task.state in FAILED_TASK_STATES]
    reasons = [Reason("task", f"{task_name(task)}: {task.state}", causes=reasons_of(snapshot, task)) for task in failed]
    return tuple(reasons[:MOST_CAUSES])
