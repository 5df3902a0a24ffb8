"""Stored rows made into the runs and task instances that the evaluation works on."""

from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from asynsched.executors.base import Held
from asynsched.protocol.messages import Ended
from asynsched.scheduling.evaluation.active_run import ActiveRun
from asynsched.scheduling.evaluation.active_task import ActiveTask
from asynsched.scheduling.evaluation.deferral import decoded
from asynsched.scheduling.evaluation.structure import DagStructure
from asynsched.scheduling.rules.clearing import fits
from asynsched.scheduling.rules.past_depends import GOOD_STATES, PastTask
from asynsched.scheduling.rules.run_stop import decoded as decoded_stop
from asynsched.scheduling.versions import LoadedVersion
from asynsched.states import DagRunState, TaskInstanceState
from asynsched.store.runs.queue import QueuedRun
from asynsched.store.runs.task_instances import StoredPast, TaskInstanceRow
from asynsched.store.runs.xcoms import XComValue


def active_run(row: QueuedRun, version: LoadedVersion) -> ActiveRun:
    """Return a stored run, without its task instances, on the version that it is pinned to."""
    return ActiveRun(
        id=row.id,
        key=row.key,
        structure=version.structure,
        code=version.code,
        version_id=version.id,
        run_type=row.run_type,
        run_after=row.run_after,
        queued_at=row.queued_at,
        logical_date=row.logical_date,
        data_interval_start=row.data_interval_start,
        data_interval_end=row.data_interval_end,
        conf=row.conf,
        state=DagRunState(row.state),
        started_at=row.started_at,
        stored_state=DagRunState(row.state),
        stored_epoch=row.lease_epoch,
        stop=decoded_stop(row.stop),
    )


def active_tasks(
    run: ActiveRun, rows: Iterable[TaskInstanceRow], decisions: Iterable[XComValue] = ()
) -> list[ActiveTask]:
    """Return a run's stored task instances, without those that its version has no place for.

    Args:
        run: The run that they belong to.
        rows: Their rows.
        decisions: What branches and short circuits have skipped.
    """
    tasks = [_active_task(run, row) for row in rows if _has_place(run.structure, row)]
    by_key = {(task.task_id, task.map_index): task for task in tasks}
    for found in decisions:
        if (task := by_key.get((found.task_id, found.map_index))) is not None:
            task.skips = frozenset(msgspec.json.decode(found.value)["skipped"])
    return tasks


def _has_place(structure: DagStructure, row: TaskInstanceRow) -> bool:
    task = structure.tasks.get(row.task_id)
    return fits(task, row.map_index, is_mapped=task is not None and structure.is_mapped(row.task_id))


def _active_task(run: ActiveRun, row: TaskInstanceRow) -> ActiveTask:
    state = None if row.state is None else TaskInstanceState(row.state)
    return ActiveTask(
        run=run,
        task=run.structure.tasks[row.task_id],
        map_index=row.map_index,
        state=state,
        reason=row.reason,
        try_number=row.try_number,
        max_tries=row.max_tries,
        machine_kills=row.machine_kills,
        token=row.token,
        scheduled_at=row.scheduled_at,
        queued_at=row.queued_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        next_try_at=row.next_try_at,
        rendered_map_index=row.rendered_map_index,
        result_length=row.result_length,
        deferral=decoded(row.deferral),
        ignored=frozenset((row.ignored_dependencies or "").split()),
        stored_state=state,
        stored_try=row.try_number,
        is_stored=True,
    )


_HAVE_PROCESSES = frozenset({TaskInstanceState.RUNNING, TaskInstanceState.RESTARTING})


def lost_tries(tasks: Iterable[ActiveTask], held: Held, boot_mark: str, now: datetime) -> Iterator[Ended]:
    """Yield the end of each try that the executor knows nothing of, and that began, or may have begun.

    A queued one may have begun if it was submitted before the machine was started: the record of that may be lost.

    Args:
        boot_mark: How the tokens begin that were given since then.
    """
    for task in tasks:
        if task.token is None or task.token in held.known:
            continue
        if task.state in _HAVE_PROCESSES:
            reason = "the try was lost: its keeper is gone, and left no record of its end"
        elif task.state is TaskInstanceState.QUEUED and not task.token.startswith(boot_mark):
            reason = "the try was not submitted since the machine was started: it may have begun before that"
        else:
            continue
        yield Ended(task.token, "failed", now, task.started_at, reason, cause="machine")


def past_of(run: ActiveRun, stored: StoredPast) -> dict[str, PastTask]:
    """Return what the run before means to a run's tasks that depend on it."""
    return {task_id: _past_task(stored, task_id, run.structure) for task_id in run.structure.depend_on_past}


def _past_task(stored: StoredPast, task_id: str, structure: DagStructure) -> PastTask:
    downstream = [state for other in structure.downstream[task_id] for state in stored.states.get(other, ())]
    own = stored.states.get(task_id, [])
    return PastTask(
        run_id=stored.key.run_id,
        n_instances=len(own),
        n_bad=sum(state not in GOOD_STATES for state in own),
        n_bad_downstream=sum(state not in GOOD_STATES for state in downstream),
        has_earlier=task_id not in stored.never_seen,
    )
