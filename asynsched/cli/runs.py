"""`asynsched runs …` and `asynsched tasks …`: show, clear, mark, cancel and force runs and task instances."""

from datetime import timedelta
from typing import Any, NamedTuple

import click

from asynsched.cli.command import (
    INSTANT_FORMS,
    command,
    completes,
    confirm,
    index_option,
    read_instant,
    run_arguments,
    task_arguments,
    try_option,
    yes_option,
)
from asynsched.cli.output import Done, Listing, Record, as_row, count, fields_of, note
from asynsched.cli.session import Session, actor
from asynsched.keys import DagRunKey, instance_name
from asynsched.queries.dags import get_dag
from asynsched.queries.paging import Range
from asynsched.queries.runs import RunFilter, list_callbacks, list_runs, run_named
from asynsched.states import DagRunState, DagRunType
from asynsched.store.runs import requests

COLUMNS = (
    "dag_id", "run_id", "run_type", "state", "reason", "logical_date", "data_interval_start", "data_interval_end",
    "run_after", "queued_at", "started_at", "ended_at", "partition_key", "partition_date", "duration_seconds", "note",
)  # fmt: skip
USUAL_COLUMNS = ("dag_id", "run_id", "state", "reason", "duration_seconds", "logical_date", "started_at", "ended_at")
SPARE_COLUMNS = ("ended_at", "logical_date", "started_at", "duration_seconds", "reason")
SECTIONS = {
    "asset_events": (
        "name", "created_at", "extra", "source_dag_id", "source_run_id", "source_task_id", "source_map_index",
    ),
    "callbacks": ("event", "task_id", "map_index", "try_number", "state", "attempts"),
    "deadlines": ("name", "due_at", "state"),
}  # fmt: skip
"""The columns of the tables below a run."""
TASK_COLUMNS = (
    "task_id", "map_index", "rendered_map_index", "state", "reason", "try_number", "scheduled_at", "queued_at",
    "started_at", "ended_at", "duration_seconds", "pool", "priority_weight", "note",
)  # fmt: skip
USUAL_TASK_COLUMNS = (
    "task_id", "map_index", "rendered_map_index", "state", "reason", "try_number", "started_at", "duration_seconds",
)  # fmt: skip
LINK_COLUMNS = ("task_id", "map_index", "name", "url")
FIELD_COLUMNS = ("field", "value")
TRY_COLUMNS = (
    "task_id", "map_index", "try_number", "state", "reason", "queued_at", "started_at", "ended_at", "pool", "queue",
)  # fmt: skip
CHANGED_COLUMNS = ("task_id", "map_index", "state", "try_number")
UNMAPPED: dict[str, object] = {"rendered_map_index": None, "map_index": -1}
"""Columns for mapped tasks, and their values for other tasks."""
LONGEST_WAIT = timedelta(seconds=15)
"""How long a command waits for the scheduler: a task that is killed has some time to end."""

dry_run_option = click.option("--dry-run", is_flag=True, help="Only show the task instances that this would change.")
upstream_option = click.option("-u", "--upstream", is_flag=True, help="Also the tasks upstream.")
downstream_option = click.option("-d", "--downstream", is_flag=True, help="Also the tasks downstream.")
one_index_option = click.option(
    "--map-index", type=click.IntRange(min=0), help="Of the named tasks, only this instance of a mapped one."
)


class Wording(NamedTuple):
    """The texts of a request: the question before it, and the answer after it.

    In these, `{run}` stands for the run_id, and `{n}` for the number of task instances.
    """

    question: str
    done: str


