"""`asynsched dags next|test`: what a DAG would do, without a scheduler."""

from typing import Any

import click

from asynsched.cli.command import INSTANT_FORMS, command, dag_argument, read_instant
from asynsched.cli.lookup import dag_of, structure_of
from asynsched.cli.output import Listing
from asynsched.cli.session import Session
from asynsched.scheduling.creation.scheduled_runs import upcoming_runs
from asynsched.store.runs.dag_runs import last_scheduled_interval
from asynsched.timetables import CustomTimetable, DagRunInfo, DataInterval, decode

COLUMNS = ("logical_date", "data_interval_start", "data_interval_end", "run_after")
LAST_RUN = "--last-run"


@command("next", tables=True)
@dag_argument
@click.option("-n", type=click.IntRange(1, 100_000), default=1, show_default=True, help="How many at most.")
@click.option("--now", metavar="T", help=f"As if it were T. {INSTANT_FORMS}")
@click.option(LAST_RUN, metavar="START/END", help="As if this data interval were the last that had a run.")
def show_next_runs(session: Session, dag_id: str, n: int, now: str | None, last_run: str | None) -> Listing:
    """Show the runs that the scheduler would create next, were the clock to stand still; also of a paused DAG."""
    zone = session.settings.default_timezone
    at = read_instant(now, zone, "--now") if now else session.now()
    row = dag_of(session, dag_id)
    dag = structure_of(session, row)
    last = _read_interval(last_run, zone) if last_run else session.read(last_scheduled_interval, dag_id)
    timetable = decode(dag.timetable)
    if isinstance(timetable, CustomTimetable):
        from asynsched.cli.timetable_answers import plan_of  # it starts processes, which few timetables need

        timetable = timetable.planned(plan_of(session, row.file_path, dag_id, last=last, now=at, n=n))
    rows = [_fields(info) for info in upcoming_runs(dag, last=last, now=at, n=n, timetable=timetable)]
    return Listing(COLUMNS, rows, nothing=f"The DAG {dag_id!r} has no next run.")


def _read_interval(text: str, zone: str) -> DataInterval:
    start, separator, end = text.partition("/")
    if not separator:
        raise click.BadParameter(f"{text!r} is no interval: write START/END", param_hint=LAST_RUN)
    interval = DataInterval(read_instant(start, zone, LAST_RUN), read_instant(end, zone, LAST_RUN))
    if interval.end < interval.start:
        raise click.BadParameter(f"{text!r} ends before it starts", param_hint=LAST_RUN)
    return interval


def _fields(info: DagRunInfo) -> dict[str, Any]:
    return {
        "logical_date": info.logical_date,
        "data_interval_start": info.data_interval.start,
        "data_interval_end": info.data_interval.end,
        "run_after": info.run_after,
    }
