"""`asynsched dags …`: DAGs, their files, their errors and their next runs; pauses and triggers DAGs, parses files."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
import msgspec
from sqlalchemy import Connection

from asynsched.cli import INTERRUPTED
from asynsched.cli.command import (
    INSTANT_FORMS,
    command,
    completes,
    confirm,
    dag_argument,
    fail,
    read_instant,
    yes_option,
)
from asynsched.cli.lookup import all_of, dag_of, known_dag_of, read_dag_folder, unparsed_files
from asynsched.cli.output import (
    FORMS,
    Done,
    Listing,
    Output,
    Record,
    Text,
    as_row,
    fields_of,
    note,
    printable,
    show,
    some_of,
)
from asynsched.cli.session import Session, actor
from asynsched.errors import AsynschedError, DagError, NotFound, PlanNeeded, did_you_mean
from asynsched.keys import DagRunKey
from asynsched.queries import dags as queries
from asynsched.queries.changed_graph import for_dot
from asynsched.queries.dags import DagFilter
from asynsched.queries.import_errors import WITH_WARNINGS, ImportErrorFilter, all_import_errors
from asynsched.queries.paging import ANY_TEXT, Pattern
from asynsched.queries.serving import long_parses
from asynsched.serialization.schema import (
    DOUBTFUL,
    UNSTABLE,
    AnswersForRun,
    ParsedDag,
    SerializedDag,
    TimetableQuestion,
)
from asynsched.states import FINISHED_RUN_STATES, DagRunState
from asynsched.store.rows import LARGEST_INTEGER, near_names

if TYPE_CHECKING:
    from asynsched.queries.runs import RunInfo
    from asynsched.scheduling.creation.wanted_run import Trigger
    from asynsched.timetables import DagRunInfo


MOST_COUNTED = 1_000
"""Due runs are counted up to this number."""
COLUMNS = ("dag_id", "file", "schedule", "paused", "next_run_at", "tags", "has_errors")
PARTITION_COLUMNS = ("partition_key", "partition_date", "run_after")
NEXT_COLUMNS = ("logical_date", "data_interval_start", "data_interval_end", "run_after")
VERSION_COLUMNS = ("number", "created_at", "file")
ERROR_COLUMNS = ("file", "kind", "message", "line", "dag_id")
DETAIL_FIELDS = (
    "description", "version_number", "timezone", "start_date", "end_date", "catchup", "max_active_runs",
    "max_active_tasks", "doc_md", "assets", "params", "airflow", "reads", "task_start",
    "missing_pools",
)  # fmt: skip
TASK_FIELDS = (
    "task_id", "task_type", "group_id", "trigger_rule", "retries", "retry_delay", "execution_timeout", "pool",
    "pool_slots", "priority_weight", "weight_rule", "queue", "depends_on_past", "is_mapped", "routes",
)  # fmt: skip
SPARE_TASK_FIELDS = (
    "routes", "is_mapped", "queue", "weight_rule", "depends_on_past", "pool_slots", "group_id", "priority_weight",
    "execution_timeout", "retry_delay", "pool", "retries",
)  # fmt: skip
FILE_ENDINGS = (".py", ".zip")
"""An unknown name that ends in one of these is taken for a file."""


_dags_argument = click.argument("dag_ids", metavar="[DAG]...", nargs=-1, shell_complete=completes("dag"))
_all_option = click.option("--all", "of_all", is_flag=True, help="All DAGs.")


@command("list", tables=True)
@click.option(
    "--pattern", metavar="TEXT", help="Only DAGs with this text in their names; _ is any character, % any text."
)
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="Only DAGs with this tag; may be repeated: any.")
@click.option("--owner", "owners", metavar="NAME", multiple=True, help="Only DAGs of this owner; may be repeated: any.")
@click.option("--paused/--not-paused", default=None, help="Only paused DAGs, or only others.")
@click.option("--errors", "has_errors", is_flag=True, default=None, help="Only DAGs whose file has an error.")
def dags_list(session: Session, pattern: str | None, **options: Any) -> Listing:
    """List the DAGs. `next_run_at` is when the next scheduled run is due."""
    wanted = DagFilter(dag_id=Pattern(pattern), **options)
    rows = session.pages(queries.list_dags, wanted)
    if not rows and wanted != DagFilter():
        return Listing(COLUMNS, rows, "No DAG is like that.")
    trouble = "" if rows else session.read(unparsed_files)
    nothing = f"No DAG is known in {session.place}. {trouble or '`asynsched up DIR` reads the DAG files of a folder.'}"
    return Listing(COLUMNS, rows, nothing, spare=("tags", "file"))


@command("show", tables=True, forms=(*FORMS, Output.DOT.value))
@dag_argument
def dags_show(session: Session, output: Output, dag_id: str) -> Record | None:
    """Show a DAG, its tasks and its edges, in the newest version."""
    dag_of(session, dag_id)
    if output is Output.DOT:
        from asynsched.queries.dag_versions import get_structure

        sys.stdout.write(as_dot(session.read(get_structure, dag_id)))
        return None
    from asynsched.queries.dag_details import get_details

    details = session.read(get_details, dag_id)
    table = fields_of(details, (*COLUMNS, *DETAIL_FIELDS))
    table["params"] = {name: param.value for name, param in details.params.items()}
    table["tasks"] = [fields_of(task, TASK_FIELDS) for task in details.tasks]
    table["edges"] = [as_row(edge) for edge in details.edges]
    for pool in details.missing_pools:
        tasks = [task.task_id for task in details.tasks if pool in task.pools]
        note(f"There is no pool {pool!r}, so {some_of(tasks)} cannot start: `asynsched pools set {quote(pool)} SLOTS`")
    return Record(as_row(details), sections={"tasks": SPARE_TASK_FIELDS, "edges": ()}, table=table)


@command("versions", tables=True)
@dag_argument
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="How many at most.")
def dags_versions(session: Session, dag_id: str, limit: int) -> Listing:
    """List the versions of a DAG, newest first. A DAG whose file is gone keeps them."""
    from asynsched.queries.dag_versions import VersionFilter, list_versions

    known_dag_of(session, dag_id)
    wanted = VersionFilter(frozenset({dag_id}))
    found = session.pages(list_versions, wanted, order_by=("-number",), at_most=limit)
    return Listing(VERSION_COLUMNS, found)


@command("tags")
def dags_tags(session: Session) -> Listing:
    """List the tags of the active DAGs."""
    found = session.pages(lambda conn, wanted, page: queries.list_tags(conn, wanted, None, page), ANY_TEXT)
    return Listing(("tag",), found, "No DAG has a tag.", derived={"tag": str})


@command("source")
@dag_argument
@click.option("--number", type=click.IntRange(1, LARGEST_INTEGER), help="Of the version; by default the newest.")
def dags_source(session: Session, output: Output, dag_id: str, number: int | None) -> Record | None:
    """Print the text of a DAG's file, as it was in one of its versions."""
    from asynsched.queries.dag_versions import LONGEST_SOURCE, get_source

    known_dag_of(session, dag_id)
    source = session.read(get_source, dag_id, number)
    if output is Output.JSON:
        return Record(fields_of(source, ("dag_id", "number", "text", "is_cut")))
    sys.stdout.write(printable(source.text, keep="\n\t"))
    if source.is_cut:
        note(f"The file is longer: these are its first {LONGEST_SOURCE} characters.")
    return None


