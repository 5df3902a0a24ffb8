"""Reads the metadata database of an Airflow 2.0 to 3.x, on SQLite or PostgreSQL. Nothing is ever written to it.

The versions differ in a few columns, so each query reads the ones that exist, and None for the others. Source of the
tables and their columns: the models of Airflow 2.0, 2.2, 2.11 and 3.3, and the migrations between them.
"""

import io
import json
import pickle
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection
from sqlalchemy.pool import NullPool

from asynsched.authoring.defaults import DEFAULT_POOL
from asynsched.errors import AsynschedError, SettingsError
from asynsched.states import FINISHED_RUN_STATES, FINISHED_TASK_STATES, DagRunState, DagRunType
from asynsched.store.engines.driver_errors import store_errors
from asynsched.store.engines.urls import DatabaseUrl, parse_url
from asynsched.store.imported import ImportedRun
from asynsched.store.schema import DagRunRow, TaskInstanceRow

T = TypeVar("T")
BUSY_SECONDS = 10.0
RUN_TYPES = {name.value: name for name in DagRunType} | {"dataset_triggered": DagRunType.ASSET_TRIGGERED}
"""By Airflow's names; `dataset_triggered` is Airflow 2's. Runs of other types are manual ones."""
REASON = "It is from Airflow."
_NAMES = {
    "execution_date logical_date data_interval_start data_interval_end run_after queued_at": sa.DateTime(timezone=True),
    "start_date end_date queued_dttm scheduled_dttm": sa.DateTime(timezone=True),
    "is_paused is_active is_stale is_subdag is_encrypted is_extra_encrypted include_deferred": sa.Boolean(),
    "slots port map_index try_number max_tries pool_slots priority_weight id": sa.Integer(),
}
_TYPES: dict[str, Any] = {name: kind for names, kind in _NAMES.items() for name in names.split()}
"""The types of the columns that are not texts."""
_OTHER_TABLES = ("dag", "task_instance", "variable", "connection", "slot_pool")


class Secret(NamedTuple):
    """A text as Airflow stores it: encrypted with its Fernet key, or plain."""

    text: str
    is_encrypted: bool


class AirflowVariable(NamedTuple):
    """A variable of Airflow's."""

    key: str
    value: Secret
    description: str


class AirflowConnection(NamedTuple):
    """A connection of Airflow's. `parts` are the fields that are never encrypted."""

    conn_id: str
    parts: dict[str, Any]
    password: Secret | None
    extra: Secret | None


class AirflowPool(Struct, frozen=True):
    """A pool of Airflow's, or of an export. -1 `slots`: no limit."""

    name: str
    slots: int
    description: str = ""
    include_deferred: bool = False


class AirflowDag(NamedTuple):
    """A DAG that Airflow would still run. `file`: its path; relative to the DAG folder since Airflow 3."""

    dag_id: str
    file: str
    is_paused: bool


class AirflowMetadata(NamedTuple):
    """The contents of an Airflow database that can be imported.

    Attributes:
        shown: The database, without secrets.
        generation: 2 or 3.
        runs: The runs that are to be imported.
        running: The runs that Airflow has begun and not ended, which cannot be imported: `DAG run_id`.
    """

    shown: str
    generation: int
    variables: list[AirflowVariable]
    connections: list[AirflowConnection]
    pools: list[AirflowPool]
    dags: list[AirflowDag]
    runs: list[ImportedRun]
    running: list[tuple[str, str]]


def read_metadata(url: str, *, n_runs: int = 0) -> AirflowMetadata:
    """Return the contents of an Airflow database.

    Args:
        url: As Airflow writes it in `database.sql_alchemy_conn`; the name of the driver in it is ignored.
        n_runs: How many of the newest runs of each DAG to return.

    Raises:
        SettingsError: The URL names no SQLite file or PostgreSQL database.
        StoreError: The database cannot be read.
        AsynschedError: It is not Airflow's.
    """
    try:
        parsed = parse_url(url)
    except SettingsError as exc:
        what = str(exc).removeprefix("database: ")
        raise SettingsError(f"Airflow's database: {what}. Only SQLite and PostgreSQL can be read.") from exc
    if parsed.path is not None and not parsed.path.is_file():
        raise SettingsError(f"Airflow's database: there is no file {parsed.path}.")
    return _reading(parsed, lambda conn: _read(conn, parsed.shown, n_runs))


