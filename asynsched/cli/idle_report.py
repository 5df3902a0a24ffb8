"""What `asynsched up --until-idle` says last: how runs have ended, why some failed, which files have errors."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import structlog
from sqlalchemy import Connection

from asynsched.cli.fail_on import fail_if_wanted
from asynsched.cli.next_command import command_line
from asynsched.cli.rendering import note, some_of
from asynsched.cli.unread_dags import files_with_errors
from asynsched.errors import AsynschedError
from asynsched.settings import Settings
from asynsched.states import DagRunState
from asynsched.store.engines.direct_database import open_direct
from asynsched.store.runs.dag_runs import count_ended_since, failed_since
from asynsched.store.runs.task_instances import first_failure

log = structlog.get_logger(__name__)

MOST_RUNS = 10
"""Failed runs that are named one by one."""


class FailedRun(NamedTuple):
    """A run that has failed, and the task of it that failed first, with the reason; or why the run failed."""

    dag_id: str
    run_id: str
    reason: str


class Summary(NamedTuple):
    """What a scheduler has come to.

    Attributes:
        ended: How many runs have ended in each state.
        failed: Those that have failed, the first of them.
        files: The DAG files that have errors.
    """

    ended: dict[str, int]
    failed: tuple[FailedRun, ...]
    files: tuple[str, ...]

    @property
    def n_failed(self) -> int:
        """How many runs have failed."""
        return self.ended.get(DagRunState.FAILED, 0)

    @property
    def ends_told(self) -> str:
        """How many runs have ended how, in a sentence."""
        n_ended = sum(self.ended.values())
        if not n_ended:
            return "No run has ended."
        states = ", ".join(f"{n} {state}" for state, n in sorted(self.ended.items(), reverse=True))
        return f"{_have(n_ended, 'run')} ended: {states}."

    @property
    def files_told(self) -> str:
        """Which files have errors, in a sentence; empty for none."""
        return f"{_have(len(self.files), 'DAG file')} errors: {some_of(self.files)}." if self.files else ""


def tell_what_came_of_it(
    settings: Settings, since: datetime, fail_on: frozenset[str] = frozenset(), options: Sequence[str] = ()
) -> None:
    """Say what a scheduler that has stopped has come to since it started, and end with code 1 where that is wanted.

    Args:
        settings: Those of the scheduler.
        since: When it started.
        fail_on: What --fail-on names.
        options: Those with which commands work on the same home and database.
    """
    try:
        database = open_direct(settings.database_url)
        try:
            summary = database.read(summarize, since)
        finally:
            database.close()
    except AsynschedError as exc:
        unknown = f"What the runs have come to cannot be told: {exc}"
        if fail_on:
            raise AsynschedError(unknown) from exc
        note(unknown)
        return
    if settings.log.format == "json":
        _log(summary)
    else:
        for line in _lines(summary, options):
            note(line)
    n_failed = f"{_have(summary.n_failed, 'run')} failed" if summary.n_failed else ""
    n_errors = f"{_have(len(summary.files), 'DAG file')} errors" if summary.files else ""
    fail_if_wanted(fail_on, n_errors=n_errors, n_failed=n_failed)


def summarize(conn: Connection, since: datetime) -> Summary:
    """Return how the runs since an instant ended, and which files have errors."""
    failed = []
    for run in failed_since(conn, since, limit=MOST_RUNS):
        task = first_failure(conn, run.id)
        failed.append(FailedRun(run.dag_id, run.run_id, run.reason if task is None else f"{task.name}: {task.reason}"))
    return Summary(count_ended_since(conn, since), tuple(failed), tuple(files_with_errors(conn)))


def _lines(summary: Summary, options: Sequence[str]) -> Iterator[str]:
    yield summary.ends_told
    for run in summary.failed:
        yield f"  {run.dag_id} {run.run_id}: {run.reason}"
        yield f"    {command_line('why', run.dag_id, run.run_id, options=options)}"
    if (n_more := summary.n_failed - len(summary.failed)) > 0:
        yield f"  and {n_more} more: {command_line('runs', 'list', '--state', DagRunState.FAILED, options=options)}"
    if summary.files:
        yield summary.files_told
        yield f"    {command_line('dags', 'errors', options=options)}"


def _have(n: int, what: str) -> str:
    return f"1 {what} has" if n == 1 else f"{n} {what}s have"


def _log(summary: Summary) -> None:
    has_trouble = summary.n_failed or summary.files
    (log.warning if has_trouble else log.info)(
        "scheduler.idle",
        message=" ".join(filter(None, (summary.ends_told, summary.files_told))),
        runs=summary.ended,
        failed_runs=[run._asdict() for run in summary.failed],
        files_with_errors=list(summary.files),
    )