@command("delete")
@dag_argument
@yes_option
def dags_delete(session: Session, dag_id: str, yes: bool) -> Done:
    """Delete a DAG that has left its file, with its runs and their logs."""
    from asynsched.cli.runs import delete_run
    from asynsched.queries.deletions import delete_dag_row, runs_to_delete

    session.read(runs_to_delete, dag_id)
    if not yes:
        confirm(f"Delete the DAG {dag_id!r}, with all its runs and their logs?")
    while run_ids := session.read(runs_to_delete, dag_id):
        for run_id in run_ids:
            delete_run(session, DagRunKey(dag_id, run_id))
    session.act(delete_dag_row, dag_id)
    return Done(f"The DAG {dag_id!r} is deleted.", {"dag_id": dag_id})


@command("errors", tables=True)
@click.option("--warnings", is_flag=True, help="Also all other warnings; without it, only their number is shown.")
@click.option("--traceback", is_flag=True, help="Tracebacks below the table; JSON has them anyway.")
def dags_errors(session: Session, warnings: bool, traceback: bool) -> Listing:
    """List the errors of DAG files, code that is probably a mistake, and files that parse differently each time."""
    found = session.read(all_import_errors, WITH_WARNINGS)
    shown = [error for error in found if warnings or not error.is_warning or error.kind in (DOUBTFUL, UNSTABLE)]
    if n_left_out := len(found) - len(shown):
        note(f"Warnings that are not shown: {n_left_out}. `asynsched dags errors --warnings` shows them.")
    for parse in long_parses(session.home):
        note(parse.sentence)
    return Listing(
        ERROR_COLUMNS, shown, "No DAG file has errors.", spare=("line", "kind"),
        texts=("traceback",) if traceback else (),
    )  # fmt: skip