def _reading(url: DatabaseUrl, query: Callable[[Connection], T]) -> T:
    """Return the result of a query that cannot write, and sees one moment."""
    if url.backend == "postgresql":
        from asynsched.store.engines.postgres import DirectPostgres  # the driver is loaded only where it is used

        with DirectPostgres(url, None) as database:
            return database.read(query)
    with store_errors(url.shown), _sqlite(url) as conn:
        return query(conn)


@contextmanager
def _sqlite(url: DatabaseUrl) -> Iterator[Connection]:
    assert url.path is not None
    uri = f"{url.path.as_uri()}?mode=ro"
    engine = sa.create_engine(
        "sqlite://", poolclass=NullPool, creator=lambda: sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)
    )
    with engine.begin() as conn:
        conn.exec_driver_sql("BEGIN")  # all queries see one moment
        yield conn


def _read(conn: Connection, shown: str, n_runs: int) -> AirflowMetadata:
    runs_have = _columns_of(conn, "dag_run")
    dates = runs_have & {"execution_date", "logical_date"}
    if not dates or not all(_columns_of(conn, name) for name in _OTHER_TABLES):
        raise AsynschedError(
            f"The database {shown} has no tables of Airflow's: name its metadata database, which Airflow calls"
            " database.sql_alchemy_conn."
        )
    if "run_type" not in runs_have:
        raise AsynschedError(
            f"The database {shown} is of Airflow 1 (migration {_last_migration(conn)}). Only those of Airflow 2.0 and"
            " later can be read: let an Airflow 2 upgrade it, or a copy of it."
        )
    dags = _dags(conn)
    runs, running = _Runs(conn, n_runs).read([dag.dag_id for dag in dags]) if n_runs else ([], [])
    return AirflowMetadata(
        shown, 3 if "logical_date" in dates else 2, _variables(conn), _connections(conn), _pools(conn), dags, runs,
        running,
    )  # fmt: skip


def _columns_of(conn: Connection, table: str) -> set[str]:
    inspector = sa.inspect(conn)
    return {column["name"] for column in inspector.get_columns(table)} if inspector.has_table(table) else set()


def _last_migration(conn: Connection) -> str:
    if not _columns_of(conn, "alembic_version"):
        return "unknown"
    return str(conn.scalar(sa.select(sa.column("version_num")).select_from(sa.table("alembic_version"))))


def _table(conn: Connection, name: str, columns: str, types: Mapping[str, Any] = _TYPES) -> sa.Subquery:
    """Return a table with these columns; one that the database lacks is None in each row."""
    known = _columns_of(conn, name)
    wanted: list[sa.ColumnClause[Any]] = [sa.column(one, types.get(one, sa.Text())) for one in columns.split()]
    table = sa.table(name, *(column for column in wanted if column.name in known))
    found = [column if column.name in known else sa.cast(None, column.type).label(column.name) for column in wanted]
    return sa.select(*found).select_from(table).subquery()


def _rows(conn: Connection, name: str, columns: str, order: str) -> Sequence[sa.Row[Any]]:
    table = _table(conn, name, columns)
    return conn.execute(sa.select(table).order_by(table.c[order])).all()


def _variables(conn: Connection) -> list[AirflowVariable]:
    rows = _rows(conn, "variable", "key val description is_encrypted", "key")
    return [
        AirflowVariable(row.key, Secret(row.val or "", bool(row.is_encrypted)), row.description or "") for row in rows
    ]


