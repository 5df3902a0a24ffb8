"""Why a DAG has no run, why a run or a task instance waits, and why it ended as it did."""

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from asynsched.explaining.owners import RULE, answer_of, with_service
from asynsched.explaining.reason import Explanation, Reason, Subject, grouped, moment, shortened
from asynsched.explaining.snapshot import Snapshot, take_snapshot
from asynsched.health import LongParse
from asynsched.protocol.messages import AwaitedInput
from asynsched.scheduling.creation.scheduled_runs import Examined, foresee_dag
from asynsched.scheduling.evaluation.decisions import DEPENDENCIES
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.rules.past_depends import GOOD_STATES
from asynsched.settings import Settings
from asynsched.states import FAILED_TASK_STATES, FINISHED_RUN_STATES, FINISHED_TASK_STATES, DagRunState
from asynsched.states import TaskInstanceState as State
from asynsched.store.dags.dags import DagRow
from asynsched.store.dags.files import list_errors_of
from asynsched.store.database import Database
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.requests import (
    AnswerTask,
    CancelRun,
    ClearTasks,
    ForceTask,
    MarkRun,
    RunRequest,
    WaitingRequest,
)
from asynsched.store.schema import DagRunRow
from asynsched.store.tickets import CLAIMED, Whereabouts
from asynsched.store.watchers import Watching, failing_watchers


async def explain_dag(
    database: Database, dag: DagRow, *, now: datetime, unserved: Reason | None, parses: Sequence[LongParse] = ()
) -> Explanation:
    """Return why no run of a DAG is created at this moment.

    Args:
        unserved: Why no scheduler works; None if one serves.
    """
    reasons = [
        Reason("parse", parse.sentence.rstrip("."), "the parse has ended")
        for parse in parses
        if parse.file == dag.file_path
    ]
    if dag.has_errors:
        errors = await database.read(list_errors_of, [dag.file_path])
        reasons += [
            Reason("file", f"its file has an error: {error.message}; its last good version is used", "it is corrected")
            for error in errors
            if not error.is_warning and error.dag_id in (None, dag.dag_id)
        ]
    if not dag.is_active:
        text = f"the file {dag.file_path} is gone, or no longer has this DAG"
        reasons.append(Reason("removed", text, "a file of the DAG folder has it again"))
    elif dag.is_paused:
        reasons.append(Reason("paused", "it is paused", f"a user unpauses it: `asynsched dags unpause {dag.dag_id}`"))
    else:
        reasons += _of_schedule(dag, await database.read(foresee_dag, dag.dag_id, now))
        if any(reason.rule == "assets" for reason in reasons):
            reasons += [_of_watcher(failing) for failing in await database.read(failing_watchers, dag.dag_id)]
    found = with_service(reasons, unserved)
    answer = held_up_by(found) or "Nothing holds it up: a run is created now."
    state = "paused" if dag.is_paused else "active"
    return Explanation(dag.dag_id, state if dag.is_active else "removed", answer, found)


def _of_schedule(dag: DagRow, examined: Examined) -> list[Reason]:
    if examined.run_ids:
        return []
    if examined.error:
        return [Reason("schedule", examined.error, "its schedule is corrected")]
    if examined.is_held_back:
        text = f"a run is due, and max_active_runs ({dag.max_active_runs}) are active"
        return [Reason("max_active_runs", text, "one of them ends")]
    reasons = []
    if examined.asks:
        text = "its timetable, which is code of its file, has not returned the next run yet"
        reasons.append(Reason("timetable", text, "its file has been parsed again"))
    if examined.waits_for:
        reasons.append(Reason("assets", examined.waits_for, "these are updated"))
    if examined.due_at is not None:
        reasons.append(Reason("schedule", "the next run is not due yet", "its time comes", examined.due_at))
    if not reasons:
        release = f"a user triggers it: `asynsched dags trigger {dag.dag_id}`"
        summary = dag.schedule_summary
        text = f"its schedule, {summary}, gives no further run" if summary else "it has no schedule"
        reasons.append(Reason("schedule", text, release))
    return reasons


