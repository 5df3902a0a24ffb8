"""Submitting and doing requests for runs: clear, mark, cancel.

A running run belongs to its scheduler, which holds it in memory: a request for it is stored, and that scheduler does
it. Any other run is changed at once. In both cases the same rows change in the same way, in one transaction, through
the one function that writes states.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.bell import Hint
from asynsched.errors import AsynschedError, NotFound, StoreError
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.protocol.messages import TriggerOutcome
from asynsched.scheduling.evaluation.changes import StoredDeferral
from asynsched.scheduling.evaluation.structure import DagStructure, compile_structure
from asynsched.scheduling.rules import clearing
from asynsched.scheduling.rules.run_end import marked_successful
from asynsched.scheduling.rules.try_end import tries_at_end
from asynsched.serialization.decode import decode_dag
from asynsched.states import (
    COUNTED_TASK_STATES,
    FAILED_TASK_STATES,
    FINISHED_RUN_STATES,
    FINISHED_TASK_STATES,
    PAUSED_TASK_STATES,
    SLOT_TASK_STATES,
    DagRunState,
    TaskInstanceState,
    check_run_transition,
    check_task_transition,
)
from asynsched.store.audit import record_audit
from asynsched.store.dags.dags import get_version, latest_version
from asynsched.store.rows import in_common, near_names
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.deadlines import renew_deadlines
from asynsched.store.runs.hitl import get_question, put_answer
from asynsched.store.runs.requests import (
    AnswerTask,
    CancelRun,
    ClearTasks,
    ForceTask,
    MarkRun,
    MarkTasks,
    OpenRequest,
    RunRequest,
    add_request,
    close_request,
)
from asynsched.store.runs.row_locks import lock_runs, lock_tasks
from asynsched.store.runs.task_instances import load_task_instances, numbers_of_tries
from asynsched.store.runs.transitions import Batch, RunWrite, TaskWrite, XComDeletion, apply
from asynsched.store.schedulers import notify
from asynsched.store.schema import DagRunRow, HistoryRow, HITLRow, TaskInstanceRow, task_instance

State = TaskInstanceState
UNDER_WAY = PAUSED_TASK_STATES | {State.RUNNING, State.RESTARTING}
"""The states of task instances that end as a run is marked; those that have not begun are skipped, as in Airflow."""
_RESTARTED_REASON = "it was cleared while it ran"


@dataclass(slots=True)
class RunEdit:
    """The changes that a request makes to one run.

    Attributes:
        run: The run as it is stored.
        instances: Its task instances as they are stored.
        earlier: The numbers of their tries that are in the history, by token.
        structure: The structure of the version that the run is on, or is moved to.
        version_id: Row id of that version.
        named: The task instances that change because the request names them or includes them.
        tasks: The changed rows of the task instances.
        new_state: The run's new state; None: the state stays.
        stop: JSON of the stop of a run that is to end as soon as its teardowns have.
        goes_on: Whether part of the run is to run again: this ends a stop that is under way.
    """

    run: DagRunRow
    instances: list[TaskInstanceRow]
    earlier: Mapping[tuple[str, int], Mapping[str | None, int]]
    structure: DagStructure
    version_id: int | None
    now: datetime
    named: list[TaskInstanceRow] = field(default_factory=list)
    tasks: list[TaskWrite] = field(default_factory=list)
    history: list[HistoryRow] = field(default_factory=list)
    forgotten: list[XComDeletion] = field(default_factory=list)
    new_state: DagRunState | None = None
    reason: str = ""
    stop: str | None = None
    goes_on: bool = False

    def batch(self) -> Batch:
        return Batch(
            lease_epoch=self.run.lease_epoch,
            runs=[self._run_row()] if self._changes_run else [],
            tasks=self.tasks,
            history=self.history,
            forgotten=self.forgotten,
        )

    # Changes of single task instances

    def clear(self, row: TaskInstanceRow, ignored: str | None = None) -> None:
        """Make a task instance run again, with all its retries, and ignore these of its dependencies."""
        state = _state(row)
        task = self.structure.tasks.get(row.task_id)
        n_tries = clearing.tries_after_clear(
            state, row.try_number, row.token, self.earlier.get((row.task_id, row.map_index), {})
        )
        max_tries = max(row.max_tries, n_tries) if task is None else n_tries + task.retries
        self.goes_on = True
        self.forgotten.append(XComDeletion(row.dag_run_id, row.task_id, row.map_index))
        if clearing.keeps_try(state) and row.token is not None:
            self.history.append(HistoryRow(**(in_common(HistoryRow, row) | {"id": 0, "try_number": n_tries})))
        cleared = {"max_tries": max_tries, "machine_kills": 0, "ignored_dependencies": ignored}
        if state in SLOT_TASK_STATES:
            self._change(row, clearing.after_clear(state), _RESTARTED_REASON, **cleared)
        else:
            cleared |= dict.fromkeys(clearing.EMPTIED_BY_CLEAR) | {"try_number": n_tries}
            self._change(row, clearing.after_clear(state), "", **cleared)

    def end(self, row: TaskInstanceRow, state: State, reason: str) -> None:
        """Put a task instance into a finished state."""
        before = _state(row)
        ended_at = row.ended_at if before in FINISHED_TASK_STATES else None
        n_tries = tries_at_end(before, row.try_number, row.started_at)
        values = {"try_number": n_tries, "ended_at": ended_at or self.now, "next_try_at": None, "deferral": None}
        self._change(row, state, reason, **values)

    def resume(self, row: TaskInstanceRow, stored: StoredDeferral) -> None:
        """Resume a deferred task instance with the outcome of its wait."""
        deferral = msgspec.json.encode(stored).decode()
        self._change(row, State.SCHEDULED, "", scheduled_at=self.now, next_try_at=None, deferral=deferral)

    def _change(self, row: TaskInstanceRow, state: State | None, reason: str, **changes: Any) -> None:
        before = _state(row)
        if state is not before:
            check_task_transition(before, state)
        told = {"before_state": row.state, "before_try": row.try_number, "state": state, "reason": reason}
        self.tasks.append(TaskWrite(**(in_common(TaskWrite, row) | told | changes)))

    # Changes of the run

    def reopen(self) -> None:
        """Queue a run again if it has ended, and end a stop that is under way."""
        self.goes_on = True
        if self.run.state in FINISHED_RUN_STATES:
            self.new_state, self.reason = DagRunState.QUEUED, "it was cleared"

    @property
    def _changes_run(self) -> bool:
        is_let_go = self.goes_on and self.run.stop is not None
        is_changed = self.new_state is not None or self.version_id != self.run.version_id
        return is_changed or is_let_go or self.stop is not None

    def _run_row(self) -> RunWrite:
        run, state = self.run, self.new_state or DagRunState(self.run.state)
        if state != run.state:
            check_run_transition(DagRunState(run.state), state)
        begins_anew = self.new_state is DagRunState.QUEUED
        return RunWrite(
            run.id, run.state, run.lease_epoch, state,
            self.reason if self.new_state is not None else run.reason,
            None if begins_anew else run.started_at,
            None if begins_anew else (self.now if self.new_state is not None else run.ended_at),
            self.version_id, None if begins_anew else run.scheduler_id, run.lease_epoch,
            self.now if begins_anew else run.queued_at, None if self.goes_on else self.stop or run.stop,
        )  # fmt: skip


# The changes of each kind of request


def fill_in(edit: RunEdit, request: RunRequest, actor: str) -> None:
    """Add a request's changes to an edit.

    Raises:
        NotFound: The run lacks a named task; carries the nearest names.
        AsynschedError: The run lacks the named instance of a task.
    """
    match request:
        case ClearTasks():
            _clear(edit, request)
        case MarkTasks():
            _mark(edit, request, actor)
        case ForceTask():
            _force(edit, request)
        case MarkRun():
            _mark_run(edit, request, actor)
        case CancelRun():
            _cancel(edit, actor)
        case AnswerTask():
            _answer(edit, request)


def _clear(edit: RunEdit, request: ClearTasks) -> None:
    if request.latest:
        _follow_version(edit)
    _check_named(edit, request)
    selection = clearing.TaskSelection(edit.structure.dag.tasks)
    wanted = selection.to_clear(
        request.task_ids or [*edit.structure.tasks], upstream=request.upstream, downstream=request.downstream
    )
    edit.named += [
        row
        for row in _instances_of(edit, wanted, request)
        if clearing.is_cleared(
            _state(row),
            is_expanded=row.map_index >= 0 and edit.structure.is_mapped(row.task_id),
            only_failed=request.only_failed,
            only_running=request.only_running,
        )
    ]
    for row in edit.named:
        edit.clear(row)
    if edit.named or edit.tasks or request.latest:
        edit.reopen()


def _mark(edit: RunEdit, request: MarkTasks, actor: str) -> None:
    _check_named(edit, request)
    selection = clearing.TaskSelection(edit.structure.dag.tasks)
    wanted = selection.to_mark(request.task_ids, upstream=request.upstream, downstream=request.downstream)
    state = State(request.state)
    edit.named += [
        row for row in _instances_of(edit, wanted, request) if row.state != state and _state(row) is not State.REMOVED
    ]
    for row in edit.named:
        edit.end(row, state, f"{actor} marked it as {state}")
    # Tasks that failed because of the marked ones may run now.
    below = selection.to_clear(request.task_ids, downstream=True) - wanted
    failed = [row for row in edit.instances if row.task_id in below and _state(row) in FAILED_TASK_STATES]
    if edit.named and failed:
        for row in failed:
            edit.clear(row)
        edit.reopen()


def _force(edit: RunEdit, request: ForceTask) -> None:
    row = _instance(edit, request.task_id, request.map_index)
    verdict = clearing.may_be_forced(
        _state(row), ignore_state=request.ignore_state, ignore_retry_period=request.ignore_retry_period
    )
    if not verdict.met:
        raise AsynschedError(f"The task {request.task_id!r} {verdict.reason}.")
    edit.named.append(row)
    edit.clear(row, " ".join(request.ignored) or None)
    edit.reopen()


def _mark_run(edit: RunEdit, request: MarkRun, actor: str) -> None:
    reason = f"{actor} marked the run as {request.state}"
    is_running = edit.run.state == DagRunState.RUNNING
    teardowns = edit.structure.teardowns
    is_success, to_run = request.state == "success", False
    for row in edit.instances:
        state = _state(row)
        if row.task_id in teardowns and state not in FINISHED_TASK_STATES:
            to_run = True
        # A run that goes on fails by its failed tasks; one that has ended keeps the record of them, as in Airflow.
        elif state not in FINISHED_TASK_STATES or (is_success and state in FAILED_TASK_STATES and is_running):
            edit.named.append(row)
            ends = state in UNDER_WAY or state in FAILED_TASK_STATES
            edit.end(row, State(request.state) if ends else State.SKIPPED, reason)
    if is_running and is_success:
        edit.stop = msgspec.json.encode(marked_successful(reason)).decode()
    if not is_running and edit.run.state != request.state and not to_run:
        edit.new_state, edit.reason = DagRunState(request.state), reason


def _cancel(edit: RunEdit, actor: str) -> None:
    if edit.run.state in FINISHED_RUN_STATES:
        return
    reason = f"{actor} cancelled the run"
    edit.named += [row for row in edit.instances if row.state not in FINISHED_TASK_STATES]
    for row in edit.named:
        edit.end(row, State.SKIPPED, reason)
    edit.new_state, edit.reason = DagRunState.FAILED, reason


def _answer(edit: RunEdit, request: AnswerTask) -> None:
    row = _instance(edit, request.task_id, request.map_index)
    stored = _awaited(row)
    if stored is None:
        raise AsynschedError(_waits_for_no_answer(row))
    outcome = TriggerOutcome(row.token or "", "event", payload=request.event)
    edit.named.append(row)
    edit.resume(row, msgspec.structs.replace(stored, outcome=outcome))


def _instance(edit: RunEdit, task_id: str, map_index: int) -> TaskInstanceRow:
    check_tasks((task_id,), edit.structure.tasks)
    check_instances(edit.instances, (task_id,), map_index)
    [row] = [row for row in edit.instances if (row.task_id, row.map_index) == (task_id, map_index)]
    return row


def _awaited(row: TaskInstanceRow) -> StoredDeferral | None:
    """Return the deferral of a task instance that waits for an answer; None if it waits for none."""
    if row.state != State.AWAITING_INPUT or row.deferral is None:
        return None
    return msgspec.json.decode(row.deferral, type=StoredDeferral)


def _waits_for_no_answer(row: TaskInstanceRow) -> str:
    return f"The task {row.task_id!r} waits for no answer: it is {row.state or 'not started yet'}."


def _follow_version(edit: RunEdit) -> None:
    """Match a run's task instances to another version: remove those that it lacks, restore removed ones that it has.

    New tasks get their instances when the run starts again.
    """
    kept = []
    for row in edit.instances:
        fits = edit.structure.fits(row.task_id, row.map_index)
        if fits and _state(row) is State.REMOVED:
            edit.named.append(row)
            edit.clear(row)
        elif fits:
            kept.append(row)
        elif _state(row) is not State.REMOVED:
            edit.end(row, State.REMOVED, "the version that the run was moved to has no such task")
    edit.instances = kept


def _check_named(edit: RunEdit, request: ClearTasks | MarkTasks) -> None:
    check_tasks(request.task_ids, edit.structure.tasks)
    if request.map_index is not None:
        check_instances(edit.instances, request.task_ids, request.map_index)


def _instances_of(edit: RunEdit, wanted: frozenset[str], request: ClearTasks | MarkTasks) -> Iterator[TaskInstanceRow]:
    """Yield the wanted instances. The map index also holds for other tasks in the named ones' mapped groups."""
    tasks, groups = edit.structure.tasks, edit.structure.mapped_groups
    mapped_by_groups = {task_id: groups[task_id] for task_id, task in tasks.items() if task.map_length is None}
    named = {mapped_by_groups.get(task_id) for task_id in request.task_ids} - {(), None}
    for row in edit.instances:
        is_alike = row.task_id in request.task_ids or mapped_by_groups.get(row.task_id) in named
        if row.task_id in wanted and (request.map_index is None or not is_alike or row.map_index == request.map_index):
            yield row