@command("pause")
@_dags_argument
@_all_option
def dags_pause(session: Session, dag_ids: tuple[str, ...], of_all: bool) -> Text:
    """Pause DAGs: no run is created, no queued run is started, and no task begins. Running tasks go on.

    If one of the DAGs is unknown, none is paused.
    """
    return _set_paused(session, dag_ids, of_all=of_all, is_paused=True)


@command("unpause")
@_dags_argument
@_all_option
def dags_unpause(session: Session, dag_ids: tuple[str, ...], of_all: bool) -> Text:
    """Unpause DAGs, and show which runs are about to be created. If one of the DAGs is unknown, none is unpaused."""
    return _set_paused(session, dag_ids, of_all=of_all, is_paused=False)


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
        session.act(queries.parse_again, path, dag_id)
        return Done(f"The scheduler parses {path} again.", fields)
    read_dag_folder(session, make=True, again=path)
    wrong = session.read(all_import_errors, ImportErrorFilter(file=path))
    if wrong:
        fail(wrong[0].message)
    if dag_id:
        session.read(queries.get_dag, dag_id)
    elif path not in session.read(queries.list_files):
        fail(
            f"{path} is not taken for a DAG file: .airflowignore names it, or it mentions no dag and no asset"
            " (watch.safe_mode)."
        )
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


def _set_paused(session: Session, dag_ids: Sequence[str], *, of_all: bool, is_paused: bool) -> Text:
    word, lines, rows = "paused" if is_paused else "unpaused", [], []
    for dag_id in _to_be_paused(session, dag_ids, of_all=of_all, is_paused=is_paused):
        # Before a scheduler creates them.
        coming = None if is_paused else session.read(about_to_create, dag_id, session.now())
        session.act(queries.pause_dag, dag_id, paused=is_paused, now=session.now())
        lines.append(f"DAG {dag_id!r} is {word}.{'' if coming is None else f' {coming.sentence}'}")
        rows.append({"dag_id": dag_id, "paused": is_paused, **({} if coming is None else coming.fields)})
    return Text(lines or [f"No DAG is {'unpaused' if is_paused else 'paused'}."], {"dags": rows})


def _to_be_paused(session: Session, dag_ids: Sequence[str], *, of_all: bool, is_paused: bool) -> list[str]:
    """Return the DAGs to pause or unpause; of all, those that are not in that state yet. Raises AsynschedError."""
    if bool(dag_ids) == of_all:
        raise click.UsageError("Name DAGs, or give --all." if not of_all else "Name no DAG beside --all.")
    if not of_all:
        return [dag.dag_id for dag in all_of(session, dag_ids)]
    if not (session.is_made and session.has_scheduler()):
        read_dag_folder(session, make=True)
    return [dag.dag_id for dag in session.pages(queries.list_dags, DagFilter(paused=not is_paused))]


def _dag_and_file(session: Session, name: str) -> tuple[str, str]:
    """Return the DAG, empty where a file is named, and the file's path in the DAG folder."""
    if session.is_made:
        with suppress(NotFound):
            return name, session.read(queries.get_dag, name).file
        errors = session.read(all_import_errors, ImportErrorFilter(warnings=None, file=name))
        if errors or name in session.read(queries.list_files):
            return "", name
    if (path := _path_in_folder(session.settings.dags_path, name)) is not None:
        return "", path
    try:
        return name, dag_of(session, name, make=True).file
    except NotFound as exc:
        if "/" not in name and not name.endswith(FILE_ENDINGS):
            raise
        near = near_names(Path(name).name, session.read(queries.list_files)) if session.is_made else ()
        problem = f"There is no DAG {name!r}, and no file of that name in {session.settings.dags_path}."
        raise AsynschedError(f"{problem}{did_you_mean(near)}") from exc


