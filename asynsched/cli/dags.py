"""`asynsched dags …`: DAGs, their files, their errors and their next runs; pauses and triggers DAGs, parses files."""

import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from sqlalchemy import Connection

from asynsched.bell import Hint
from asynsched.cli import INTERRUPTED
from asynsched.cli.command import INSTANT_FORMS, command, completes, dag_argument, fail, read_instant
from asynsched.cli.lookup import dag_of, find_run, long_parses, read_dag_folder, structure_of, unparsed_files
from asynsched.cli.output import FORMS, Done, Listing, Output, Record, fields_of, note, show
from asynsched.cli.session import Session
from asynsched.errors import AsynschedError, DagError, NotFound, PlanNeeded, did_you_mean
from asynsched.keys import DagRunKey
from asynsched.serialization.schema import DOUBTFUL, TEMPLATE, UNSTABLE, ParsedDag, SerializedDag, TimetableQuestion
from asynsched.states import FINISHED_RUN_STATES, FINISHED_TASK_STATES, DagRunState
from asynsched.store.dags.dags import DagRow, file_to_ask, find_dag, get_dag, list_dags, set_paused
from asynsched.store.dags.files import get_file, known_files, list_errors
from asynsched.store.rows import near_names
from asynsched.store.runs.dag_runs import last_scheduled_interval
from asynsched.store.runs.task_instances import list_task_instances
from asynsched.store.schema import DagRunRow

if TYPE_CHECKING:
    from asynsched.timetables import DataInterval


MOST_COUNTED = 1_000
"""Due runs are counted up to this number."""
COLUMNS = ("dag_id", "file", "schedule", "paused", "next_run_at", "tags", "has_errors")
NEXT_COLUMNS = ("logical_date", "data_interval_start", "data_interval_end", "run_after")
ERROR_COLUMNS = ("file", "kind", "message", "line", "dag_id")
DAG_FIELDS = (
    "description", "timezone", "start_date", "end_date", "catchup", "max_active_runs", "max_active_tasks", "doc_md",
)  # fmt: skip
TASK_FIELDS = (
    "task_id", "task_type", "group_id", "trigger_rule", "retries", "retry_delay", "execution_timeout", "pool",
    "pool_slots", "priority_weight", "weight_rule", "queue", "depends_on_past",
)  # fmt: skip
SPARE_TASK_FIELDS = (
    "queue", "weight_rule", "depends_on_past", "pool_slots", "group_id", "priority_weight", "execution_timeout",
    "retry_delay", "pool", "retries",
)  # fmt: skip
FILE_ENDINGS = (".py", ".zip")
"""An unknown name that ends in one of these is taken for a file."""


@command("list", tables=True)
def dags_list(session: Session) -> Listing:
    """List the DAGs. `next_run_at` is when the next scheduled run is due."""
    rows = [_dag_fields(dag) for dag in session.read(list_dags)]
    trouble = "" if rows else session.read(unparsed_files)
    nothing = f"No DAG is known in {session.place}. {trouble or '`asynsched up DIR` reads the DAG files of a folder.'}"
    return Listing(COLUMNS, rows, nothing, spare=("tags", "file"))


@command("show", tables=True, forms=(*FORMS, Output.DOT.value))
@dag_argument
def dags_show(session: Session, output: Output, dag_id: str) -> Record | None:
    """Show a DAG, its tasks and its edges, in the newest version."""
    row = dag_of(session, dag_id)
    dag = structure_of(session, row)
    if output is Output.DOT:
        sys.stdout.write(as_dot(dag))
        return None
    obstacles = [error.message for error in session.read(list_errors, row.file_path) if error.kind == TEMPLATE]
    fields = _dag_fields(row) | fields_of(dag, DAG_FIELDS)
    fields["assets"] = None if dag.asset_condition is None else dag.asset_condition.text
    fields["params"] = {name: param.value for name, param in dag.params.items()}
    file = session.read(get_file, row.file_path)
    fields["airflow"] = (file.airflow or None) if file else None
    fields["task_start"] = obstacles[0] if obstacles else "each task is a fork of a process that has loaded the file"
    fields["tasks"] = [fields_of(task, TASK_FIELDS) for task in dag.tasks]
    fields["edges"] = [
        {"source_id": task.task_id, "target_id": target, "label": task.edge_labels.get(target)}  # as in Airflow's graph
        for task in dag.tasks
        for target in task.downstream_task_ids
    ]
    return Record(fields, sections={"tasks": SPARE_TASK_FIELDS, "edges": ()})


