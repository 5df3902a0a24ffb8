"""`asynsched dags trigger` and `dags next`: the runs of a DAG that a user creates, and those that are due next."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from asynsched.bell import Hint
from asynsched.cli import INTERRUPTED
from asynsched.cli.command import INSTANT_FORMS, command, dag_argument, fail, read_instant, told_output
from asynsched.cli.lookup import dag_of, structure_of
from asynsched.cli.output import Done, Listing, Output, note, show
from asynsched.cli.runs import run_fields
from asynsched.cli.session import Session
from asynsched.errors import NotFound
from asynsched.keys import DagRunKey
from asynsched.states import FINISHED_RUN_STATES, FINISHED_TASK_STATES, DagRunState
from asynsched.store.dags.dags import file_to_ask
from asynsched.store.runs.dag_runs import get_run, last_scheduled_interval
from asynsched.store.runs.task_instances import list_task_instances
from asynsched.store.schema import DagRunRow

if TYPE_CHECKING:
    from asynsched.serialization.schema import ParsedDag, TimetableQuestion
    from asynsched.timetables import DataInterval

COLUMNS = ("logical_date", "data_interval_start", "data_interval_end", "run_after")
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
    "--no-logical-date",
    is_flag=True,
    help="No logical date and no data interval, as with Airflow's command line: `{{ ds }}` is undefined then.",
)
@click.option("--wait", is_flag=True, help="Wait for the end of the run; exit code 0 only if it succeeded.")
@told_output()
def trigger_dag(
    session: Session,
    output: str,
    dag_id: str,
    conf: str | None,
    run_id: str | None,
    logical_date: str | None,
    no_logical_date: bool,
    wait: bool,
) -> Done:
    """Create a run of a DAG, to be started at once. A paused DAG's run waits until it is unpaused."""
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
        return Done(f"Run {key.run_id!r} of the DAG {dag_id!r} is queued.", run_fields(_read_run(session, key)))
    run = _wait(session, key)
    sentence = f"Run {key.run_id!r} of the DAG {dag_id!r}: {run.state}. {run.reason}".rstrip()
    if run.state != DagRunState.SUCCESS:
        if output == Output.JSON:
            show(Done(sentence, run_fields(run)), Output.JSON)
        fail(sentence)
    return Done(sentence, run_fields(run))


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
        from asynsched.serialization.schema import TimetableQuestion

        at = logical_date or now
        answer = _ask(session, path, dag_id, TimetableQuestion(n_runs=1, run_by_hand_at=at), at).manual_interval
        interval = None if answer is None else answer.value()
    return session.change(
        "dag.trigger",
        lambda conn: create_manual_run(
            conn,
            dag_id,
            conf=conf,
            run_id=run_id,
            logical_date=logical_date,
            has_logical_date=has_logical_date,
            data_interval=interval,
            now=now,
        ),
        hints=lambda created: [Hint("run", dag_id=created.dag_id, run_id=created.run_id)],
    )


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
            while (run := _read_run(session, key)).state not in FINISHED_RUN_STATES:
                progress = _progress(session, run)
                if progress != said:
                    note(progress)
                    said = progress
                changes.wait()
    except KeyboardInterrupt:
        shown_by = f"`asynsched runs show {key.dag_id} {key.run_id}` shows it"
        fail(f"No longer waiting; the run goes on. {shown_by}.", INTERRUPTED)
    return run


def _progress(session: Session, run: DagRunRow) -> str:
    states = [task.state for task in session.read(list_task_instances, run.id)]
    ended = sum(state in FINISHED_TASK_STATES for state in states)
    return f"{run.state}: {ended} of {len(states)} tasks have ended" if states else str(run.state)


def _read_run(session: Session, key: DagRunKey) -> DagRunRow:
    run = session.read(get_run, *key)
    if run is None:
        raise NotFound("run", key.run_id)
    return run


@command("next", tables=True)
@dag_argument
@click.option("-n", type=click.IntRange(1, 100_000), default=1, show_default=True, help="How many at most.")
@click.option("--now", metavar="T", help=f"As if it were T. {INSTANT_FORMS}")
@click.option(LAST_RUN, metavar="START/END", help="As if this data interval were the last that had a run.")
def show_next_runs(session: Session, dag_id: str, n: int, now: str | None, last_run: str | None) -> Listing:
    """Show the runs that the scheduler would create next if the clock stood still; also of a paused DAG."""
    from asynsched.scheduling.creation.scheduled_runs import upcoming_runs
    from asynsched.serialization.schema import TimetableQuestion
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
    rows = [
        {
            "logical_date": info.logical_date,
            "data_interval_start": info.data_interval.start,
            "data_interval_end": info.data_interval.end,
            "run_after": info.run_after,
        }
        for info in upcoming_runs(dag, last=last, now=at, n=n, timetable=timetable)
    ]
    return Listing(COLUMNS, rows, nothing=f"The DAG {dag_id!r} has no next run.")


def _read_interval(text: str, zone: str) -> "DataInterval":
    from asynsched.timetables import DataInterval

    start, separator, end = text.partition("/")
    if not separator:
        raise click.BadParameter(f"{text!r} is not an interval: write START/END", param_hint=LAST_RUN)
    interval = DataInterval(read_instant(start, zone, LAST_RUN), read_instant(end, zone, LAST_RUN))
    if interval.end < interval.start:
        raise click.BadParameter(f"{text!r} ends before it starts", param_hint=LAST_RUN)
    return interval


def _ask(session: Session, path: str, dag_id: str, question: "TimetableQuestion", now: datetime) -> "ParsedDag":
    """Ask an author's own timetable: parse its DAG file for that, without storing the result. Raises DagError."""
    import asyncio

    from asynsched.home import prepare_home
    from asynsched.parsing.processes.informed_parser import ask
    from asynsched.parsing.processes.sandbox_parser import SandboxParser

    if not session.home.is_dir():
        session.use_passing_home(keep_database=True)
    prepare_home(session.home)
    return asyncio.run(ask(SandboxParser(session.settings), path, dag_id, question, now=now))