def carry_out(
    session: Session,
    dag_id: str,
    run_id: str,
    request: requests.RunRequest,
    wording: Wording,
    *,
    dry_run: bool = False,
    yes: bool = False,
) -> Done | Listing:
    """Do something with a run or, if a scheduler owns the run, wait until that has done it.

    Args:
        run_id: The run as the user names it. Without a confirmation, the beginning of an id is not enough.
        dry_run: Only return the task instances that the request would change.
        yes: Do not ask.
    """
    from asynsched.queries.run_edits import edit_run, preview  # commands that only read need not load it

    key = session.read(run_named, dag_id, run_id, is_whole=yes and not dry_run).key
    if dry_run or not yes:
        rows = session.read(preview, key, request, now=session.now())
        if dry_run:
            return Listing(CHANGED_COLUMNS, rows, nothing="That would change no task instance.")
        about = (f"  {instance_name(row.task_id, row.map_index)} ({row.state or 'no state'})" for row in rows)
        confirm(wording.question.format(run=key.run_id, n=count(len(rows), "task instance")), about)
    taken = session.act(edit_run, key, request, actor(), session.now())
    fields = {**key._asdict(), "tasks": taken.instances}
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
                return f"the scheduler has not done it within {LONGEST_WAIT.seconds} s, but will."
            else:
                return "no scheduler is serving at the moment; the next one does it."
    return ""