def _of_watcher(failing: Watching) -> Reason:
    at = "" if failing.failed_at is None else f" at {moment(failing.failed_at)}"
    text = f"the watcher {failing.watcher!r} of asset {failing.asset!r} failed{at}: {failing.error}"
    return Reason("watcher", text, "its trigger, which is started again after a pause, no longer fails")


def explain_run(snapshot: Snapshot, row: DagRunRow, run: ActiveRun | None) -> Explanation:
    """Return why a run does not start or go on, or why it ended as it did.

    Args:
        run: The run with its task instances; None if it would not start now, or if its code cannot be read.
    """
    subject = f"{row.run_id} of {row.dag_id}"
    if row.state in FINISHED_RUN_STATES:
        why = f": {row.reason.rstrip('.')}" if row.reason else ""
        return Explanation(subject, row.state, f"It ended as {row.state}{why}.", _ends(snapshot, run))
    reasons: tuple[Reason, ...] = ()
    if run is None and row.state == DagRunState.RUNNING:
        reasons = (Reason("code", "this version cannot read its code", "a scheduler that can read it takes it over"),)
    elif run is None:
        verdict = snapshot.admission(row)
        reasons = (Reason("admission", verdict.reason, verdict.release),)
    elif row.state != DagRunState.QUEUED:
        # Why each unfinished task instance waits, unless it waits for others of the run.
        reasons = grouped(
            (task, reason)
            for task in run.all_instances()
            if not task.is_finished and task not in snapshot.starting
            for reason in open_ends_of(snapshot, task)
        )
        reasons = reasons or _processes(run)
    found = with_service(reasons, snapshot.unserved, snapshot.lack_of_owner(run))
    answer = held_up_by(found) or "Nothing holds it up: it goes on now."
    return Explanation(subject, row.state, answer, found)


def _processes(run: ActiveRun) -> tuple[Reason, ...]:
    """Return why a run goes on though all its tasks have ended: only its scheduler knows which processes are left."""
    if not all(task.stored_state in FINISHED_TASK_STATES for task in run.all_instances()):
        return ()
    text = "it ends once no process is left of tasks that were marked or removed while they ran"
    return (Reason("processes", f"all its tasks have ended: {text}"),)


def _ends(snapshot: Snapshot, run: ActiveRun | None) -> tuple[Reason, ...]:
    if run is None:
        return ()
    told = Told()

    def reason(task: ActiveTask) -> Reason:
        causes = reasons_of(snapshot, task, told)
        return Reason("task", f"{task.name}: {task.state}", causes=causes, about=Subject(*task.key))

    return shortened([task for task in run.all_instances() if task.state in FAILED_TASK_STATES], reason)


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
        timeout = "" if run.over_at is None else f"; its dagrun_timeout is over{_when('at', run.over_at)}"
        told.append(f"{explained.subject}: {explained.reasons[0].text}{f', and {more} more' if more else ''}{timeout}")
    if len(runs) > MOST_RUNS:
        told.append(f"and {len(runs) - MOST_RUNS} more")
    return "; ".join(told)


def with_requests(found: Explanation, requests: Sequence[WaitingRequest], *, is_served: bool) -> Explanation:
    """Return an explanation with the open requests of users added, oldest first.

    Args:
        is_served: Whether a scheduler serves, which will do them.
    """
    if not requests:
        return found
    release = "the scheduler has done it" if is_served else "a scheduler is started: `asynsched up`"
    phrases = [_request_phrase(waiting.request) for waiting in requests]
    asked = tuple(
        Reason("request", f"{phrase} was asked for by {waiting.actor} at {moment(waiting.created_at)}", release)
        for phrase, waiting in zip(phrases, requests, strict=True)
    )
    answer = f"{found.answer} Before that: {', '.join(phrases)}."
    n_first = 0 if is_served else 1
    reasons = (*found.reasons[:n_first], *asked, *found.reasons[n_first:])
    return msgspec.structs.replace(found, answer=answer, reasons=reasons)


def _request_phrase(request: RunRequest) -> str:
    """Return a request in a few words."""
    match request:
        case CancelRun():
            return "cancelling the run"
        case MarkRun():
            return f"marking the run as {request.state}"
        case ForceTask():
            return f"starting task {request.task_id}"
        case AnswerTask():
            return f"resuming task {request.task_id} with its answer"
        case ClearTasks(task_ids=()):
            return "clearing the run"
    tasks = f"task{'s' if len(request.task_ids) > 1 else ''} {', '.join(request.task_ids)}"
    return f"clearing {tasks}" if isinstance(request, ClearTasks) else f"marking {tasks} as {request.state}"