@command("errors", tables=True)
@click.option("--warnings", is_flag=True, help="Also all other warnings; without it, only their number is shown.")
@click.option("--traceback", is_flag=True, help="Tracebacks below the table; JSON has them anyway.")
def dags_errors(session: Session, warnings: bool, traceback: bool) -> Listing:
    """List the errors of DAG files, code that its author hardly means, and files that parse differently each time."""
    found = session.read(list_errors)
    shown = [error for error in found if warnings or not error.is_warning or error.kind in (DOUBTFUL, UNSTABLE)]
    rows = [msgspec.structs.asdict(error) | {"file": error.file_path} for error in shown]
    if n_left_out := len(found) - len(shown):
        note(f"Warnings that are not shown: {n_left_out}. `asynsched dags errors --warnings` shows them.")
    for parse in long_parses(session.home):
        note(parse.sentence)
    return Listing(
        ERROR_COLUMNS, rows, "No DAG file has errors.", details=("traceback", "output", "is_warning"),
        spare=("line", "kind"), texts=("traceback",) if traceback else (),
    )  # fmt: skip


@command("pause")
@dag_argument
def dags_pause(session: Session, dag_id: str) -> Done:
    """Pause a DAG: no run is created, no queued run is started, and no task begins. Running tasks go on."""
    return _set_paused(session, dag_id, is_paused=True)


@command("unpause")
@dag_argument
def dags_unpause(session: Session, dag_id: str) -> Done:
    """Unpause a DAG, and tell which runs are about to be created."""
    dag_of(session, dag_id, make=True)
    coming = session.read(about_to_create, dag_id, session.now())  # before a scheduler creates them
    done = _set_paused(session, dag_id, is_paused=False)
    return Done(f"{done.sentence} {coming.sentence}", {**done.fields, **coming.fields})


@command("reparse")
@click.argument("name", metavar="DAG|FILE", shell_complete=completes("dag"))
def dags_reparse(session: Session, name: str) -> Done:
    """Parse a DAG's file again, even if it has not changed. Without a scheduler, this waits for the result.

    Name a file that has no DAG yet, because it is new or could not be parsed, by its path in the DAG folder or from
    here.
    """
    dag_id, path = _dag_and_file(session, name)
    fields = {"dag_id": dag_id or None, "file": path}
    if session.is_made and session.has_scheduler():
        session.change("dag.reparse", lambda _: None, hint=Hint("file", dag_id=dag_id, path=path))
        return Done(f"The scheduler parses {path} again.", fields)
    read_dag_folder(session, make=True, again=path)
    wrong = [error.message for error in session.read(list_errors, path) if not error.is_warning]
    if wrong:
        fail(wrong[0])
    if dag_id:
        session.read(find_dag, dag_id)
    elif session.read(get_file, path) is None:
        fail(f"{path} is not taken for a DAG file: .airflowignore names it, or it mentions no dag (watch.safe_mode).")
    return Done(f"{path} is parsed.", fields)


def about_to_create(conn: Connection, dag_id: str, now: datetime) -> Done:
    """Return which runs of a DAG are due, and when the next one is."""
    from asynsched.scheduling.creation.scheduled_runs import coming_runs

    try:
        coming = coming_runs(conn, dag_id, now, at_most=MOST_COUNTED + 1)
    except PlanNeeded:
        return Done("The timetable of its file will be asked for its next run.", {})
    except DagError as exc:
        return Done(f"Its next run is not known: {exc}", {})
    due = [info for info in coming if info.run_after <= now]
    following = coming[len(due)].run_after if len(due) < len(coming) else None
    fields = {
        "due_runs": len(due),
        "first_logical_date": due[0].logical_date if due else None,
        "next_run_at": following,
    }
    if not coming:
        return Done("By its schedule it has no further run.", fields)
    if not due:
        return Done(f"Its next run is due at {following}.", fields)
    number = f"More than {MOST_COUNTED} runs are" if len(due) > MOST_COUNTED else f"{len(due)} runs are"
    number = "One run is" if len(due) == 1 else number
    then = "" if following is None else f" The next one is due at {following}."
    return Done(f"{number} due, from the logical date {due[0].logical_date} on.{then}", fields)


