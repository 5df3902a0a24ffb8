"""Questions about runs."""

from collections.abc import Collection
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, Row

from asynsched.errors import AsynschedError, NotFound
from asynsched.keys import LATEST, DagRunKey
from asynsched.queries.dag_versions import VersionInfo
from asynsched.queries.paging import (
    ANY_TEXT,
    FIRST_PAGE,
    Page,
    Paging,
    Pattern,
    Range,
    Sorting,
    beginning,
    contains,
    matches,
    one_of,
    select_page,
)
from asynsched.states import FINISHED_TASK_STATES
from asynsched.store.dags.dags import near_dag_ids
from asynsched.store.expressions import as_text, seconds_between
from asynsched.store.rows import as_struct, count, length, near_names
from asynsched.store.runs.dag_runs import (
    UNFINISHED_RUN_STATES,
    ids_of_unfinished,
    newest_run_ids,
    run_ids_beginning_with,
)
from asynsched.store.schema import (
    DagRunRow,
    asset,
    asset_event,
    callback_request,
    dag,
    dag_run,
    dag_run_asset_event,
    dag_version,
    note,
    task_instance,
)

LARGEST_CONF_IN_LIST = 4096
"""Bytes of a conf that a list shows; `get_run` shows each."""
MOST_COUNTED = 10_000
"""Rows that are counted for a list that is read page after page."""
MOST_RUNS_OF_DAYS = 20_000
"""Runs that are counted by day, the newest first."""
DISPLAY_NAME = sa.func.coalesce(dag.c.display_name, dag_run.c.dag_id)
DURATION = seconds_between(dag_run.c.started_at, dag_run.c.ended_at)
CHANGED_AT = sa.func.coalesce(dag_run.c.ended_at, dag_run.c.started_at, dag_run.c.queued_at)
"""The last moment that is stored of a run."""
SORTING = Sorting(
    {
        "id": dag_run.c.id,
        "state": dag_run.c.state,
        "dag_id": dag_run.c.dag_id,
        "run_id": dag_run.c.run_id,
        "logical_date": dag_run.c.logical_date,
        "partition_date": dag_run.c.partition_date,
        "run_after": dag_run.c.run_after,
        "started_at": dag_run.c.started_at,
        "ended_at": dag_run.c.ended_at,
        "updated_at": CHANGED_AT,
        "duration_seconds": DURATION,
        "conf": beginning(as_text(dag_run.c.conf)),
    },
    key=dag_run.c.id,
    usual=("id",),
)


class RunInfo(Struct, frozen=True, kw_only=True):
    """A run.

    Attributes:
        reason: Why it is in its state.
        duration_seconds: None until it has ended.
        conf: None in a list, if it is long; `get_run` shows each.
        note: A user's text about it.
        version: The version that it runs; None before it has begun.
    """

    id: int
    dag_id: str
    dag_display_name: str
    run_id: str
    run_type: str
    state: str
    reason: str
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    run_after: datetime
    queued_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    duration_seconds: float | None
    conf: dict[str, Any] | None
    note: str | None
    version: VersionInfo | None
    partition_key: str | None
    partition_date: datetime | None

    @property
    def key(self) -> DagRunKey:
        """The identity of the run."""
        return DagRunKey(self.dag_id, self.run_id)

    @property
    def version_number(self) -> int | None:
        """That of its version; None before it has begun."""
        return None if self.version is None else self.version.number


class RunFilter(Struct, frozen=True):
    """Which runs are wanted; None and empty ones: all.

    Attributes:
        dag_ids: Of these DAGs only; `allowed` is the same for those that the user may see.
        states: None among them stands for no state, which no run has.
        conf_contains: A text in the JSON of the conf.
        asset: Part of the name or the URI of an asset whose events the run consumed.
        updated_at: When its last stored moment was: its end, else its start, else its queueing.
    """

    allowed: frozenset[str] | None = None
    dag_ids: tuple[str, ...] | None = None
    run_ids: tuple[str, ...] | None = None
    states: tuple[str | None, ...] | None = None
    run_types: tuple[str, ...] | None = None
    version_numbers: tuple[int, ...] | None = None
    partition_keys: tuple[str, ...] | None = None
    dag_id: Pattern = ANY_TEXT
    run_id: Pattern = ANY_TEXT
    partition_key: Pattern = ANY_TEXT
    run_after: Range = Range()
    logical_date: Range = Range()
    partition_date: Range = Range()
    started_at: Range = Range()
    ended_at: Range = Range()
    updated_at: Range = Range()
    duration_seconds: Range = Range()
    conf_contains: str | None = None
    asset: str | None = None


