"""Why a task instance does not start, or why it ended as it did."""

from collections.abc import Callable, Sequence
from datetime import datetime

from asynsched.explaining.owners import RULE, answer_of, with_service
from asynsched.explaining.reason import Explanation, Reason, shortened
from asynsched.explaining.snapshot import Snapshot
from asynsched.scheduling.evaluation.decisions import DEPENDENCIES
from asynsched.scheduling.evaluation.run import ActiveTask
from asynsched.scheduling.rules.past_depends import GOOD_STATES
from asynsched.states import FAILED_TASK_STATES, FINISHED_TASK_STATES, TaskInstanceState

State = TaskInstanceState
PAST = "depends_on_past"
WITHIN_RUN = frozenset({"trigger_rule", "setups"})
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
            return Reason("task", f"{_standing(task)}, as above")
        self._tasks.add(task)
        return Reason("task", _standing(task), causes=explain(task))

    def break_off(self, task: ActiveTask) -> None:
        """Note that the causes of a task instance are too deep here: a shorter path may lead to it."""
        self._tasks.discard(task)


def explain_task(snapshot: Snapshot, task: ActiveTask) -> Explanation:
    """Return why a task instance does not start, or why it ended as it did."""
    reasons = reasons_of(snapshot, task)
    state = task.stored_state
    if task.is_finished and state in FINISHED_TASK_STATES:
        answer = f"It ended as {state}{_at(task.ended_at)}."
    else:
        reasons = with_service(reasons, snapshot.unserved, snapshot.lack_of_owner(task.run))
        answer = held_up_by(reasons) or "Nothing holds it up: it starts now."
    return Explanation(_subject(task), str(state or "none"), answer, reasons)


def reasons_of(snapshot: Snapshot, task: ActiveTask, told: Told | None = None, depth: int = 0) -> tuple[Reason, ...]:
    """Return every cause that holds a task instance up, or led to its end; none if it starts now.

    Args:
        snapshot: The scheduler's next steps.
        task: The task instance.
        told: The task instances that the explanation has covered already.
        depth: The depth of this part of the explanation.
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
            return (Reason("reschedule", "it looked, and will look again", "it is due", task.next_try_at),)
        case State.DEFERRED:
            return (_deferred(task),)
    return _end(task, told, depth)


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
    obstacle = snapshot.evaluation.ready.obstacle(task)
    if obstacle:
        return (Reason("obstacle", obstacle, "the pool is made larger, or the executor is configured"),)
    reasons = []
    if (other := snapshot.evaluation.ready.kept_for(task, snapshot.now)) is not None:
        text = f"free slots of the pool {task.task.pool} are kept for {_subject(other)}, which waits for longer"
        reasons.append(Reason("keep_slots_after", text, "that task has started"))
    for limit in snapshot.lacking(task):
        if limit.capacity == 0:
            reasons.append(Reason("closed", limit.name, limit.release))
        else:
            text = f"{limit.name}: {limit.taken} of {limit.capacity} taken, {limit.slots_of(task)} needed"
            holders = shortened(snapshot.holders(limit), lambda found: Reason("holder", _standing(found)))
            reasons.append(Reason("limit", text, limit.release, causes=holders))
    return tuple(reasons)


def _deferred(task: ActiveTask) -> Reason:
    release = "the trigger fires"
    if task.next_try_at is not None:
        release += f", or its timeout is over{_at(task.next_try_at)}"
    return Reason("deferred", f"it is deferred{_colon(task.reason)}", release)


def _under_way(snapshot: Snapshot, task: ActiveTask) -> Reason:
    if snapshot.lack_of_owner(task.run) is not None:
        text = f"try {task.try_number} was {task.stored_state} when its scheduler was last heard of"
        return Reason(str(task.stored_state), text, "its run is taken over: then its state is known")
    if task.stored_state is State.RESTARTING:
        text = f"it was cleared while try {task.try_number} was under way, whose process is being ended"
        return Reason("restarting", text, "the process has ended; it runs again then, once nothing else holds it up")
    if task.stored_state is State.RUNNING:
        return Reason("running", f"try {task.try_number} is running{_since(task.started_at)}", "it ends")
    release = "it begins"
    if task.try_number > 1:
        # The executor lets two tries never overlap.
        release += ", once no process of an earlier try is left"
    return Reason("queued", f"try {task.try_number} was handed to the executor{_since(task.queued_at)}", release)


def _end(task: ActiveTask, told: Told, depth: int) -> tuple[Reason, ...]:
    """Return the reason for the end of a task instance; if a rule settled it, also the upstream ends that caused it."""
    text = task.reason
    if task.state is State.SUCCESS and not text:
        verdict_counts = task.run.ends_of(task).direct
        text = f"its trigger rule {task.task.trigger_rule} let it run"
        text += f": {verdict_counts.describe()}" if verdict_counts.total else ""
    is_settled = task.state in (State.UPSTREAM_FAILED, State.SKIPPED)
    causes = _ends_above(task, told, depth) if is_settled else ()
    return (Reason(str(task.state), text or f"it is {task.state}", causes=causes),)


def _ends_above(task: ActiveTask, told: Told, depth: int) -> tuple[Reason, ...]:
    """Return the causes of the upstream ends that made a rule settle this task instance."""
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
    return f"{_sentence(reasons[0].text)[:-1]}{rest}."


def _standing(task: ActiveTask) -> str:
    return f"{_subject(task)}: {task.state or 'waits'}"


def task_name(task: ActiveTask) -> str:
    """Return a task instance's name within its run."""
    return task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]"


def _subject(task: ActiveTask) -> str:
    return f"{task_name(task)} of {task.run.key.run_id} of {task.run.key.dag_id}"


def _at(instant: datetime | None) -> str:
    return "" if instant is None else f" at {instant.isoformat(timespec='milliseconds')}"


def _since(instant: datetime | None) -> str:
    return "" if instant is None else f" since {instant.isoformat(timespec='milliseconds')}"


def _colon(text: str) -> str:
    return f": {text}" if text else ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
