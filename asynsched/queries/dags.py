"""Questions about DAGs, and actions on them."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, Row

from asynsched.bell import Hint
from asynsched.errors import NotFound
from asynsched.queries.context import Act
from asynsched.queries.paging import (
    ANY_TEXT,
    FIRST_PAGE,
    BadRequest,
    Page,
    Paging,
    Pattern,
    Range,
    Sorting,
    checked_text,
    matches,
    one_of,
    select_page,
)
from asynsched.states import DagRunState
from asynsched.store.dags.dags import DAGS, HAS_ERRORS, DagRow, file_to_ask, near_dag_ids, set_paused
from asynsched.store.dags.files import get_file
from asynsched.store.expressions import as_text, has_text
from asynsched.store.rows import as_struct, count, near_names, to_json
from asynsched.store.schema import asset_reference, dag, dag_file, dag_run, import_error

__all__ = ["file_to_ask"]

MOST_WORDS = 100
"""Tags and owners of a filter: each is a condition of its own."""
NAME = sa.func.coalesce(dag.c.display_name, dag.c.dag_id)
_newest = dag_run.alias("newest")
_NEWEST_RUN = (
    sa.select(_newest.c.id)
    .where(_newest.c.dag_id == dag.c.dag_id)
    .order_by(_newest.c.run_after.desc(), _newest.c.id.desc())
    .limit(1)
    .correlate(dag)
    .scalar_subquery()
)
_last = dag_run.alias("last_run")


def _of_last_run(column: str) -> sa.ColumnElement[Any]:
    return sa.select(_last.c[column]).where(_last.c.id == _NEWEST_RUN).correlate(dag).scalar_subquery()


SORTING = Sorting(
    {
        "dag_id": dag.c.dag_id,
        "display_name": NAME,
        "next_run_at": dag.c.next_dagrun_create_after,
        "paused": dag.c.is_paused,
        "updated_at": dag.c.updated_at,
        "last_run_state": _of_last_run("state"),
        "last_run_started_at": _of_last_run("started_at"),
    },
    key=dag.c.dag_id,
    usual=("dag_id",),
)


class DagInfo(Struct, frozen=True, kw_only=True):
    """A DAG.

    Attributes:
        description: Its beginning, if it is long.
        file: Its file, relative to the DAG folder.
        schedule: In words or as a cron expression; None: it only runs when it is triggered.
        timetable: The kind of its schedule; `asset` or `asset_or_time` if asset events trigger it.
        next_run_at: When its next scheduled run is due; the other `next_` fields are of that run.
        has_errors: Whether the last parse of its file found an error in the file or the DAG.
        is_active: False once its file is gone, or was parsed without it.
        is_periodic: Whether its schedule has regular times, so that it can be backfilled.
        is_partitioned: Whether its runs are for partitions.
        max_active_tasks: None: as the settings say.
        max_consecutive_failed_dag_runs: 0: no limit.
        has_task_limits: Whether a task limits its own simultaneous instances.
        parsed_at: When its file was parsed last; None: the file is gone. `parse_seconds` says how long that took.
    """

    dag_id: str
    display_name: str
    description: str | None
    owners: tuple[str, ...]
    file: str
    schedule: str | None
    timetable: str
    paused: bool
    next_run_at: datetime | None
    next_logical_date: datetime | None
    next_interval_start: datetime | None
    next_interval_end: datetime | None
    tags: tuple[str, ...]
    has_errors: bool
    is_active: bool
    is_periodic: bool
    is_partitioned: bool
    max_active_runs: int
    max_active_tasks: int | None
    max_consecutive_failed_dag_runs: int
    has_task_limits: bool
    parsed_at: datetime | None
    parse_seconds: float | None
    updated_at: datetime


class DagFilter(Struct, frozen=True):
    """Which DAGs are wanted.

    Attributes:
        dag_ids: Only these; None: all.
        dag_id: A condition of the dag_id.
        paused: Only paused ones, or only others.
        active: Only those that are in a file, or only others; None: both.
        tags: With any of these tags, or with all of them, as `tags_match` says.
        owners: With any of these owners.
        owners_like: With an owner whose name contains one of these texts, in either case.
        timetables: With schedules of these kinds.
        has_asset_schedule: Only those that asset events trigger, or only others.
        asset: Part of the name or URI of an asset whose events trigger it.
        last_run_state: Of the newest run.
        run_started_at: Only those with a run that began then; `run_ended_at` and `run_states` are of that same run.
    """

    dag_ids: frozenset[str] | None = None
    dag_id: Pattern = ANY_TEXT
    display_name: Pattern = ANY_TEXT
    paused: bool | None = None
    active: bool | None = True
    has_errors: bool | None = None
    tags: tuple[str, ...] = ()
    tags_match: Literal["any", "all"] = "any"
    owners: tuple[str, ...] = ()
    owners_like: tuple[str, ...] = ()
    timetables: tuple[str, ...] | None = None
    has_asset_schedule: bool | None = None
    asset: str | None = None
    last_run_state: str | None = None
    run_started_at: Range = Range()
    run_ended_at: Range = Range()
    run_states: tuple[str, ...] | None = None


_FILE = dag_file.c
_LISTED = DAGS.add_columns(_FILE.parsed_at, _FILE.parse_seconds).join(
    dag_file, sa.and_(_FILE.path == dag.c.file_path, dag.c.is_active), isouter=True
)


def list_dags(conn: Connection, wanted: DagFilter, paging: Paging = FIRST_PAGE) -> Page[DagInfo]:
    """Return DAGs. Raises BadRequest."""
    rows, after = select_page(conn, _LISTED.where(*_conditions(wanted)), SORTING, paging)
    return Page(tuple(_info(row) for row in rows), after)


def count_dags(conn: Connection, wanted: DagFilter) -> int:
    """Count such DAGs."""
    return count(conn, sa.select(dag.c.dag_id).where(*_conditions(wanted)))


def get_dag(conn: Connection, dag_id: str, *, active: bool = True) -> DagInfo:
    """Return a DAG. Raises NotFound with the nearest names.

    Args:
        active: Only one that is in a file; False: also one that has left.
    """
    row = conn.execute(_LISTED.where(dag.c.dag_id == dag_id)).first()
    if row is None or (active and not row.is_active):
        raise NotFound("DAG", dag_id, near_dag_ids(conn, dag_id))
    return _info(row)


def pause_dag(conn: Connection, dag_id: str, *, paused: bool, now: datetime) -> Act[DagInfo]:
    """Pause or unpause a DAG: a paused one gets no run, and none of its tasks begins. Raises NotFound."""
    set_paused(conn, dag_id, paused, now)
    return Act(get_dag(conn, dag_id), "dag.pause" if paused else "dag.unpause", Hint("dag", dag_id=dag_id))


class FileInfo(Struct, frozen=True):
    """A DAG file, with the DAGs that it has.

    Attributes:
        path: Relative to the DAG folder.
        airflow: The value of the setting `airflow` when it was parsed; empty: it does not import airflow.
        reads: The variables and connections that it reads when it is parsed, each as `variable NAME`.
    """

    path: str
    dag_ids: tuple[str, ...]
    airflow: str = ""
    reads: tuple[str, ...] = ()


def find_file(conn: Connection, path: str, *, seen_dags: frozenset[str] | None = None) -> FileInfo:
    """Return a DAG file that was parsed before.

    Args:
        seen_dags: Only a file that has one of these DAGs; None: any.

    Raises:
        NotFound: There is no such file; with the nearest names, if any file is wanted.
    """
    row = get_file(conn, path)
    of_file = sa.select(dag.c.dag_id).where(dag.c.file_path == path, dag.c.is_active).order_by(dag.c.dag_id)
    found = conn.scalars(of_file).all()
    if seen_dags is not None and seen_dags.isdisjoint(found):
        raise NotFound("file", path)
    if row is None:
        raise NotFound("file", path, near_names(path, conn.scalars(sa.select(_FILE.path).order_by(_FILE.path))))
    reads = tuple(f"{one.kind} {one.name}" for one in row.asked if one.kind != "option")
    return FileInfo(path, tuple(found), row.airflow, reads)


def list_files(conn: Connection) -> list[str]:
    """Return the paths of the DAG files that were parsed and are not gone."""
    return list(conn.scalars(sa.select(_FILE.path).order_by(_FILE.path)))


def parse_again(conn: Connection, path: str, dag_id: str = "") -> Act[None]:  # noqa: ARG001 - an action has it
    """Parse a file again, even if it has not changed. The scheduler does it; without one, nothing happens.

    Args:
        dag_id: A DAG of the file, for the audit.
    """
    return Act(None, "file.parse", Hint("file", dag_id=dag_id, path=path), detail={"file": path})


class RunCounts(Struct, frozen=True):
    """How many runs a DAG has in each state."""

    dag_id: str
    dag_display_name: str
    n_runs: dict[str, int]


def count_runs_by_state(conn: Connection, dag_ids: frozenset[str] | None) -> list[RunCounts]:
    """Return the numbers of runs of DAGs that have any, by dag_id; None: of all DAGs."""
    name = sa.func.coalesce(dag.c.display_name, dag_run.c.dag_id).label("name")
    query = (
        sa.select(dag_run.c.dag_id, name, dag_run.c.state, sa.func.count().label("n"))
        .join(dag, dag.c.dag_id == dag_run.c.dag_id, isouter=True)
        .where(*one_of(dag_run.c.dag_id, dag_ids))
        .group_by(dag_run.c.dag_id, name, dag_run.c.state)
        .order_by(dag_run.c.dag_id)
    )
    found: dict[str, RunCounts] = {}
    for row in conn.execute(query):
        counts = found.setdefault(row.dag_id, RunCounts(row.dag_id, row.name, dict.fromkeys(DagRunState, 0)))
        counts.n_runs[row.state] = row.n
    return list(found.values())


def count_active_runs_of(conn: Connection, dag_id: str) -> int:
    """Count the queued and running runs of a DAG."""
    active = dag_run.c.state.in_((DagRunState.QUEUED, DagRunState.RUNNING))
    return count(conn, sa.select(dag_run.c.id).where(dag_run.c.dag_id == dag_id, active))


_ITEM = {
    "sqlite": "SELECT DISTINCT item.value AS name FROM dag AS d, json_each(CAST(d.{column} AS TEXT)) AS item",
    "postgresql": "SELECT DISTINCT item AS name FROM dag AS d,"
    " jsonb_array_elements_text(CAST(convert_from(d.{column}, 'UTF8') AS jsonb)) AS item",
}


def list_tags(conn: Connection, wanted: Pattern, dag_ids: Collection[str] | None, paging: Paging) -> Page[str]:
    """Return the tags of active DAGs, each once. Raises BadRequest."""
    query, sorting = _items(conn, "tags", wanted, dag_ids)
    rows, after = select_page(conn, query, sorting, paging)
    return Page(tuple(row.name for row in rows), after)


def list_owners(conn: Connection, dag_ids: Collection[str] | None, paging: Paging) -> tuple[str, ...]:
    """Return the owners of active DAGs, each once."""
    query, sorting = _items(conn, "owners", ANY_TEXT, dag_ids)
    return tuple(row.name for row in select_page(conn, query, sorting, paging)[0])


def count_tags(conn: Connection, wanted: Pattern, dag_ids: Collection[str] | None) -> int:
    """Count such tags."""
    return count(conn, _items(conn, "tags", wanted, dag_ids)[0])


def _items(
    conn: Connection, column: Literal["tags", "owners"], wanted: Pattern, dag_ids: Collection[str] | None
) -> "tuple[sa.Select[Any], Sorting]":
    among, given = "", list[sa.BindParameter[Any]]()
    if dag_ids is not None:
        among, given = " AND d.dag_id IN :dag_ids", [sa.bindparam("dag_ids", list(dag_ids), expanding=True)]
    items = _ITEM[conn.dialect.name].format(column=column)
    found = sa.text(f"{items} WHERE d.is_active{among}").bindparams(*given)
    item = found.columns(name=sa.Text()).subquery("found")
    return sa.select(item.c.name).where(*wanted.holds_for(item.c.name)), Sorting(
        {"name": item.c.name}, item.c.name, ("name",)
    )


class WarningInfo(Struct, frozen=True, kw_only=True):
    """A warning about a DAG."""

    dag_id: str
    dag_display_name: str
    kind: str
    message: str
    created_at: datetime


WARNING_SORTING = Sorting(
    {"dag_id": dag.c.dag_id, "kind": import_error.c.kind, "message": import_error.c.message,
     "created_at": import_error.c.created_at},
    key=import_error.c.id,
    usual=("dag_id",),
    before_key=("dag_id",),  # a warning about a file has the same id for all DAGs of the file
)  # fmt: skip
_WARNINGS = (
    sa.select(dag.c.dag_id, NAME.label("dag_display_name"), import_error.c.kind, import_error.c.message,
              import_error.c.created_at)
    .join(dag, sa.and_(dag.c.file_path == import_error.c.file_path, dag.c.is_active))
    .where(import_error.c.is_warning, sa.or_(import_error.c.dag_id.is_(None), import_error.c.dag_id == dag.c.dag_id))
)  # fmt: skip


def list_warnings(
    conn: Connection, dag_ids: frozenset[str] | None, kinds: tuple[str, ...] | None, paging: Paging
) -> Page[WarningInfo]:
    """Return the warnings about active DAGs; a warning about a file counts for each of its DAGs. Raises BadRequest."""
    query = _WARNINGS.where(*one_of(dag.c.dag_id, dag_ids), *one_of(import_error.c.kind, kinds))
    rows, after = select_page(conn, query, WARNING_SORTING, paging)
    return Page(tuple(as_struct(WarningInfo, row) for row in rows), after)


def count_warnings(conn: Connection, dag_ids: frozenset[str] | None, kinds: tuple[str, ...] | None) -> int:
    """Count such warnings."""
    return count(conn, _WARNINGS.where(*one_of(dag.c.dag_id, dag_ids), *one_of(import_error.c.kind, kinds)))


def _info(found: "Row[Any]") -> DagInfo:
    names = set(DagRow.__struct_fields__)
    row = DagRow(**{name: value for name, value in found._mapping.items() if name in names})  # noqa: SLF001 - public
    return DagInfo(
        dag_id=row.dag_id, display_name=row.display_name or row.dag_id, description=row.about.description,
        owners=tuple(row.owners), file=row.file_path, schedule=row.schedule_summary or None, timetable=row.timetable,
        paused=row.is_paused, next_run_at=row.next_dagrun_create_after, next_logical_date=row.next_dagrun_logical_date,
        next_interval_start=row.next_dagrun_data_interval_start, next_interval_end=row.next_dagrun_data_interval_end,
        tags=tuple(row.tags), has_errors=row.has_errors, is_active=row.is_active,
        is_periodic=row.about.is_periodic, is_partitioned=row.about.is_partitioned,
        max_active_runs=row.max_active_runs,
        max_active_tasks=row.about.max_active_tasks,
        max_consecutive_failed_dag_runs=row.about.max_consecutive_failed_dag_runs,
        has_task_limits=row.about.has_task_limits, parsed_at=found.parsed_at, parse_seconds=found.parse_seconds,
        updated_at=row.updated_at,
    )  # fmt: skip


def _conditions(wanted: DagFilter) -> list[sa.ColumnElement[bool]]:
    conditions = [
        *one_of(dag.c.dag_id, wanted.dag_ids),
        *wanted.dag_id.holds_for(dag.c.dag_id),
        *wanted.display_name.holds_for(NAME),
        *one_of(dag.c.timetable, wanted.timetables),
    ]
    if len(wanted.tags) + len(wanted.owners) + len(wanted.owners_like) > MOST_WORDS:
        raise BadRequest(f"At most {MOST_WORDS} tags and owners can be asked for at once.")
    if wanted.tags:
        combine = sa.and_ if wanted.tags_match == "all" else sa.or_
        conditions.append(combine(*(has_text(dag.c.tags, tag) for tag in wanted.tags)))
    if wanted.owners:
        conditions.append(sa.or_(*(has_text(dag.c.owners, owner) for owner in wanted.owners)))
    if wanted.owners_like:
        names = sa.func.trim(as_text(dag.c.owners), "[]")
        texts = (to_json(checked_text(text)).decode()[1:-1] for text in wanted.owners_like)
        conditions.append(sa.or_(*(names.icontains(text, autoescape=True) for text in texts)))
    flags = ((dag.c.is_paused, wanted.paused), (dag.c.is_active, wanted.active), (HAS_ERRORS, wanted.has_errors))
    conditions += [column if is_wanted else ~column for column, is_wanted in flags if is_wanted is not None]
    return [*conditions, *_conditions_of_assets(wanted), *_conditions_of_runs(wanted)]


def _conditions_of_assets(wanted: DagFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    waits = sa.exists().where(asset_reference.c.dag_id == dag.c.dag_id, asset_reference.c.role == "schedule")
    if wanted.has_asset_schedule is not None:
        conditions.append(waits if wanted.has_asset_schedule else ~waits)
    if wanted.asset is not None:
        name, uri = (matches(column, wanted.asset) for column in (asset_reference.c.name, asset_reference.c.uri))
        conditions.append(waits.where(sa.or_(name, uri)))
    return conditions


def _conditions_of_runs(wanted: DagFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.last_run_state is not None:
        conditions.append(_of_last_run("state") == wanted.last_run_state)
    of_run = [
        *wanted.run_started_at.holds_for(dag_run.c.started_at),
        *wanted.run_ended_at.holds_for(dag_run.c.ended_at),
        *one_of(dag_run.c.state, wanted.run_states),
    ]
    if of_run:
        conditions.append(sa.exists().where(dag_run.c.dag_id == dag.c.dag_id, *of_run))
    return conditions
