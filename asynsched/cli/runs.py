"""`asynsched runs …` and `asynsched tasks …`: show, clear, mark, cancel and force runs and task instances."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import click
import msgspec

from asynsched.bell import Hint
from asynsched.cli.command import command, completes, confirm, index_option, run_arguments, task_arguments, yes_option
from asynsched.cli.lookup import find_run, find_task
from asynsched.cli.output import Done, Listing, Record, count, fields_of, note
from asynsched.cli.session import Session, actor
from asynsched.keys import DagRunKey, instance_name
from asynsched.states import DagRunState, TaskInstanceState
from asynsched.store.dags.dags import find_dag, get_dag
from asynsched.store.runs import requests
from asynsched.store.runs.dag_runs import list_runs
from asynsched.store.runs.task_instances import list_task_instances, list_tries
from asynsched.store.schema import DagRunRow, TaskInstanceRow

_INTERNAL = {"id", "conf", "version_id", "scheduler_id", "lease_epoch", "backfill_id", "stop"}
COLUMNS = tuple(name for name in DagRunRow.__struct_fields__ if name not in _INTERNAL)
USUAL_COLUMNS = ("dag_id", "run_id", "state", "reason", "logical_date", "started_at", "ended_at")
SPARE_COLUMNS = ("ended_at", "reason", "started_at", "logical_date")
CALLBACK_COLUMNS = ("event", "task_id", "map_index", "try_number", "state", "attempts")
EVENT_COLUMNS = ("name", "created_at", "extra", "source_dag_id", "source_run_id", "source_task_id", "source_map_index")
DEADLINE_COLUMNS = ("name", "due_at", "state")
TASK_COLUMNS = (
    "task_id", "map_index", "rendered_map_index", "state", "reason", "try_number", "scheduled_at", "queued_at",
    "started_at", "ended_at", "duration_seconds", "pool", "priority_weight",
)  # fmt: skip
USUAL_TASK_COLUMNS = (
    "task_id", "map_index", "rendered_map_index", "state", "reason", "try_number", "started_at", "duration_seconds",
)  # fmt: skip
TRY_COLUMNS = ("task_id", "map_index", "try_number", "state", "reason", "queued_at", "started_at", "ended_at")
CHANGED_COLUMNS = ("task_id", "map_index", "state", "try_number")
UNMAPPED: dict[str, object] = {"rendered_map_index": None, "map_index": -1}
"""Columns for mapped tasks, and their values for other tasks."""
LONGEST_WAIT = timedelta(seconds=15)
"""How long a command waits for the scheduler: a task that is killed has some time to end."""
_TO_GO_ON = {TaskInstanceState.DEFERRED, TaskInstanceState.UP_FOR_RESCHEDULE, TaskInstanceState.SCHEDULED}

dry_run_option = click.option("--dry-run", is_flag=True, help="Only show the task instances that this would change.")
upstream_option = click.option("-u", "--upstream", is_flag=True, help="Also the tasks upstream.")
downstream_option = click.option("-d", "--downstream", is_flag=True, help="Also the tasks downstream.")
one_index_option = click.option(
    "--map-index", type=click.IntRange(min=0), help="Of the named tasks, only this instance of a mapped one."
)


class Wording(NamedTuple):
    """The names of a request: in the audit, in the question before it, and in the answer after it.

    In the texts `{run}` stands for the run_id, and `{n}` for the number of task instances.
    """

    action: str
    question: str
    done: str


def carry_out(
    session: Session,
    dag_id: str,
    run_id: str,
    request: requests.RunRequest,
    wording: Wording,
    *,
    detail: dict[str, Any] | None = None,
    dry_run: bool = False,
    yes: bool = False,
) -> Done | Listing:
    """Do something with a run or, if a scheduler owns the run, wait until that has done it.

    Args:
        run_id: The run as the user names it. Without a confirmation, the beginning of an id is not enough.
        detail: For the audit.
        dry_run: Only return the task instances that the request would change.
        yes: Do not ask.
    """
    from asynsched.scheduling.requests.run_requests import preview_request, submit_request

    run = session.read(find_run, dag_id, run_id, is_whole=yes and not dry_run)
    key = DagRunKey(run.dag_id, run.run_id)
    if dry_run or not yes:
        rows = session.read(preview_request, key, request, now=session.now())
        if dry_run:
            changed = [fields_of(row, CHANGED_COLUMNS) for row in rows]
            return Listing(CHANGED_COLUMNS, changed, nothing="That would change no task instance.")
        about = (f"  {instance_name(row.task_id, row.map_index)} ({row.state or 'no state'})" for row in rows)
        confirm(wording.question.format(run=key.run_id, n=count(len(rows), "task instance")), about)
    taken = session.change(
        wording.action,
        lambda conn: submit_request(conn, key, request, actor=actor(), now=session.now()),
        hint=Hint("edit", *key),
        detail=detail,
    )
    fields = {**key._asdict(), "tasks": [fields_of(row, CHANGED_COLUMNS) for row in taken.instances]}
    if taken.request_id is not None and (obstacle := _wait(session, key, taken.request_id)):
        return Done(f"The request is stored, and not done yet: {obstacle}", fields | {"done": False})
    n = count(len(taken.instances), "task instance")
    return Done(wording.done.format(run=key.run_id, n=n), fields | {"done": True})


def _wait(session: Session, key: DagRunKey, request_id: int) -> str:
    """Wait until the scheduler has done a request. Returns why it has not; empty if it has."""
    deadline = session.now() + (LONGEST_WAIT if session.has_scheduler() else timedelta())
    with session.watching(key) as changes:
        while session.read(requests.is_open, request_id):
            if (seconds := (deadline - session.now()).total_seconds()) > 0:
                changes.wait(seconds)
            elif session.has_scheduler():
                return f"the scheduler has not done it within {LONGEST_WAIT.seconds} s, and will."
            else:
                return "no scheduler is serving at the moment; the next one does it."
    return ""


@command("list", tables=True)
@click.argument("dag_id", metavar="[DAG]", required=False, shell_complete=completes("dag"))
@click.option("--state", type=click.Choice([state.value for state in DagRunState]), help="Only runs in this state.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="How many at most.")
def runs_list(session: Session, dag_id: str | None, state: str | None, limit: int) -> Listing:
    """List runs, of one DAG or of all, newest first. A DAG whose file is gone keeps its runs."""
    runs = session.read(list_runs, dag_id=dag_id, state=state, limit=limit)
    if dag_id is not None and not runs and session.read(get_dag, dag_id) is None:
        session.read(find_dag, dag_id)  # raises, and suggests near names
    rows = [run_fields(run) for run in runs]
    nothing = f"There are no runs in {session.place}."
    return Listing(COLUMNS, rows, nothing, usual=USUAL_COLUMNS, spare=SPARE_COLUMNS)


@command("show", tables=True)
@run_arguments
def runs_show(session: Session, dag_id: str, run_id: str) -> Record:
    """Show a run, the asset events that triggered it, its deadlines and its callbacks."""
    from asynsched.store.assets import consumed_events
    from asynsched.store.runs.callbacks import list_callbacks
    from asynsched.store.runs.deadlines import list_deadlines

    run = session.read(find_run, dag_id, run_id)
    sections = {
        "asset_events": [fields_of(event, EVENT_COLUMNS) for event in session.read(consumed_events, run.id)],
        "callbacks": [fields_of(callback, CALLBACK_COLUMNS) for callback in session.read(list_callbacks, run.id)],
        "deadlines": [fields_of(deadline, DEADLINE_COLUMNS) for deadline in session.read(list_deadlines, run.id)],
    }
    return Record({**run_fields(run), "conf": run.conf, **sections}, sections=dict.fromkeys(sections, ()))


def run_fields(run: DagRunRow) -> dict[str, Any]:
    """Return the fields of a run that are shown."""
    return fields_of(run, COLUMNS)


@command("clear")
@run_arguments
@click.option("--only-failed", is_flag=True, help="Only the tasks that have failed, or whose upstream has.")
@click.option("--latest", is_flag=True, help="Move the run to the newest version of its DAG first.")
@dry_run_option
@yes_option
def runs_clear(session: Session, dag_id: str, run_id: str, dry_run: bool, yes: bool, **options: Any) -> Done | Listing:
    """Clear all tasks of a run, so that it runs again, with the version of its DAG that it began with.

    With --latest: tasks that the newest version lacks are removed, new ones are added.
    """
    wording = Wording("run.clear", "Clear {n} of {run}?", "Cleared {n} of {run}.")
    return carry_out(
        session, dag_id, run_id, requests.ClearTasks(**options), wording, detail=options, dry_run=dry_run, yes=yes
    )


@command("mark")
@run_arguments
@click.argument("state", type=click.Choice(["success", "failed"]))
@yes_option
def runs_mark(session: Session, dag_id: str, run_id: str, state: requests.MarkedRunState, yes: bool) -> Done | Listing:
    """Mark a run as ended. Running tasks are killed; teardowns that have not run yet still do.

    `success` marks all its tasks as success; `failed` skips the tasks that wait.
    """
    what = f"the run {{run}} as {state}, and with it {{n}}"
    wording = Wording("run.mark", f"Mark {what}?", f"Marked {what}.")
    return carry_out(session, dag_id, run_id, requests.MarkRun(state), wording, detail={"state": state}, yes=yes)


@command("cancel")
@run_arguments
@yes_option
def runs_cancel(session: Session, dag_id: str, run_id: str, yes: bool) -> Done | Listing:
    """Cancel a run that is queued or running: its processes are killed, and it has failed.

    Tasks that wait are skipped, teardowns among them: `asynsched runs mark … failed` runs the teardowns.
    """
    what = "the run {run}, and with it {n}"
    wording = Wording("run.cancel", f"Cancel {what}?", f"Cancelled {what}.")
    return carry_out(session, dag_id, run_id, requests.CancelRun(), wording, yes=yes)


@command("list", tables=True)
@run_arguments
@click.option("--all-tries", is_flag=True, help="Each try, also those that a retry or a clear has followed.")
def tasks_list(session: Session, dag_id: str, run_id: str, all_tries: bool) -> Listing:
    """List the task instances of a run. `priority_weight` is the total, as the weight rule gives it."""
    run = session.read(find_run, dag_id, run_id)
    if run.state == DagRunState.RUNNING and (lack := session.owners().lack(run.lease_epoch)) is not None:
        note(f"Nothing is done for this run: {lack.line}.")
    if all_tries:
        tries = tries_of(session, run.id)
        return Listing(TRY_COLUMNS, tries, nothing="The run has no tries yet.", spare=("map_index", "queued_at"))
    rows = [_task_fields(row) for row in session.read(list_task_instances, run.id)]
    unused = (name for name, none in UNMAPPED.items() if all(row[name] == none for row in rows))
    spare = (*unused, "try_number", "duration_seconds", "reason")
    return Listing(TASK_COLUMNS, rows, "The run has no task instances yet.", usual=USUAL_TASK_COLUMNS, spare=spare)


def tries_of(session: Session, dag_run_id: int) -> list[dict[str, Any]]:
    """Return every try of a run's tasks, by task; a task instance that has none yet is left out."""
    earlier = session.read(list_tries, dag_run_id)
    known = {(one.task_id, one.map_index, one.try_number): one.queued_at for one in earlier}
    newest = [(row, _newest_try(row, known)) for row in session.read(list_task_instances, dag_run_id)]
    rows = [fields_of(one, TRY_COLUMNS) for one in earlier]
    rows += [
        fields_of(row, TRY_COLUMNS) | {"try_number": number}
        for row, number in newest
        if number and (row.task_id, row.map_index, number) not in known
    ]
    return sorted(rows, key=lambda row: (row["task_id"], row["map_index"], row["try_number"]))