PAST = "depends_on_past"
TEARDOWN_SCOPE = "teardown_scope"
WITHIN_RUN = frozenset({"trigger_rule", "setups", TEARDOWN_SCOPE})
"""The dependencies on other task instances of the same run."""
DEEPEST = 12
"""The depth to which a chain of causes is followed."""


class Told:
    """The task instances that an explanation has covered: the causes of each are given once.

    Otherwise an explanation could be as long as the number of paths through a DAG.
    """

    def __init__(self) -> None:
        self._tasks: set[ActiveTask] = set()

    def tell(self, task: ActiveTask, explain: Callable[[ActiveTask], tuple[Reason, ...]]) -> Reason:
        """Return a reason about a task instance, with its causes if it is the first one about it."""
        if task in self._tasks:
            return Reason("task", f"{_standing(task)}, as above", about=Subject(*task.key))
        self._tasks.add(task)
        return Reason("task", _standing(task), causes=explain(task), about=Subject(*task.key))

    def break_off(self, task: ActiveTask) -> None:
        """Note that the causes of a task instance are too deep here: a shorter path may lead to it."""
        self._tasks.discard(task)


def explain_task(snapshot: Snapshot, task: ActiveTask) -> Explanation:
    """Return why a task instance does not start, or why it ended as it did."""
    reasons = reasons_of(snapshot, task)
    state = task.stored_state
    if task.is_finished and state in FINISHED_TASK_STATES:
        answer = f"It ended as {state}{_when('at', task.ended_at)}."
    else:
        reasons = with_service(reasons, snapshot.unserved, snapshot.lack_of_owner(task.run))
        answer = held_up_by(reasons) or "Nothing holds it up: it starts now."
    return Explanation(_subject(task), str(state or "none"), answer, reasons)


def reasons_of(snapshot: Snapshot, task: ActiveTask, told: Told | None = None, depth: int = 0) -> tuple[Reason, ...]:
    """Return every cause that holds a task instance up, or led to its end; none if it starts now.

    Args:
        told: The task instances that the explanation has covered already.
    """
    told = told or Told()
    match task.state:
        case None:
            return _dependencies(snapshot, task, told, depth)
        case State.SCHEDULED:
            return _limits(snapshot, task)
        case State.QUEUED if task in snapshot.starting:
            return ()
        case State.QUEUED | State.RUNNING | State.RESTARTING:
            return (_under_way(snapshot, task),)
        case State.UP_FOR_RETRY:
            text = f"try {task.try_number} failed: {task.reason}"
            return (Reason("retry", text, "its retry is due", task.next_try_at),)
        case State.UP_FOR_RESCHEDULE:
            return (Reason("reschedule", "it poked, and will poke again", "it is due", task.next_try_at),)
        case State.AWAITING_INPUT if task.deferral is not None and task.deferral.deferral.input is not None:
            return (_unanswered(task, task.deferral.deferral.input),)
        case State.DEFERRED:
            timeout = "" if task.next_try_at is None else f", or its timeout is over{_when('at', task.next_try_at)}"
            reason = f": {task.reason}" if task.reason else ""
            return (Reason("deferred", f"it is deferred{reason}", f"the trigger fires{timeout}"),)
    return _end(task, told, depth)


def _unanswered(task: ActiveTask, awaited: AwaitedInput) -> Reason:
    if task.next_try_at is None:
        timeout = ""
    elif awaited.defaults is None:
        timeout = f", or it fails{_when('at', task.next_try_at)}"
    else:
        timeout = f", or {', '.join(awaited.defaults)} is taken{_when('at', task.next_try_at)}"
    return Reason("input", f"it waits for a person's answer: {awaited.subject}", f"somebody answers it{timeout}")


def open_ends_of(snapshot: Snapshot, task: ActiveTask) -> tuple[Reason, ...]:
    """Return the reasons why an unfinished task instance waits, except for other task instances of its run."""
    if task.state is None:
        return _dependencies(snapshot, task, Told(), 0, but=WITHIN_RUN)
    return reasons_of(snapshot, task)