def _path_in_folder(folder: Path, name: str) -> str | None:
    """Return a file's path in the DAG folder, given that path or one from here; None if there is no such file."""
    for path in (folder / name, Path(name).absolute()):
        normal = Path(os.path.normpath(path))  # not resolved: a link in the folder is a file of the folder
        if normal.is_relative_to(folder) and normal.is_file():
            return normal.relative_to(folder).as_posix()
    return None


def as_dot(dag: SerializedDag) -> str:
    """Return a DAG in the DOT language."""
    lines = [f"digraph {for_dot(dag.dag_id)} {{", "  rankdir=LR", "  node [shape=box, style=rounded]"]
    lines += _frame(dag, None, "  ")
    for task in dag.tasks:
        for target in task.downstream_task_ids:
            label = task.edge_labels.get(target)
            attributes = f" [label={for_dot(label)}]" if label else ""
            lines.append(f"  {for_dot(task.task_id)} -> {for_dot(target)}{attributes}")
    return "\n".join([*lines, "}", ""])


def _frame(dag: SerializedDag, group_id: str | None, indent: str) -> Iterator[str]:
    """Yield the tasks of a group, and the groups within it as frames."""
    for task in dag.tasks:
        if task.group_id == group_id:
            yield f"{indent}{for_dot(task.task_id)}"
    for group in dag.task_groups:
        if group.parent_id == group_id and group.group_id != group_id:
            yield f"{indent}subgraph {for_dot(f'cluster_{group.group_id}')} {{"
            yield f"{indent}  label={for_dot(group.group_id)}"
            yield from _frame(dag, group.group_id, indent + "  ")
            yield f"{indent}}}"


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
@click.option("--run-after", metavar="T", help=f"Earliest start; by default at once. {INSTANT_FORMS}")
@click.option("--partition-key", metavar="KEY", help="The partition that the run is for.")
@click.option("--note", "text", default="", help="About the run, for people.")
@click.option("--wait", is_flag=True, help="Wait for the end of the run; exit code 0 only if it succeeded.")
def dags_trigger(
    session: Session,
    output: Output,
    dag_id: str,
    conf: str | None,
    run_id: str | None,
    logical_date: str | None,
    no_logical_date: bool,
    run_after: str | None,
    partition_key: str | None,
    text: str,
    wait: bool,
) -> Done:
    """Create a run of a DAG, which starts at once or at --run-after. A paused DAG's run waits until it is unpaused."""
    from asynsched.scheduling.creation.wanted_run import Trigger

    content = read_conf(conf)
    if logical_date and no_logical_date:
        raise click.BadParameter("leave it out, or --no-logical-date", param_hint="--logical-date")
    zone = session.settings.default_timezone
    date = read_instant(logical_date, zone, "--logical-date") if logical_date else None
    dag = dag_of(session, dag_id, make=True)
    wanted = Trigger(
        conf=content,
        run_id=run_id,
        logical_date=date,
        has_logical_date=not no_logical_date,
        run_after=read_instant(run_after, zone, "--run-after") if run_after else None,
        partition_key=partition_key,
        note=text,
    )
    made = queue_run(session, dag_id, wanted)
    key = made.key
    if wait:
        note(f"Waiting for the run {key.run_id!r} of the DAG {dag_id!r}.")
    if dag.paused:
        note(f"The DAG is paused; the run waits until `asynsched dags unpause {dag_id}`.")
    if not (is_served := session.has_scheduler()):
        note("No scheduler is serving at the moment; the run waits for one.")
    if not wait:
        return Done(f"Run {key.run_id!r} of the DAG {dag_id!r} is queued.", as_row(made))
    run = _wait(session, key, is_served=is_served)
    reason = f": {run.reason}" if run.reason and run.state != DagRunState.SUCCESS else "."
    done = Done(f"Run {key.run_id!r} of the DAG {dag_id!r}: {run.state}{reason}", as_row(run))
    if run.state != DagRunState.SUCCESS:
        if output is Output.JSON:
            show(done, output)
        note(f"Error: {done.sentence}")
        note(f"    {session.command_line('why', *key)}")
        raise click.exceptions.Exit(1)
    return done


def queue_run(session: Session, dag_id: str, wanted: "Trigger") -> "RunInfo":
    """Create a run of a DAG, wake the schedulers, and return it. Raises the errors of `create_manual_run`."""
    from asynsched.queries.run_edits import store_trigger

    now, answers = session.now(), AnswersForRun()
    question = wanted.question(now)
    path = session.read(queries.file_to_ask, dag_id, question)
    if path is not None:
        answers = answer_of_timetable(session, path, dag_id, question, wanted.date(now) or now).for_run
    return session.act(store_trigger, dag_id, wanted, answers, actor(), now)