def _newest_try(row: TaskInstanceRow, known: Mapping[tuple[str, int, int], datetime | None]) -> int:
    """Return the number of a task instance's newest try; 0 if there is none.

    A try that is to resume or to begin again (deferred, rescheduled, interrupted) has not used its number up.
    """
    has_begun = row.token is not None and row.queued_at is not None
    is_over = known.get((row.task_id, row.map_index, row.try_number)) == row.queued_at
    return row.try_number + (row.state in _TO_GO_ON and has_begun and not is_over)


def _task_fields(row: TaskInstanceRow) -> dict[str, Any]:
    duration = None
    if row.started_at is not None and row.ended_at is not None:
        duration = (row.ended_at - row.started_at).total_seconds()
    return msgspec.structs.asdict(row) | {"duration_seconds": duration}


@command("clear")
@run_arguments
@click.argument("task_ids", metavar="[TASK]...", nargs=-1, shell_complete=completes("task"))
@upstream_option
@downstream_option
@click.option("--only-failed", is_flag=True, help="Only tasks that have failed, or whose upstream has.")
@click.option("--only-running", is_flag=True, help="Only running tasks: they are killed and start again.")
@one_index_option
@dry_run_option
@yes_option
def tasks_clear(session: Session, dag_id: str, run_id: str, dry_run: bool, yes: bool, **options: Any) -> Done | Listing:
    """Clear tasks of a run, so that they run again; without TASK, all of them.

    Their earlier tries and logs stay. The setups and teardowns that a task needs are cleared with it. A run that has
    ended starts again; running tasks are killed first.
    """
    wording = Wording("task.clear", "Clear {n} of {run}?", "Cleared {n} of {run}.")
    detail = {name: value for name, value in options.items() if value}
    return carry_out(
        session, dag_id, run_id, requests.ClearTasks(**options), wording, detail=detail, dry_run=dry_run, yes=yes
    )