def _dependencies(
    snapshot: Snapshot, task: ActiveTask, told: Told, depth: int, but: frozenset[str] = frozenset()
) -> tuple[Reason, ...]:
    reasons = []
    for name, dependency in DEPENDENCIES.items():
        if name in task.ignored or name in but:
            continue
        verdict = dependency(task)
        if not verdict.met:
            waited_for = _waited_for(snapshot, task, name)
            release = _release(task, name, waited_for)
            causes = _causes(snapshot, task, waited_for, told, depth)
            reasons.append(Reason(name, verdict.reason, release, causes=causes))
    return tuple(reasons)


def _waited_for(snapshot: Snapshot, task: ActiveTask, dependency: str) -> list[ActiveTask]:
    """Return the task instances in memory that a dependency waits for."""
    if dependency == PAST:
        before = snapshot.evaluation.runs.get(task.run.key_before) if task.run.key_before else None
        if before is None:
            return []
        after = before.structure.downstream.get(task.task_id, ()) if task.task.wait_for_downstream else ()
        found = (found for name in (task.task_id, *after) for found in before.instances.get(name, {}).values())
        return [found for found in found if found.state not in GOOD_STATES]
    if dependency == TEARDOWN_SCOPE:
        others = task.run.structure.scopes.get(task.task_id, ())
        return [one for name in others for one in task.run.instances_beside(task, name) if not one.is_finished]
    return [
        found
        for link in task.run.structure.links_to[task.task_id]
        if link.is_setup_constraint == (dependency == "setups")
        for found in task.run.instances_beside(task, link.upstream_id)
        if not found.is_finished
    ]


def _release(task: ActiveTask, dependency: str, waited_for: list[ActiveTask]) -> str:
    """Return the event that will meet a dependency; empty if it is unknown."""
    if dependency != PAST:
        return "they end" if waited_for else ""
    past = task.run.past.get(task.task_id)
    if any(not found.is_finished for found in waited_for) or past is None or not past.n_instances:
        return "the run before goes on"
    return "the failed task is cleared and succeeds, or is marked: `asynsched tasks clear` or `mark`"


def _causes(
    snapshot: Snapshot, task: ActiveTask, waited_for: list[ActiveTask], told: Told, depth: int
) -> tuple[Reason, ...]:
    """Return the reasons of the tasks that a dependency waits for: why they wait, or why they ended as they did."""
    if depth >= DEEPEST:
        if waited_for:
            told.break_off(task)
        return ()

    def explain(found: ActiveTask) -> tuple[Reason, ...]:
        return reasons_of(snapshot, found, told, depth + 1)

    return shortened(waited_for, lambda found: told.tell(found, explain))


def _limits(snapshot: Snapshot, task: ActiveTask) -> tuple[Reason, ...]:
    obstacle = snapshot.evaluation.ready.obstacle(task.route)
    if obstacle:
        is_there = snapshot.evaluation.ready.pool(task.route.pool).exists
        release = "the pool is enlarged, or the executor is configured" if is_there else "the pool is made"
        return (Reason("obstacle", obstacle, release),)
    reasons = []
    if (other := snapshot.evaluation.ready.kept_for(task, snapshot.now)) is not None:
        text = f"free slots of the pool {task.route.pool} are kept for a task that waits for longer"
        reasons.append(Reason("keep_slots_after", text, "that task has started", causes=(_holder(other),)))
    for limit in snapshot.lacking(task):
        if limit.capacity == 0:
            reasons.append(Reason("closed", limit.name, limit.release))
        else:
            text = f"{limit.name}: {limit.taken} of {limit.capacity} taken, {limit.slots_of(task)} needed"
            holders = shortened(snapshot.holders(limit), _holder)
            reasons.append(Reason("limit", text, limit.release, causes=holders))
    return tuple(reasons)


def _holder(task: ActiveTask) -> Reason:
    """Return the task instance, often of another DAG, that has the slots or comes first."""
    return Reason("holder", _standing(task), about=Subject(*task.key))