def read_conf(text: str | None, option: str = "--conf") -> dict[str, Any]:
    """Return the JSON object that an option gives. Raises click.BadParameter if the value is not a JSON object."""
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as exc:
        # The decoder's message helps only if the text was meant as JSON.
        found = f" ({exc})" if text.lstrip().startswith("{") else ""
        message = f"{text!r:.1000} is not a JSON object{found}; write for example {option} '{_example(text)}'"
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


def _wait(session: Session, key: DagRunKey, *, is_served: bool) -> "RunInfo":
    """Return the run once it has ended, and report its progress until then. Ctrl-C ends the wait, not the run.

    Args:
        is_served: Whether a scheduler was seen that serves; changes of that are reported, too.
    """
    from asynsched.queries.runs import get_run

    said = ""
    try:
        with session.watching(key) as changes:
            while (run := session.read(get_run, *key)).state not in FINISHED_RUN_STATES:
                if session.has_scheduler() is not is_served:
                    is_served = not is_served
                    lost = "No scheduler is serving any more; the run waits for one."
                    note("A scheduler serves now." if is_served else lost)
                if (progress := _progress(session, run)) != said:
                    note(said := progress)
                changes.wait()
    except KeyboardInterrupt:
        shown_by = f"`asynsched runs show {key.dag_id} {key.run_id}` shows it"
        fail(f"No longer waiting; the run goes on. {shown_by}.", INTERRUPTED)
    return run


def _progress(session: Session, run: "RunInfo") -> str:
    from asynsched.queries.runs import count_progress

    progress = session.read(count_progress, [run.id]).get(run.id)
    return run.state if progress is None else f"{run.state}: {progress.n_ended} of {progress.n_tasks} tasks have ended"


@command("next", tables=True)
@dag_argument
@click.option("-n", type=click.IntRange(1, 100_000), default=1, show_default=True, help="How many at most.")
@click.option("--now", metavar="T", help=f"As if it were T. {INSTANT_FORMS}")
@click.option(LAST_RUN, metavar="START/END", help="As if this data interval were the last that had a run.")
def dags_next(session: Session, dag_id: str, n: int, now: str | None, last_run: str | None) -> Listing:
    """Show the runs that the scheduler would create next if the clock stood still; also of a paused DAG."""
    from asynsched.queries.upcoming import read_schedule

    zone = session.settings.default_timezone
    at = read_instant(now, zone, "--now") if now else session.now()
    dag_of(session, dag_id)
    schedule = session.read(read_schedule, dag_id)
    if last_run:
        schedule = schedule._replace(last=_read_last_run(last_run, zone), made=frozenset())
    answer = (
        answer_of_timetable(session, schedule.file, dag_id, schedule.question(n), at) if schedule.is_asked else None
    )
    columns = PARTITION_COLUMNS if schedule.is_by_partitions else NEXT_COLUMNS
    return Listing(columns, schedule.next_runs(n, at, answer), nothing=f"The DAG {dag_id!r} has no next run.")


def _read_last_run(text: str, zone: str) -> "DagRunInfo":
    from asynsched.timetables import DagRunInfo

    start, separator, end = text.partition("/")
    if not separator:
        raise click.BadParameter(f"{text!r} is not an interval: write START/END", param_hint=LAST_RUN)
    run = DagRunInfo.interval(read_instant(start, zone, LAST_RUN), read_instant(end, zone, LAST_RUN))
    if run.data_interval.end < run.data_interval.start:
        raise click.BadParameter(f"{text!r} ends before it starts", param_hint=LAST_RUN)
    return run


def answer_of_timetable(
    session: Session, path: str, dag_id: str, question: TimetableQuestion, now: datetime
) -> ParsedDag:
    """Ask an author's own timetable: parse its DAG file for that, without storing the result. Raises DagError."""
    import asyncio

    from asynsched.parsing.readable_secrets import secrets_of_home
    from asynsched.queries.own_timetables import ask_with_secrets

    if not session.home.is_dir():
        session.use_passing_home(keep_database=True)
    secrets = secrets_of_home(session.settings)
    return asyncio.run(ask_with_secrets(session.settings, secrets, path, dag_id, question, now))