def _state(row: TaskInstanceRow) -> State | None:
    return None if row.state is None else State(row.state)


def check_tasks(task_ids: Iterable[str], known: Collection[str]) -> None:
    """Raise NotFound, with near names, for the first task that is not known."""
    for task_id in task_ids:
        if task_id not in known:
            raise NotFound("task", task_id, near_names(task_id, known))


def check_instances(instances: Sequence[TaskInstanceRow], task_ids: Collection[str], map_index: int) -> None:
    """Raise AsynschedError unless each of the tasks has an instance of that map index in a run.

    Args:
        map_index: -1 for a task that is not mapped.
    """
    if not task_ids:
        raise AsynschedError(f"The map index {map_index} needs a task: name one.")
    for task_id in task_ids:
        indexes = sorted(instance.map_index for instance in instances if instance.task_id == task_id)
        if map_index not in indexes:
            raise AsynschedError(no_such_instance(task_id, map_index, indexes))


def no_such_instance(task_id: str, map_index: int, indexes: Sequence[int]) -> str:
    """Return the message for a task that has no instance of that map index.

    Args:
        indexes: The map indexes that it has, sorted.
    """
    if not indexes:
        return f"The task {task_id!r} has no instances in this run yet."
    if indexes[-1] < 0:
        return f"The task {task_id!r} has no instance {map_index}, it has one only: leave the map index out."
    known = f"{indexes[0]} to {indexes[-1]}" if len(indexes) > 1 else str(indexes[0])
    missing = "is mapped" if map_index < 0 else f"is mapped, but has no instance {map_index}"
    return f"The task {task_id!r} {missing}: say which by its map index, {known}."