OF_VERSION = (
    DISPLAY_NAME.label("dag_display_name"),
    dag_version.c.id.label("version_id"),
    dag_version.c.number.label("version_number"),
    dag_version.c.file_path.label("version_file"),
    dag_version.c.created_at.label("version_created_at"),
)
"""The columns that `version_of` reads."""
_SHOWN = [
    dag_run.c[name] for name in DagRunRow.__struct_fields__ if name in RunInfo.__struct_fields__ and name != "conf"
]
_RUNS = (
    sa.select(*_SHOWN, DURATION.label("duration_seconds"), note.c.text.label("note"), *OF_VERSION)
    .select_from(dag_run)
    .join(dag, dag.c.dag_id == dag_run.c.dag_id, isouter=True)
    .join(dag_version, dag_version.c.id == dag_run.c.version_id, isouter=True)
    .join(note, sa.and_(note.c.dag_run_id == dag_run.c.id, note.c.task_id == ""), isouter=True)
)
_LISTED = _RUNS.add_columns(sa.case((length(dag_run.c.conf) <= LARGEST_CONF_IN_LIST, dag_run.c.conf)).label("conf"))
_WHOLE = _RUNS.add_columns(dag_run.c.conf)


def list_runs(conn: Connection, wanted: RunFilter, paging: Paging = FIRST_PAGE) -> Page[RunInfo]:
    """Return runs. Raises BadRequest."""
    rows, after = select_page(conn, _LISTED.where(*conditions_of_runs(wanted)), SORTING, paging)
    return Page(tuple(run_info(row) for row in rows), after)


def runs_of_rows(conn: Connection, row_ids: Collection[int]) -> list[RunInfo]:
    """Return the runs with these row ids that exist, in the order of the ids."""
    return [run_info(row) for row in conn.execute(_LISTED.where(dag_run.c.id.in_(row_ids)).order_by(dag_run.c.id))]


def count_runs(conn: Connection, wanted: RunFilter, at_most: int | None = None) -> int:
    """Count such runs; a larger number than `at_most` is not counted to its end."""
    query = sa.select(dag_run.c.id).select_from(dag_run)
    if wanted.version_numbers is not None:
        query = query.join(dag_version, dag_version.c.id == dag_run.c.version_id)
    query = query.where(*conditions_of_runs(wanted))
    return count(conn, query if at_most is None else query.limit(at_most))


class Progress(Struct, frozen=True):
    """How many task instances a run has, and how many of them have ended, and failed."""

    n_tasks: int = 0
    n_ended: int = 0
    n_failed: int = 0


def count_progress(conn: Connection, row_ids: Collection[int]) -> dict[int, Progress]:
    """Return the progress of runs, by their row ids; runs without task instances are absent."""
    ended = task_instance.c.state.in_(FINISHED_TASK_STATES)  # `ended_at` is set before a retry, too
    failed = task_instance.c.state.in_(("failed", "upstream_failed"))
    query = sa.select(
        task_instance.c.dag_run_id,
        sa.func.count(),
        sa.func.count(sa.case((ended, 1))),
        sa.func.count(sa.case((failed, 1))),
    ).group_by(task_instance.c.dag_run_id)
    rows = conn.execute(query.where(task_instance.c.dag_run_id.in_(row_ids)))
    return {row[0]: Progress(*row[1:]) for row in rows}