@command("list", tables=True)
@click.argument("dag_id", metavar="[DAG]", required=False, shell_complete=completes("dag"))
@click.option(
    "--state", "states", type=click.Choice([state.value for state in DagRunState]), multiple=True,
    help="Only runs in this state; may be repeated.",
)  # fmt: skip
@click.option(
    "--type", "run_types", type=click.Choice([kind.value for kind in DagRunType]), multiple=True,
    help="Only runs of this type; may be repeated.",
)  # fmt: skip
@click.option("--since", metavar="T", help=f"Only runs that were to start at T or later. {INSTANT_FORMS}")
@click.option("--until", metavar="T", help="Only runs that were to start before T.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="How many at most.")
def runs_list(
    session: Session,
    dag_id: str | None,
    states: tuple[str, ...],
    run_types: tuple[str, ...],
    since: str | None,
    until: str | None,
    limit: int,
) -> Listing:
    """List runs, of one DAG or of all, newest first. A DAG whose file is gone keeps its runs."""
    zone = session.settings.default_timezone
    span = Range(
        gte=read_instant(since, zone, "--since") if since else None,
        lt=read_instant(until, zone, "--until") if until else None,
    )
    wanted = RunFilter(
        dag_ids=None if dag_id is None else (dag_id,), states=states or None, run_types=run_types or None,
        run_after=span,
    )  # fmt: skip
    runs = session.pages(list_runs, wanted, order_by=("-run_after",), at_most=limit)
    if dag_id is not None and not runs:
        session.read(get_dag, dag_id, active=False)  # raises if there is no such DAG, and suggests near names
    nothing = f"There are no runs in {session.place}."
    usual = USUAL_COLUMNS if dag_id is None else USUAL_COLUMNS[1:]
    return Listing(COLUMNS, runs, nothing, usual=usual, spare=SPARE_COLUMNS, cut=("reason",))


@command("show", tables=True)
@run_arguments
def runs_show(session: Session, dag_id: str, run_id: str) -> Record:
    """Show a run, the asset events that triggered it, its deadlines and its callbacks."""
    from asynsched.queries.assets import EventFilter, list_events
    from asynsched.queries.deadlines import DeadlineFilter, list_deadlines

    run = session.read(run_named, dag_id, run_id)
    of_run = DeadlineFilter(dag_id=dag_id, run_id=run.run_id)
    found: dict[str, list[Any]] = {
        "asset_events": session.pages(list_events, EventFilter(consumed_by=run.key), order_by=("created_at",)),
        "callbacks": session.pages(list_callbacks, run.key),
        "deadlines": session.pages(list_deadlines, of_run, order_by=("number",)),
    }
    shown = {name: [fields_of(row, SECTIONS[name]) for row in rows] for name, rows in found.items()}
    table = {**fields_of(run, (*COLUMNS, "conf")), **shown}
    return Record({**as_row(run), **found}, sections=dict.fromkeys(found, ()), table=table)


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
    wording = Wording("Clear {n} of {run}?", "Cleared {n} of {run}.")
    return carry_out(session, dag_id, run_id, requests.ClearTasks(**options), wording, dry_run=dry_run, yes=yes)


@command("mark")
@run_arguments
@click.argument("state", type=click.Choice(["success", "failed"]))
@yes_option
def runs_mark(session: Session, dag_id: str, run_id: str, state: requests.MarkedRunState, yes: bool) -> Done | Listing:
    """Mark a run as ended. Running tasks are killed; teardowns that have not run yet still do.

    `success` marks all its tasks as success; `failed` skips the tasks that wait.
    """
    what = f"the run {{run}} as {state}, and with it {{n}}"
    wording = Wording(f"Mark {what}?", f"Marked {what}.")
    return carry_out(session, dag_id, run_id, requests.MarkRun(state), wording, yes=yes)


@command("cancel")
@run_arguments
@yes_option
def runs_cancel(session: Session, dag_id: str, run_id: str, yes: bool) -> Done | Listing:
    """Cancel a run that is queued or running: its processes are killed, and it fails.

    Tasks that wait are skipped, teardowns among them: `asynsched runs mark … failed` runs the teardowns.
    """
    what = "the run {run}, and with it {n}"
    wording = Wording(f"Cancel {what}?", f"Cancelled {what}.")
    return carry_out(session, dag_id, run_id, requests.CancelRun(), wording, yes=yes)


@command("note")
@run_arguments
@click.argument("text")
def runs_note(session: Session, dag_id: str, run_id: str, text: str) -> Done:
    """Note something about a run, in place of an earlier note. An empty TEXT removes it."""
    from asynsched.queries.run_edits import store_run_note

    key = session.read(run_named, dag_id, run_id).key
    session.act(store_run_note, key, text, actor(), session.now())
    return Done(f"Run {key.run_id!r} has {'this' if text else 'no'} note.", {**key._asdict(), "note": text or None})


@command("delete")
@run_arguments
@yes_option
def runs_delete(session: Session, dag_id: str, run_id: str, yes: bool) -> Done:
    """Delete a run that has ended, or has not begun, with its tasks, XComs and logs."""
    key = session.read(run_named, dag_id, run_id, is_whole=yes).key
    if not yes:
        confirm(f"Delete the run {key.run_id!r} of the DAG {dag_id!r}, with its tasks, XComs and logs?")
    delete_run(session, key)
    return Done(f"Run {key.run_id!r} of the DAG {dag_id!r} is deleted.", key._asdict())


def delete_run(session: Session, key: DagRunKey) -> None:
    """Delete a run with its rows and logs. Raises NotFound, and AsynschedError while the run is running."""
    from asynsched.executors.log_removal import remove_logs
    from asynsched.queries import deletions

    while not session.database.write(deletions.delete_part, key):
        pass
    session.act(deletions.delete_run_row, key)
    remove_logs(session.home, [key], are_archived=bool(session.settings.log.store))
    remove_archived_logs(session)


def remove_archived_logs(session: Session) -> None:
    """Remove the logs of deleted runs from the store of logs, if there is one and the home has no scheduler.

    A scheduler does that itself, after it has stored the logs that it is copying: among them may be those of the run.
    """
    from asynsched.home import is_held

    if not session.settings.log.store or is_held(session.home):
        return
    from asynsched.errors import AsynschedError
    from asynsched.executors.log_archive import archive_of
    from asynsched.executors.log_removal import remove_unwanted

    try:
        archive = archive_of(session.settings.log)
        while archive is not None and remove_unwanted(session.home, archive, at_most=100):
            pass
    except (AsynschedError, OSError) as exc:
        note(f"The scheduler of {session.home} removes the logs from the store later: {exc}")


@command("list", tables=True)
@run_arguments
@click.option("--all-tries", is_flag=True, help="Each try, also those that a retry or a clear has followed.")
def tasks_list(session: Session, dag_id: str, run_id: str, all_tries: bool) -> Listing:
    """List the task instances of a run. `priority_weight` is the total, as the weight rule gives it."""
    from asynsched.queries.task_instances import TaskInstanceFilter, list_task_instances, list_tries_of_run

    run = session.read(run_named, dag_id, run_id)
    if run.state == DagRunState.RUNNING and (lack := session.lack_of(run)) is not None:
        note(f"Nothing is done for this run: {lack.line}.")
    if all_tries:
        tries = [fields_of(one, TRY_COLUMNS) for one in session.read(list_tries_of_run, run.key)]
        return Listing(
            TRY_COLUMNS, tries, nothing="The run has no tries yet.", spare=("map_index", "queued_at", "queue", "pool")
        )
    wanted = TaskInstanceFilter(RunFilter(dag_ids=(run.dag_id,), run_ids=(run.run_id,)))
    found = session.pages(list_task_instances, wanted, order_by=("began_at",))
    unused = (name for name, none in UNMAPPED.items() if all(getattr(info, name) == none for info in found))
    spare = (*unused, "try_number", "duration_seconds", "reason")
    nothing = "The run has no task instances yet."
    return Listing(TASK_COLUMNS, found, nothing, usual=USUAL_TASK_COLUMNS, spare=spare, cut=("reason",))


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
    wording = Wording("Clear {n} of {run}?", "Cleared {n} of {run}.")
    return carry_out(session, dag_id, run_id, requests.ClearTasks(**options), wording, dry_run=dry_run, yes=yes)


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
    wording = Wording(f"Mark {what}?", f"Marked {what}.")
    return carry_out(session, dag_id, run_id, request, wording, dry_run=dry_run, yes=yes)


@command("note")
@task_arguments
@click.argument("text")
@index_option
def tasks_note(session: Session, dag_id: str, run_id: str, task_id: str, text: str, map_index: int) -> Done:
    """Note something about a task instance, in place of an earlier note. An empty TEXT removes it."""
    from asynsched.queries.run_edits import store_task_note
    from asynsched.queries.task_instances import task_named

    task = session.read(task_named, session.read(run_named, dag_id, run_id), task_id, map_index)
    session.act(store_task_note, task.key, text, actor(), session.now())
    sentence = f"Task {task.name} of {task.run_id!r} has {'this' if text else 'no'} note."
    return Done(sentence, {**task.key._asdict(), "note": text or None})


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

    Pools and other limits always apply. A run that has ended continues for this task.
    """
    from asynsched.scheduling.evaluation.decisions import IGNORABLE

    past = ["depends_on_past"] if ignore["ignore_depends_on_past"] else []
    ignored = sorted(IGNORABLE) if ignore["ignore_task_deps"] or ignore_all_deps else past
    state, retry_period = (ignore[f"ignore_{name}"] or ignore_all_deps for name in ("ti_state", "in_retry_period"))
    request = requests.ForceTask(task_id, map_index, tuple(ignored), state, retry_period)
    explains = f"`asynsched why {dag_id} {{run}} {task_id}`"
    wording = Wording("", f"Task {task_id} of {{run}} starts as soon as {explains} names nothing.")
    run = session.read(run_named, dag_id, run_id)
    return carry_out(session, dag_id, run.run_id, request, wording, yes=True)


@command("rendered", tables=True)
@task_arguments
@index_option
@try_option
def tasks_rendered(
    session: Session, dag_id: str, run_id: str, task_id: str, map_index: int, try_number: int | None
) -> Listing:
    """Show the template fields of a try as they were after rendering, with secrets masked.

    A try has them once it has ended or is deferred, if a template was rendered in them.
    """
    from asynsched.queries.task_instances import fields_of_try, number_of_newest_try, task_named

    task = session.read(task_named, session.read(run_named, dag_id, run_id), task_id, map_index)
    number = try_number or number_of_newest_try(session.home, task)
    fields = session.read(fields_of_try, task.id, number)
    rows = [{"field": name, "value": value} for name, value in fields.items()]
    return Listing(FIELD_COLUMNS, rows, nothing=f"Try {number} has no rendered template.")


@command("links", tables=True)
@run_arguments
@click.argument("task_id", metavar="[TASK]", required=False, shell_complete=completes("task"))
def tasks_links(session: Session, dag_id: str, run_id: str, task_id: str | None) -> Listing:
    """List the addresses of the tasks' work in other systems: their operators' extra links.

    A task has them after each of its tries, and while it is deferred.
    """
    from asynsched.queries.xcoms import list_links_of_run

    run = session.read(run_named, dag_id, run_id)
    return Listing(
        LINK_COLUMNS, session.read(list_links_of_run, run, task_id), nothing="No task of the run has an extra link."
    )