def _set_paused(session: Session, dag_id: str, *, is_paused: bool) -> Done:
    dag_of(session, dag_id, make=True)
    session.change(
        "dag.pause" if is_paused else "dag.unpause",
        lambda conn: set_paused(conn, dag_id, is_paused, session.now()),
        hint=Hint("dag", dag_id=dag_id),
    )
    return Done(f"DAG {dag_id!r} is {'' if is_paused else 'un'}paused.", {"dag_id": dag_id, "paused": is_paused})


def _dag_and_file(session: Session, name: str) -> tuple[str, str]:
    """Return the DAG, empty where a file is named, and the file's path in the DAG folder."""
    if session.is_made:
        found = session.read(get_dag, name)
        if found is not None and found.is_active:
            return name, found.file_path
        if session.read(get_file, name) is not None or session.read(list_errors, name):
            return "", name
    if (path := _path_in_folder(session.settings.dags_path, name)) is not None:
        return "", path
    try:
        return name, dag_of(session, name, make=True).file_path
    except NotFound as exc:
        if "/" not in name and not name.endswith(FILE_ENDINGS):
            raise
        near = near_names(Path(name).name, [file.path for file in session.read(known_files)]) if session.is_made else ()
        problem = f"There is no DAG {name!r}, and no file of that name in {session.settings.dags_path}."
        raise AsynschedError(f"{problem}{did_you_mean(near)}") from exc


def _path_in_folder(folder: Path, name: str) -> str | None:
    """Return a file's path in the DAG folder, given that path or one from here; None if there is no such file."""
    for path in (folder / name, Path(name).absolute()):
        normal = Path(os.path.normpath(path))  # not resolved: a link in the folder is a file of the folder
        if normal.is_relative_to(folder) and normal.is_file():
            return normal.relative_to(folder).as_posix()
    return None


def _dag_fields(dag: DagRow) -> dict[str, Any]:
    return {
        "dag_id": dag.dag_id,
        "file": dag.file_path,
        "schedule": dag.schedule_summary or None,
        "paused": dag.is_paused,
        "next_run_at": dag.next_dagrun_create_after,
        "tags": dag.tags,
        "has_errors": dag.has_errors,
    }


def as_dot(dag: SerializedDag) -> str:
    """Return a DAG in the DOT language."""
    lines = [f"digraph {_quoted(dag.dag_id)} {{", "  rankdir=LR", "  node [shape=box, style=rounded]"]
    lines += _frame(dag, None, "  ")
    for task in dag.tasks:
        for target in task.downstream_task_ids:
            label = task.edge_labels.get(target)
            attributes = f" [label={_quoted(label)}]" if label else ""
            lines.append(f"  {_quoted(task.task_id)} -> {_quoted(target)}{attributes}")
    return "\n".join([*lines, "}", ""])


def _frame(dag: SerializedDag, group_id: str | None, indent: str) -> Iterator[str]:
    """Yield the tasks of a group, and the groups within it as frames."""
    for task in dag.tasks:
        if task.group_id == group_id:
            yield f"{indent}{_quoted(task.task_id)}"
    for group in dag.task_groups:
        if group.parent_id == group_id and group.group_id != group_id:
            yield f"{indent}subgraph {_quoted(f'cluster_{group.group_id}')} {{"
            yield f"{indent}  label={_quoted(group.group_id)}"
            yield from _frame(dag, group.group_id, indent + "  ")
            yield f"{indent}}}"


