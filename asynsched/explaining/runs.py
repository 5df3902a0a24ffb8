"""Why a run does not start or does not go on, or why it ended as it did."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from asynsched.explaining.owners import with_service
from asynsched.explaining.reason import Explanation, Reason, grouped, shortened
from asynsched.explaining.snapshot import Snapshot, take_snapshot
from asynsched.explaining.tasks import Told, held_up_by, open_ends_of, reasons_of, task_name
from asynsched.scheduling.evaluation.run import ActiveRun
from asynsched.settings import Settings
from asynsched.states import FAILED_TASK_STATES, FINISHED_RUN_STATES, FINISHED_TASK_STATES, DagRunState
from asynsched.store.database import Database
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.requests import CancelRun, ClearTasks, ForceTask, MarkRun, RunRequest, WaitingRequest
from asynsched.store.schema import DagRunRow


def explain_run(snapshot: Snapshot, row: DagRunRow, run: ActiveRun | None) -> Explanation:
    """Return why a run does not start or go on, or why it ended as it did.

    Args:
        snapshot: The scheduler's next steps.
        row: The run as it is stored.
        run: The run with its task instances; None if it would not start now, or if its code cannot be read.
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
    """Return the reason for each unfinished task instance that waits, unless it waits for others of the run."""
    return grouped(
        (task, reason)
        for task in run.all_instances()
        if not task.is_finished and task not in snapshot.starting
        for reason in open_ends_of(snapshot, task)
    )


def _processes(run: ActiveRun) -> tuple[Reason, ...]:
    """Return why a run goes on though all its tasks have ended: only its scheduler knows which processes are left."""
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


MOST_RUNS = 5
"""Runs that the sentence names."""


async def explain_standstill(database: Database, settings: Settings, now: datetime) -> str:
    """Return the reasons why no active run can progress, in one sentence; empty if a run can."""
    snapshot = await take_snapshot(database, settings, now)
    runs = [snapshot.evaluation.runs[key] for key in sorted(snapshot.evaluation.runs)]
    told = []
    for run in runs[:MOST_RUNS]:
        row = await database.read(get_run, *run.key)
        explained = None if row is None else explain_run(snapshot, row, run)
        if explained is None or not explained.reasons:
            return ""
        more = len(explained.reasons) - 1
        told.append(f"{explained.subject}: {explained.reasons[0].text}{f', and {more} more' if more else ''}")
    if len(runs) > MOST_RUNS:
        told.append(f"and {len(runs) - MOST_RUNS} more")
    return "; ".join(told)


def with_requests(found: Explanation, requests: Sequence[WaitingRequest], *, is_served: bool) -> Explanation:
    """Return an explanation with the open requests of users added, oldest first.

    Args:
        found: The explanation of a run, or of one of its task instances.
        requests: The open requests for the run.
        is_served: Whether a scheduler serves, which will do them.
    """
    if not requests:
        return found
    release = "the scheduler has done it" if is_served else "a scheduler is started: `asynsched up`"
    asked = tuple(
        Reason("request", f"{wish(waiting.request)} was asked for{_by(waiting)}", release) for waiting in requests
    )
    answer = f"{found.answer} Before that: {', '.join(wish(waiting.request) for waiting in requests)}."
    n_first = 0 if is_served else 1
    reasons = (*found.reasons[:n_first], *asked, *found.reasons[n_first:])
    return msgspec.structs.replace(found, answer=answer, reasons=reasons)


def wish(request: RunRequest) -> str:
    """Return a request in a few words."""
    match request:
        case CancelRun():
            return "cancelling the run"
        case MarkRun():
            return f"marking the run as {request.state}"
        case ForceTask():
            return f"starting task {request.task_id}"
        case ClearTasks(task_ids=()):
            return "clearing the run"
        case ClearTasks():
            return f"clearing {_named_of_requests(request.task_ids)}"
    return f"marking {_named_of_requests(request.task_ids)} as {request.state}"


def _named_of_requests(task_ids: Sequence[str]) -> str:
    return f"task{'s' if len(task_ids) > 1 else ''} {', '.join(task_ids)}"


def _by(waiting: WaitingRequest) -> str:
    return f" by {waiting.actor} at {waiting.created_at.isoformat(sep=' ', timespec='seconds')}"