def _under_way(snapshot: Snapshot, task: ActiveTask) -> Reason:
    if snapshot.lack_of_owner(task.run) is not None:
        text = f"try {task.try_number} was {task.stored_state} when its scheduler was last heard of"
        return Reason(str(task.stored_state), text, "its run is taken over: then its state is known")
    if task.stored_state is State.RESTARTING:
        text = f"it was cleared while try {task.try_number} was under way, whose process is being ended"
        return Reason("restarting", text, "the process has ended; it runs again then, once nothing else holds it up")
    place = snapshot.elsewhere.get(task.token or "")
    if task.stored_state is State.RUNNING:
        where = f" on the worker {place.worker}" if place is not None and place.worker else ""
        return Reason("running", f"try {task.try_number} is running{where}{_when('since', task.started_at)}", "it ends")
    release = "it begins"
    if task.try_number > 1:
        # The executor lets two tries never overlap.
        release += ", once no process of an earlier try is left"
    text = f"try {task.try_number} was handed to the executor{_when('since', task.queued_at)}"
    if place is not None:
        text += f", and {_in_engine(place)}"
    return Reason("queued", text, release)


def _in_engine(place: Whereabouts) -> str:
    """Return where a try on another machine is that has not begun, as part of a sentence."""
    if place.state == CLAIMED:
        return f"the worker {place.worker} prepares it"
    state, _, reason = place.sight.partition(": ")
    engine = f"the engine of executor {place.executor}"
    if not place.is_taken:
        known = f"{engine} has not taken it"
        return f"{known}: {reason}" if reason else f"{known} yet"
    known = {
        "queued": f"waits in {engine}",
        "running": "its job runs, but no worker has claimed it yet",
        "gone": f"{engine} does not have it any more, and no worker has claimed it",
        "unknown": f"{engine} has taken it, but does not say where it is; no worker has claimed it yet",
    }.get(state, f"{engine} has taken it, but no worker has claimed it yet")
    return f"{known}: {reason}" if reason else known


def _end(task: ActiveTask, told: Told, depth: int) -> tuple[Reason, ...]:
    """Return the reason for the end of a task instance; if a rule ended it, also the upstream ends that caused it."""
    text = task.reason
    if task.state is State.SUCCESS and not text:
        verdict_counts = task.run.ends_of(task).direct
        text = f"its trigger rule {task.task.trigger_rule} let it run"
        text += f": {verdict_counts.describe()}" if verdict_counts.total else ""
    is_by_rule = task.state in (State.UPSTREAM_FAILED, State.SKIPPED)
    causes = _ends_above(task, told, depth) if is_by_rule else ()
    return (Reason(str(task.state), text or f"it is {task.state}", causes=causes),)


def _ends_above(task: ActiveTask, told: Told, depth: int) -> tuple[Reason, ...]:
    """Return the causes of the upstream ends that made a rule end this task instance."""
    if depth >= DEEPEST:
        told.break_off(task)
        return ()
    wanted = FAILED_TASK_STATES if task.state is State.UPSTREAM_FAILED else {State.SKIPPED}
    above = [
        found
        for link in task.run.structure.links_to[task.task_id]
        for found in task.run.instances_beside(task, link.upstream_id)
        if found.state in wanted
    ]
    return shortened(above, lambda found: told.tell(found, lambda found: _end(found, told, depth + 1)))


def held_up_by(reasons: Sequence[Reason]) -> str:
    """Return the reasons in one sentence; empty if there are none."""
    if not reasons:
        return ""
    if reasons[0].rule == RULE:
        first = answer_of(reasons[0])
        return f"{first} Besides: {held_up_by(reasons[1:])}" if reasons[1:] else first
    more = len(reasons) - 1
    rest = f", and {more} thing{'s' if more > 1 else ''} more" if more else ""
    text = reasons[0].text.rstrip(".")
    end = "" if text.endswith("?") and not rest else "."  # a question to a person
    return f"{text[:1].upper()}{text[1:]}{rest}{end}"


def _standing(task: ActiveTask) -> str:
    return f"{_subject(task)}: {task.state or 'waits'}"


def _subject(task: ActiveTask) -> str:
    return f"{task.name} of {task.run.key.run_id} of {task.run.key.dag_id}"


def _when(word: str, instant: datetime | None) -> str:
    return "" if instant is None else f" {word} {moment(instant)}"