def _quoted(text: str) -> str:
    """Quote a text; control characters, which labels may hold, become spaces."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


LAST_RUN = "--last-run"

conf_option = click.option(
    "-c", "--conf", metavar="JSON", help="An object, such as '{\"n\": 4}'; overrides the DAG's params."
)
logical_date_option = click.option("-l", "--logical-date", metavar="T", help=f"By default now. {INSTANT_FORMS}")


@command("trigger")
@dag_argument
@conf_option
@click.option("-r", "--run-id", metavar="ID", help="Name of the run.")
@logical_date_option
@click.option(
    "--no-logical-date", is_flag=True,
    help="No logical date and no data interval, as with Airflow's command line: `{{ ds }}` is undefined then.",
)  # fmt: skip
@click.option("--wait", is_flag=True, help="Wait for the end of the run; exit code 0 only if it succeeded.")
def dags_trigger(
    session: Session,
    output: Output,
    dag_id: str,
    conf: str | None,
    run_id: str | None,
    logical_date: str | None,
    no_logical_date: bool,
    wait: bool,
) -> Done:
    """Create a run of a DAG, to be started at once. A paused DAG's run waits until it is unpaused."""
    from asynsched.cli.runs import run_fields

    content = read_conf(conf)
    if logical_date and no_logical_date:
        raise click.BadParameter("leave it out, or --no-logical-date", param_hint="--logical-date")
    zone = session.settings.default_timezone
    date = read_instant(logical_date, zone, "--logical-date") if logical_date else None
    dag = dag_of(session, dag_id, make=True)
    key = queue_run(
        session, dag_id, conf=content, run_id=run_id, logical_date=date, has_logical_date=not no_logical_date
    )
    if wait:
        note(f"Waiting for the run {key.run_id!r} of the DAG {dag_id!r}.")
    if dag.is_paused:
        note(f"The DAG is paused; the run waits until `asynsched dags unpause {dag_id}`.")
    if not session.has_scheduler():
        note("No scheduler is serving at the moment; the run waits for one.")
    if not wait:
        return Done(f"Run {key.run_id!r} of the DAG {dag_id!r} is queued.", run_fields(session.read(find_run, *key)))
    run = _wait(session, key)
    reason = f": {run.reason}" if run.reason and run.state != DagRunState.SUCCESS else "."
    done = Done(f"Run {key.run_id!r} of the DAG {dag_id!r}: {run.state}{reason}", run_fields(run))
    if run.state != DagRunState.SUCCESS:
        if output is Output.JSON:
            show(done, output)
        note(f"Error: {done.sentence}")
        note(f"    {session.command_line('why', *key)}")
        raise click.exceptions.Exit(1)
    return done


def queue_run(
    session: Session,
    dag_id: str,
    *,
    conf: dict[str, Any],
    run_id: str | None = None,
    logical_date: datetime | None = None,
    has_logical_date: bool = True,
) -> DagRunKey:
    """Create a run of a DAG, as `create_manual_run` does, and wake the schedulers."""
    from asynsched.scheduling.creation.triggering import create_manual_run

    now, interval = session.now(), None
    path = session.read(file_to_ask, dag_id) if has_logical_date else None
    if path is not None:
        at = logical_date or now
        answer = _ask(session, path, dag_id, TimetableQuestion(n_runs=1, run_by_hand_at=at), at).manual_interval
        interval = None if answer is None else answer.value()
    return session.change(
        "dag.trigger",
        lambda conn: create_manual_run(
            conn, dag_id, conf=conf, run_id=run_id, logical_date=logical_date, has_logical_date=has_logical_date,
            data_interval=interval, now=now,
        ),
        hint=lambda created: Hint("run", *created),
    )  # fmt: skip


def read_conf(text: str | None, option: str = "--conf") -> dict[str, Any]:
    """Return the JSON object that an option gives. Raises click.BadParameter if the value is not a JSON object."""
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        # The decoder's message helps only if the text was meant as JSON.
        found = f" ({exc})" if text.lstrip().startswith("{") else ""
        message = f"{text!r} is not a JSON object{found}; write for example {option} '{_example(text)}'"
        raise click.BadParameter(message, param_hint=option) from exc