def _connections(conn: Connection) -> list[AirflowConnection]:
    plain = ["conn_type", "description", "host", "schema", "login", "port"]
    rows = _rows(
        conn, "connection", f"conn_id password extra is_encrypted is_extra_encrypted {' '.join(plain)}", "conn_id"
    )
    return [
        AirflowConnection(
            row.conn_id,
            {name: row._mapping[name] for name in plain},  # noqa: SLF001 - public in spite of its name
            Secret(row.password, bool(row.is_encrypted)) if row.password else None,
            Secret(row.extra, bool(row.is_extra_encrypted)) if row.extra else None,
        )
        for row in rows
    ]


def _pools(conn: Connection) -> list[AirflowPool]:
    rows = _rows(conn, "slot_pool", "pool slots description include_deferred", "pool")
    return [AirflowPool(row.pool, row.slots or 0, row.description or "", bool(row.include_deferred)) for row in rows]


def _dags(conn: Connection) -> list[AirflowDag]:
    rows = _rows(conn, "dag", "dag_id fileloc relative_fileloc is_paused is_active is_stale is_subdag", "dag_id")
    return [
        AirflowDag(row.dag_id, row.relative_fileloc or row.fileloc or "", bool(row.is_paused))
        for row in rows
        if row.is_active is not False and not row.is_stale and not row.is_subdag
    ]


class _Runs:
    """Reads runs with their task instances."""

    def __init__(self, conn: Connection, n_runs: int) -> None:
        self._conn = conn
        self._n_runs = n_runs
        self._date = "logical_date" if "logical_date" in _columns_of(conn, "dag_run") else "execution_date"
        # Airflow 2 pickles it.
        types = _TYPES | {"conf": sa.JSON() if self._date == "logical_date" else sa.LargeBinary()}
        self._runs = _table(
            conn, "dag_run",
            f"id dag_id run_id run_type state {self._date} data_interval_start data_interval_end run_after queued_at"
            " start_date end_date conf", types,
        )  # fmt: skip
        self._tasks = _table(
            conn, "task_instance",
            "dag_id run_id execution_date task_id map_index state try_number max_tries pool pool_slots queue"
            " priority_weight queued_dttm scheduled_dttm start_date end_date rendered_map_index",
        )  # fmt: skip
        # Before Airflow 2.2, a task instance knows the date of its run only.
        self._key = "run_id" if "run_id" in _columns_of(conn, "task_instance") else "execution_date"

    def read(self, dag_ids: Sequence[str]) -> tuple[list[ImportedRun], list[tuple[str, str]]]:
        """Return the runs to import, and the runs that Airflow has begun and not ended."""
        found, running = [], []
        for dag_id in dag_ids:
            rows = [row._mapping for row in self._rows_of(dag_id)]  # noqa: SLF001 - public in spite of its name
            tasks = self._tasks_of(dag_id, [row[self._key] for row in rows])
            for row in rows:
                run, begun = _run(row, self._date), tasks[row[self._key]]
                if run.state in FINISHED_RUN_STATES:
                    found.append(ImportedRun(run, tuple(map(_task, begun))))
                elif any(task["start_date"] is not None for task in begun):
                    running.append((dag_id, run.run_id))
                else:
                    found.append(ImportedRun(run, ()))
        return found, running

    def _tasks_of(self, dag_id: str, keys: Sequence[Any]) -> defaultdict[Any, list[Any]]:
        """Return the task instances of these runs of a DAG."""
        tasks = defaultdict(list)
        query = sa.select(self._tasks).where(self._tasks.c.dag_id == dag_id, self._tasks.c[self._key].in_(keys))
        for task in self._conn.execute(query):
            tasks[task._mapping[self._key]].append(task._mapping)  # noqa: SLF001
        return tasks

    def _rows_of(self, dag_id: str) -> list[sa.Row[Any]]:
        """Return the newest runs of a DAG, and the earlier ones that Airflow computes the next run from.

        Airflow continues after the newest run that was scheduled or backfilled. Here the schedule continues after the
        newest scheduled one, and passes over the dates of backfills.
        """
        date = self._runs.c[self._date]
        order = sa.func.coalesce(self._runs.c.run_after, date)
        mine = sa.select(self._runs).where(self._runs.c.dag_id == dag_id)
        scheduled = mine.where(self._runs.c.run_type == DagRunType.SCHEDULED).order_by(date.desc())
        found = {row.id: row for row in self._conn.execute(mine.order_by(order.desc()).limit(self._n_runs))}
        if (last := self._conn.execute(scheduled.limit(1)).first()) is not None:
            found[last.id] = last
            backfills = mine.where(
                self._runs.c.run_type == DagRunType.BACKFILL, date > last._mapping[self._date]  # noqa: SLF001
            )  # fmt: skip
            found |= {row.id: row for row in self._conn.execute(backfills)}
        return [found[row_id] for row_id in sorted(found)]