@command("mark")
@task_arguments
@click.argument("state", type=click.Choice(["success", "failed", "skipped"]))
@upstream_option
@downstream_option
@one_index_option
@dry_run_option
@yes_option
def tasks_mark(
    session: Session, dag_id: str, run_id: str, task_id: str, dry_run: bool, yes: bool, **options: Any
) -> Done | Listing:
    """Mark a task as ended, regardless of its own result. A running task is killed.

    Tasks downstream that had failed because of it are cleared, and may run now.
    """
    request = requests.MarkTasks((task_id,), **options)
    what = f"{{n}} of {{run}} as {request.state}"
    wording = Wording("task.mark", f"Mark {what}?", f"Marked {what}.")
    detail = {name: value for name, value in options.items() if value} | {"task_id": task_id}
    return carry_out(session, dag_id, run_id, request, wording, detail=detail, dry_run=dry_run, yes=yes)


@command("run")
@task_arguments
@index_option
@click.option("--ignore-all-deps", is_flag=True, help="Everything that the other flags ignore.")
@click.option("--ignore-depends-on-past", is_flag=True, help="The task's state in the previous run.")
@click.option("--ignore-task-deps", is_flag=True, help="Its dates, its trigger rule, skips, setups, and its past.")
@click.option("--ignore-ti-state", is_flag=True, help="That it has ended; or that it is running: it is killed first.")
@click.option("--ignore-in-retry-period", is_flag=True, help="That its retry, or its next poke, is not due yet.")
def tasks_run(
    session: Session, dag_id: str, run_id: str, task_id: str, map_index: int, ignore_all_deps: bool, **ignore: bool
) -> Done | Listing:
    """Start one task of a run, and ignore some of its dependencies. It still waits for the others.

    Pools and other limits always hold. A run that has ended goes on for it.
    """
    from asynsched.scheduling.evaluation.decisions import IGNORABLE

    past = ["depends_on_past"] if ignore["ignore_depends_on_past"] else []
    ignored = sorted(IGNORABLE) if ignore["ignore_task_deps"] or ignore_all_deps else past
    state, retry_period = (ignore[f"ignore_{name}"] or ignore_all_deps for name in ("ti_state", "in_retry_period"))
    request = requests.ForceTask(task_id, map_index, tuple(ignored), state, retry_period)
    explains = f"`asynsched why {dag_id} {{run}} {task_id}`"
    wording = Wording("task.run", "", f"Task {task_id} of {{run}} starts as soon as {explains} names nothing.")
    detail = {"task_id": task_id, "map_index": map_index, "ignored": ignored}
    run = session.read(find_run, dag_id, run_id)
    return carry_out(session, dag_id, run.run_id, request, wording, detail=detail, yes=True)


@command("xcom", tables=True)
@task_arguments
@index_option
def tasks_xcom(session: Session, dag_id: str, run_id: str, task_id: str, map_index: int) -> Listing:
    """List the XComs of a task instance."""
    from asynsched.authoring.transport import readable
    from asynsched.store.runs.xcoms import XComEntry, list_xcoms

    task = session.read(find_task, dag_id, run_id, task_id, map_index)
    entries = session.read(list_xcoms, task.dag_run_id, task_id, map_index)
    rows = [{**entry._asdict(), "value": readable(entry.value)} for entry in entries]
    return Listing(XComEntry._fields, rows, nothing="The task has pushed nothing.")