_ADOPT = (
    sa.update(task_instance)
    .where(task_instance.c.dag_run_id == sa.bindparam("run"))
    .where(task_instance.c.lease_epoch.is_distinct_from(sa.bindparam("epoch")))
    .values(lease_epoch=sa.bindparam("epoch"))
)


# Not the wide rows: an action may change tens of thousands of task instances.
class ChangedTask(msgspec.Struct, frozen=True, gc=False):
    """A task instance that an action has changed, or would change, as it was before."""

    task_id: str
    map_index: int
    state: str | None
    try_number: int


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request that was accepted.

    Attributes:
        instances: The task instances that it concerns, as they were before.
        request_id: Row id of the request if the run's scheduler has yet to do it; None: it is done.
    """

    instances: tuple[ChangedTask, ...] = ()
    request_id: int | None = None


def preview_request(
    conn: Connection, key: DagRunKey, request: RunRequest, *, now: datetime
) -> tuple[ChangedTask, ...]:  # fmt: skip
    """Return the task instances that a request would concern; raises the errors of `submit_request`."""
    return _changed(_checked(conn, _run(conn, key), request, "", now).named)


def submit_request(conn: Connection, key: DagRunKey, request: RunRequest, *, actor: str, now: datetime) -> Submitted:
    """Do a request for a run, or store it for the scheduler that owns the run.

    Args:
        actor: The name of the person or program that makes the request, for reasons and the audit.

    Raises:
        NotFound: There is no such run or task; carries the nearest names.
        AsynschedError: The run has no tasks yet, or has ended already.
    """
    lock_runs(conn, [_run(conn, key).id])
    run = _run(conn, key)
    edit = _checked(conn, run, request, actor, now)
    request_id = None
    if run.state == DagRunState.RUNNING:
        request_id = add_request(conn, run.id, request, actor=actor, now=now)
        # The run's scheduler may be another process than the caller's.
        notify(conn, Hint("edit", dag_id=key.dag_id, run_id=key.run_id))
    else:
        _write(conn, edit)
    return Submitted(_changed(edit.named), request_id)


def _changed(rows: Iterable[TaskInstanceRow]) -> tuple[ChangedTask, ...]:
    return tuple([ChangedTask(row.task_id, row.map_index, row.state, row.try_number) for row in rows])


def submit_by_program(
    conn: Connection, key: DagRunKey, request: RunRequest, *, now: datetime
) -> list[TaskInstanceKey]:  # fmt: skip
    """Submit a request for an embedding program, and record that in the audit. Returns what it concerns."""
    taken = submit_request(conn, key, request, actor="the program", now=now)
    record_audit(
        conn, at=now, actor="program", action=action_of(request), dag_id=key.dag_id, run_id=key.run_id,
        detail=detail_of(request),
    )  # fmt: skip
    return [TaskInstanceKey(*key, one.task_id, one.map_index) for one in taken.instances]


_ACTIONS = {
    ClearTasks: "task.clear", MarkTasks: "task.mark", ForceTask: "task.run", MarkRun: "run.mark",
    CancelRun: "run.cancel", AnswerTask: "task.answer",
}  # fmt: skip


def action_of(request: RunRequest) -> str:
    """Return the name of a request in the audit."""
    is_of_run = isinstance(request, ClearTasks) and not request.task_ids
    return "run.clear" if is_of_run else _ACTIONS[type(request)]


def detail_of(request: RunRequest) -> dict[str, Any]:
    """Return the fields of a request, for the audit; without those that have their defaults."""
    detail: dict[str, Any] = msgspec.to_builtins(request)
    del detail["type"]
    return detail


def do_request(conn: Connection, wanted: OpenRequest, lease_epoch: int, now: datetime) -> bool:
    """Do a stored request, unless another scheduler owns the run by now: the owner does it.

    Args:
        lease_epoch: That of the calling scheduler.

    Returns:
        Whether it was done; False as well if a task does not wait for its answer yet, or the request is gone.

    Raises:
        NotFound: The run has no such task any more, or its DAG no version.
        AsynschedError: The run has changed so that the request no longer makes sense.
    """
    lock_runs(conn, [wanted.dag_run_id])
    run = _run(conn, wanted.run)
    if run.state == DagRunState.RUNNING and run.lease_epoch != lease_epoch:
        return False
    edit = _edit(conn, run, wanted.request, now)
    if isinstance(wanted.request, AnswerTask) and not _is_awaited(conn, edit, wanted.request):
        return False
    if not end_request(conn, wanted):
        return False
    fill_in(edit, wanted.request, wanted.actor)
    _write(conn, edit)
    return True


def _is_awaited(conn: Connection, edit: RunEdit, answer: AnswerTask) -> bool:
    """Return whether a task waits for this answer, or waits no longer; False: not yet, its try that asked goes on.

    Raises AsynschedError if it has asked another question since.
    """
    row = _instance(edit, answer.task_id, answer.map_index)
    asked = get_question(conn, (row.dag_run_id, row.task_id, row.map_index))
    if asked is None or asked.created_at != answer.asked_at:
        raise AsynschedError(
            f"The task {answer.task_id!r} has asked again since: the answer is to an earlier question."
        )
    return not _will_wait(row, asked)


def _will_wait(row: TaskInstanceRow, asked: HITLRow) -> bool:
    """Return whether the try that asked goes on, so that its task may wait soon. A resumed task has another token."""
    return row.state in (State.QUEUED, State.RUNNING) and row.token == asked.token


def submit_answer(
    conn: Connection,
    key: DagRunKey,
    task_id: str,
    map_index: int,
    read: Callable[[HITLRow], tuple[list[str], dict[str, Any]]],
    *,
    actor: str,
    user: Mapping[str, str],
    now: datetime,
) -> HITLRow:
    """Answer the question of a task, for the scheduler that owns the run to resume the task. Returns the question.

    Args:
        read: Returns the chosen options and the values of the params; raises AsynschedError if they do not fit.
        user: Who answers: `id` and `name`.

    Raises:
        NotFound: There is no such run or task; carries the nearest names.
        AsynschedError: The task waits for no answer, has one already, or not from this user.
    """
    lock_runs(conn, [_run(conn, key).id])
    run = _run(conn, key)
    edit = _edit(conn, run, ClearTasks(), now)
    row = _instance(edit, task_id, map_index)
    asked = get_question(conn, (row.dag_run_id, row.task_id, row.map_index), lock=True)
    if asked is not None and asked.responded_at is not None:
        who = "nobody: the time was over" if asked.responded_by is None else asked.responded_by["name"]
        chosen = ", ".join(asked.chosen_options or ())
        raise AsynschedError(f"The task {task_id!r} has an answer already, from {who}: {chosen}.")
    if asked is None or not (_awaited(row) or _will_wait(row, asked)):
        raise AsynschedError(_waits_for_no_answer(row))
    known = {name for assigned in asked.assigned_users for name in (assigned["id"], assigned["name"])}
    if known and known.isdisjoint(user.values()):
        names = ", ".join(assigned["name"] for assigned in asked.assigned_users)
        raise AsynschedError(f"{user['name']} may not answer the task {task_id!r}. These may: {names}.")
    chosen_options, params_input = read(asked)
    request = put_answer(conn, asked, chosen_options=chosen_options, params_input=params_input, user=user, now=now)
    add_request(conn, run.id, request, actor=actor, now=now)
    return asked


def end_request(conn: Connection, wanted: OpenRequest) -> bool:
    """Delete a request that is done or refused, and notify the waiting command. Returns False if it was gone."""
    notify(conn, Hint("changed", *wanted.run))
    return close_request(conn, wanted.id)


def run_again(conn: Connection, key: DagRunKey, now: datetime, *, latest: bool) -> None:
    """Clear an ended run with all its tasks, so that it starts again. Raises StoreError if it has not ended.

    Args:
        latest: Whether it moves to the newest version of its DAG.
    """
    lock_runs(conn, [_run(conn, key).id])
    run = _run(conn, key)
    if run.state not in FINISHED_RUN_STATES:
        raise StoreError(f"The run {run.run_id!r} was changed at the same moment; try again.")
    request = ClearTasks(latest=latest)
    edit = _edit(conn, run, request, now)
    fill_in(edit, request, "")
    edit.reopen()
    _write(conn, edit, is_told=False)  # with the others of its backfill


def queue_again(conn: Connection, key: DagRunKey, now: datetime) -> None:
    """Queue an ended run again, with its task instances as they are. Any other run stays as it is. Raises NotFound."""
    lock_runs(conn, [_run(conn, key).id])
    run = _run(conn, key)
    if run.state in FINISHED_RUN_STATES:
        edit = _edit(conn, run, ClearTasks(), now)
        edit.reopen()
        _write(conn, edit)


def _write(conn: Connection, edit: RunEdit, *, is_told: bool = True) -> None:
    run = edit.run
    lock_tasks(conn, [run.id])
    # Tasks that have ended may bear the epoch of an earlier owner of the run.
    conn.execute(_ADOPT, {"run": run.id, "epoch": run.lease_epoch})
    stale = apply(conn, edit.batch())
    if stale:
        raise StoreError(f"The run {run.run_id!r} was changed at the same moment; try again.")
    if any(task.before_state in COUNTED_TASK_STATES and task.state not in COUNTED_TASK_STATES for task in edit.tasks):
        notify(conn, Hint("slots"))
    if is_told:
        notify(conn, Hint("edit", run.dag_id, run.run_id))  # another scheduler may have runs that depend on it
    if edit.new_state is DagRunState.QUEUED:
        renew_deadlines(conn, run.id, run.dag_id, edit.now)


def _checked(conn: Connection, run: DagRunRow, request: RunRequest, actor: str, now: datetime) -> RunEdit:
    if isinstance(request, CancelRun) and run.state in FINISHED_RUN_STATES:
        raise AsynschedError(f"The run {run.run_id!r} has already ended: {run.state}.")
    edit = _edit(conn, run, request, now)
    if isinstance(request, ClearTasks | MarkTasks | ForceTask) and not edit.instances:
        raise AsynschedError(f"The run {run.run_id!r} is {run.state}, and has no tasks yet.")
    fill_in(edit, request, actor)
    return edit


def _edit(conn: Connection, run: DagRunRow, request: RunRequest, now: datetime) -> RunEdit:
    version_id, structure = _version(conn, run, newest=isinstance(request, ClearTasks) and request.latest)
    earlier = numbers_of_tries(conn, run.id)
    return RunEdit(run, load_task_instances(conn, run.id), earlier, structure, version_id, now)


def _version(conn: Connection, run: DagRunRow, *, newest: bool) -> tuple[int | None, DagStructure]:
    """Return the version that a run is on, or is to move to. A run that never began has no version, and gets none."""
    if run.version_id is None or newest:
        found = latest_version(conn, run.dag_id)
        if found is None:
            raise NotFound("DAG", run.dag_id)
    else:
        found = get_version(conn, run.version_id)
    return None if run.version_id is None else found.id, compile_structure(decode_dag(found.serialized))


def _run(conn: Connection, key: DagRunKey) -> DagRunRow:
    run = get_run(conn, *key)
    if run is None:
        raise NotFound("run", key.run_id)
    return run