def count_runs_by_day(conn: Connection, dag_id: str, *, since: datetime) -> dict[date, dict[str, int]]:
    """Return the numbers of a DAG's runs in each state, by the day (UTC) on which they were due."""
    query = (
        sa.select(dag_run.c.run_after, dag_run.c.state)
        .where(dag_run.c.dag_id == dag_id, dag_run.c.run_after >= since)
        .order_by(dag_run.c.run_after.desc())
        .limit(MOST_RUNS_OF_DAYS)
    )
    days: dict[date, dict[str, int]] = {}
    for run_after, state in conn.execute(query):
        states = days.setdefault(run_after.date(), {})
        states[state] = states.get(state, 0) + 1
    return days


def get_run(conn: Connection, dag_id: str, run_id: str) -> RunInfo:
    """Return a run with its whole conf. Raises NotFound with the nearest names."""
    row = conn.execute(_WHOLE.where(dag_run.c.dag_id == dag_id, dag_run.c.run_id == run_id)).first()
    if row is None:
        raise no_such_run(conn, dag_id, run_id)
    return run_info(row)


MOST_CANDIDATES = 4
"""Runs that an error names when a beginning fits several."""
NEWEST_RUNS = 200
"""Runs among which the nearest to a mistyped run_id are looked for."""


def run_named(conn: Connection, dag_id: str, name: str, *, is_whole: bool = False) -> RunInfo:
    """Return a run that a person has named: by its run_id, by a beginning that no other run_id has, or as `latest`.

    Args:
        is_whole: Whether the beginning of a run_id is not enough.

    Raises:
        NotFound: There is no such DAG or run; carries near names.
        AsynschedError: Several runs begin like that, or the DAG has no run that could be the latest one.
    """
    row = conn.execute(_WHOLE.where(dag_run.c.dag_id == dag_id, dag_run.c.run_id == name)).first()
    if row is not None:
        return run_info(row)
    if name == LATEST and (newest := newest_run_ids(conn, dag_id, limit=1)):
        return get_run(conn, dag_id, newest[0])
    candidates = run_ids_beginning_with(conn, dag_id, name, MOST_CANDIDATES + 1) if name else []
    if len(candidates) == 1 and is_whole:
        advice = f"write {candidates[0]}, or {LATEST}, where you are not asked"
        raise AsynschedError(f"{name!r} is only the beginning of a run_id: {advice}.")
    if len(candidates) == 1:
        return get_run(conn, dag_id, candidates[0])
    if candidates:
        named = ", ".join(candidates[:MOST_CANDIDATES])
        more = ", and more" if len(candidates) > MOST_CANDIDATES else ""
        raise AsynschedError(f"Several runs of the DAG {dag_id!r} begin with {name!r}: {named}{more}.")
    if name == LATEST and is_known_dag(conn, dag_id):
        raise AsynschedError(f"The DAG {dag_id!r} has no run yet.")
    raise no_such_run(conn, dag_id, name)


def no_such_run(conn: Connection, dag_id: str, run_id: str) -> NotFound:
    """Return the error for a run that does not exist: perhaps its DAG does not either."""
    known = newest_run_ids(conn, dag_id, limit=NEWEST_RUNS)
    if not known and not is_known_dag(conn, dag_id):
        return NotFound("DAG", dag_id, near_dag_ids(conn, dag_id))
    near = (LATEST,) if run_id != LATEST and run_id.lower() == LATEST else near_names(run_id, known)
    return NotFound("run", run_id, near, where=f"the DAG {dag_id!r}")


def is_known_dag(conn: Connection, dag_id: str) -> bool:
    """Return whether there is a DAG, also one that has left its file."""
    return conn.scalar(sa.select(dag.c.dag_id).where(dag.c.dag_id == dag_id)) is not None


class CallbackInfo(Struct, frozen=True):
    """A callback of a run, or of one of its tries.

    Attributes:
        task_id: Empty: it is the run's own; its `try_number` then tells the run's deadlines apart.
        attempts: How often it was begun.
    """

    event: str
    task_id: str
    map_index: int
    try_number: int
    state: str
    reason: str
    attempts: int
    created_at: datetime


_CALLBACKS: sa.Select[Any] = sa.select(
    *(callback_request.c[name] for name in CallbackInfo.__struct_fields__)
).join(dag_run, dag_run.c.id == callback_request.c.dag_run_id)  # fmt: skip
CALLBACK_SORTING = Sorting(
    {name: callback_request.c[name] for name in ("id", "created_at", "event", "state", "task_id", "map_index")},
    key=callback_request.c.id,
    usual=("id",),
)