def _example(text: str) -> str:
    """Return the JSON object that a text of the form KEY=VALUE probably means, quoted for a shell."""
    key, separator, value = text.partition("=")
    if not (separator and key.isidentifier()) or "'" in value:
        return '{"n": 4}'
    try:
        meant = msgspec.json.decode(value)
    except msgspec.DecodeError:
        meant = value
    return msgspec.json.format(msgspec.json.encode({key: meant}), indent=0).decode()


def _wait(session: Session, key: DagRunKey) -> DagRunRow:
    """Return the run once it has ended, and report its progress until then. Ctrl-C ends the wait, not the run."""
    said = ""
    try:
        with session.watching(key) as changes:
            while (run := session.read(find_run, *key)).state not in FINISHED_RUN_STATES:
                if (progress := _progress(session, run)) != said:
                    note(said := progress)
                changes.wait()
    except KeyboardInterrupt:
        shown_by = f"`asynsched runs show {key.dag_id} {key.run_id}` shows it"
        fail(f"No longer waiting; the run goes on. {shown_by}.", INTERRUPTED)
    return run


def _progress(session: Session, run: DagRunRow) -> str:
    states = [task.state for task in session.read(list_task_instances, run.id)]
    ended = sum(state in FINISHED_TASK_STATES for state in states)
    return f"{run.state}: {ended} of {len(states)} tasks have ended" if states else str(run.state)


@command("next", tables=True)
@dag_argument
@click.option("-n", type=click.IntRange(1, 100_000), default=1, show_default=True, help="How many at most.")
@click.option("--now", metavar="T", help=f"As if it were T. {INSTANT_FORMS}")
@click.option(LAST_RUN, metavar="START/END", help="As if this data interval were the last that had a run.")
def dags_next(session: Session, dag_id: str, n: int, now: str | None, last_run: str | None) -> Listing:
    """Show the runs that the scheduler would create next if the clock stood still; also of a paused DAG."""
    from asynsched.scheduling.creation.scheduled_runs import upcoming_runs
    from asynsched.timetables import CustomTimetable, PlannedInterval, decode

    zone = session.settings.default_timezone
    at = read_instant(now, zone, "--now") if now else session.now()
    row = dag_of(session, dag_id)
    dag = structure_of(session, row)
    last = _read_interval(last_run, zone) if last_run else session.read(last_scheduled_interval, dag_id)
    timetable = decode(dag.timetable)
    if isinstance(timetable, CustomTimetable):
        question = TimetableQuestion(last=None if last is None else PlannedInterval(*last), n_runs=n)
        timetable = timetable.planned(_ask(session, row.file_path, dag_id, question, at).plan)
    infos = upcoming_runs(dag, last=last, now=at, n=n, timetable=timetable)
    rows = [dict(zip(NEXT_COLUMNS, (i.logical_date, *i.data_interval, i.run_after), strict=True)) for i in infos]
    return Listing(NEXT_COLUMNS, rows, nothing=f"The DAG {dag_id!r} has no next run.")


def _read_interval(text: str, zone: str) -> "DataInterval":
    from asynsched.timetables import DataInterval

    start, separator, end = text.partition("/")
    if not separator:
        raise click.BadParameter(f"{text!r} is not an interval: write START/END", param_hint=LAST_RUN)
    interval = DataInterval(read_instant(start, zone, LAST_RUN), read_instant(end, zone, LAST_RUN))
    if interval.end < interval.start:
        raise click.BadParameter(f"{text!r} ends before it starts", param_hint=LAST_RUN)
    return interval


def _ask(session: Session, path: str, dag_id: str, question: TimetableQuestion, now: datetime) -> ParsedDag:
    """Ask an author's own timetable: parse its DAG file for that, without storing the result. Raises DagError."""
    import asyncio

    from asynsched.home import prepare_home
    from asynsched.parsing.processes.informed_parser import ask
    from asynsched.parsing.processes.sandbox_parser import SandboxParser

    if not session.home.is_dir():
        session.use_passing_home(keep_database=True)
    prepare_home(session.home)
    return asyncio.run(ask(SandboxParser(session.settings), path, dag_id, question, now=now))