def _run(row: Any, date: str) -> DagRunRow:
    logical_date, end = _utc(row[date]), _utc(row["data_interval_end"])
    run_type = RUN_TYPES.get(row["run_type"], DagRunType.MANUAL)
    # Airflow 2 has no run_after: it creates a scheduled run at the end of its data interval.
    due = _utc(row["run_after"]) or (end if run_type == DagRunType.SCHEDULED else None)
    run_after = due or _utc(row["queued_at"]) or logical_date or _utc(row["start_date"])
    assert run_after is not None
    start = _utc(row["data_interval_start"])
    if run_type == DagRunType.SCHEDULED:
        start, end = start or logical_date, end or logical_date
    is_ended = row["state"] in FINISHED_RUN_STATES
    return DagRunRow(
        dag_id=row["dag_id"],
        run_id=row["run_id"],
        run_type=run_type,
        state=row["state"] if is_ended else DagRunState.QUEUED,
        reason=REASON,
        logical_date=logical_date,
        data_interval_start=start,
        data_interval_end=end,
        run_after=run_after,
        queued_at=_utc(row["queued_at"]) or run_after,
        started_at=_utc(row["start_date"]) if is_ended else None,
        ended_at=(_utc(row["end_date"]) or run_after) if is_ended else None,
        conf=_conf(row["conf"]),
    )


def _task(row: Any) -> TaskInstanceRow:
    return TaskInstanceRow(
        dag_run_id=0,
        task_id=row["task_id"],
        map_index=-1 if row["map_index"] is None else row["map_index"],
        state=row["state"] if row["state"] in FINISHED_TASK_STATES else None,
        reason=REASON,
        try_number=max(0, row["try_number"] or 0),
        max_tries=max(0, row["max_tries"] or 0),
        pool=row["pool"] or DEFAULT_POOL,
        pool_slots=row["pool_slots"] or 1,
        queue=row["queue"] or "default",
        priority_weight=row["priority_weight"] or 1,
        scheduled_at=_utc(row["scheduled_dttm"]),
        queued_at=_utc(row["queued_dttm"]),
        started_at=_utc(row["start_date"]),
        ended_at=_utc(row["end_date"]),
        rendered_map_index=row["rendered_map_index"],
    )


def _utc(value: datetime | None) -> datetime | None:
    """Return an instant of Airflow's, which SQLite has without its zone, UTC."""
    if value is None:
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class _PlainUnpickler(pickle.Unpickler):
    """Reads values of Python's own types. Any class or function could be a command to run."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not read")


def _conf(value: Any) -> dict[str, Any]:
    """Return the conf of a run: JSON since Airflow 3, a pickle before. An unreadable one counts as empty."""
    try:
        if isinstance(value, bytes):
            # Through JSON, as Airflow passes it on: keys become texts.
            value = json.loads(json.dumps(_PlainUnpickler(io.BytesIO(value)).load()))
        json.dumps(value, ensure_ascii=False).encode()
    except Exception:  # noqa: BLE001 - a broken pickle may raise anything
        return {}
    return value if isinstance(value, dict) else {}