def list_callbacks(conn: Connection, run: DagRunKey, paging: Paging = FIRST_PAGE) -> Page[CallbackInfo]:
    """Return the callbacks of a run and of its tries, by default in the order in which they were requested.

    Raises BadRequest.
    """
    query = _CALLBACKS.where(dag_run.c.dag_id == run.dag_id, dag_run.c.run_id == run.run_id)
    rows, after = select_page(conn, query, CALLBACK_SORTING, paging)
    return Page(tuple(as_struct(CallbackInfo, row) for row in rows), after)


def get_state(conn: Connection, dag_id: str, run_id: str) -> str:
    """Return the state of a run. Raises NotFound."""
    query = sa.select(dag_run.c.state).where(dag_run.c.dag_id == dag_id, dag_run.c.run_id == run_id)
    state: str | None = conn.scalar(query)
    if state is None:
        raise no_such_run(conn, dag_id, run_id)
    return state


def check_run_exists(conn: Connection, dag_id: str, run_id: str) -> None:
    """Raise NotFound if there is no such run."""
    get_state(conn, dag_id, run_id)


def run_info(row: "Row[Any]") -> RunInfo:
    """Return a run as it is shown."""
    values = dict(row._mapping)  # noqa: SLF001 - public in spite of its name
    version = version_of(values)
    return RunInfo(**{name: values[name] for name in RunInfo.__struct_fields__ if name != "version"}, version=version)


def version_of(values: dict[str, Any]) -> VersionInfo | None:
    """Return the version of a run, from the columns that begin with `version_`."""
    if values["version_id"] is None:
        return None
    return VersionInfo(
        id=values["version_id"], dag_id=values["dag_id"], dag_display_name=values["dag_display_name"],
        number=values["version_number"], file=values["version_file"], created_at=values["version_created_at"],
    )  # fmt: skip


def conditions_of_runs(wanted: RunFilter) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a filter, on `dag_run` and, for version numbers, `dag_version`."""
    run = dag_run.c
    conditions = [
        *one_of(run.dag_id, wanted.allowed),
        *one_of(run.dag_id, wanted.dag_ids),
        *one_of(run.run_id, wanted.run_ids),
        *_in_states(wanted.states),
        *one_of(run.run_type, wanted.run_types),
        *one_of(dag_version.c.number, wanted.version_numbers),
        *one_of(run.partition_key, wanted.partition_keys),
        *wanted.dag_id.holds_for(run.dag_id),
        *wanted.run_id.holds_for(run.run_id),
        *wanted.partition_key.holds_for(run.partition_key),
        *wanted.run_after.holds_for(run.run_after),
        *wanted.logical_date.holds_for(run.logical_date),
        *wanted.partition_date.holds_for(run.partition_date),
        *wanted.started_at.holds_for(run.started_at),
        *wanted.ended_at.holds_for(run.ended_at),
        *wanted.updated_at.holds_for(CHANGED_AT),
        *wanted.duration_seconds.holds_for(DURATION),
    ]
    if wanted.conf_contains:
        conditions.append(contains(as_text(run.conf), wanted.conf_contains))
    if wanted.asset is not None:
        conditions.append(_has_consumed(wanted.asset))
    return conditions


def _in_states(states: tuple[str | None, ...] | None) -> list[sa.ColumnElement[bool]]:
    if not states or not UNFINISHED_RUN_STATES.issuperset(states):
        return one_of(dag_run.c.state, states)
    return [dag_run.c.id.in_(ids_of_unfinished({state for state in states if state is not None}))]


def _has_consumed(pattern: str) -> sa.ColumnElement[bool]:
    consumed = dag_run_asset_event.c
    return sa.exists().where(
        consumed.dag_run_id == dag_run.c.id,
        asset_event.c.id == consumed.event_id,
        asset.c.id == asset_event.c.asset_id,
        sa.or_(matches(asset.c.name, pattern), matches(asset.c.uri, pattern)),
    )
