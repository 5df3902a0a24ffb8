"""Metadata databases of Airflow, with the tables and columns that `asynsched migrate` reads.

Source of the columns and their types: the models of Airflow 2.0, 2.2, 2.11 and 3.3, and the migrations of 2.x.
"""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from cryptography.fernet import Fernet

from asynsched.store.engines.opening import connect_direct
from asynsched.store.engines.urls import parse_url

TABLES = ("variable", "connection", "slot_pool", "dag", "dag_run", "task_instance")
INSTANTS = (
    "execution_date", "logical_date", "start_date", "end_date", "queued_at", "queued_dttm", "data_interval_start",
    "data_interval_end", "run_after",
)  # fmt: skip
INSTANT = {"sqlite": "TIMESTAMP", "postgresql": "TIMESTAMP WITH TIME ZONE"}
BYTES = {"sqlite": "BLOB", "postgresql": "BYTEA"}
JSON = {"sqlite": "JSON", "postgresql": "JSONB"}
BOTH = """
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
CREATE TABLE variable (
    id INTEGER PRIMARY KEY, key VARCHAR(250) UNIQUE, val TEXT, description TEXT, is_encrypted BOOLEAN);
CREATE TABLE connection (
    id INTEGER PRIMARY KEY, conn_id VARCHAR(250) NOT NULL UNIQUE, conn_type VARCHAR(500) NOT NULL, description TEXT,
    host VARCHAR(500), schema VARCHAR(500), login TEXT, password TEXT, port INTEGER, is_encrypted BOOLEAN,
    is_extra_encrypted BOOLEAN, extra TEXT);
CREATE TABLE slot_pool (
    id INTEGER PRIMARY KEY, pool VARCHAR(256) UNIQUE, slots INTEGER, description TEXT,
    include_deferred BOOLEAN NOT NULL);
"""
OF_GENERATION = {
    2: """
CREATE TABLE dag (
    dag_id VARCHAR(250) NOT NULL PRIMARY KEY, is_paused BOOLEAN, is_subdag BOOLEAN, is_active BOOLEAN,
    fileloc VARCHAR(2000), next_dagrun {instant}, next_dagrun_data_interval_start {instant},
    next_dagrun_data_interval_end {instant}, next_dagrun_create_after {instant});
CREATE TABLE dag_run (
    id INTEGER PRIMARY KEY, dag_id VARCHAR(250) NOT NULL, queued_at {instant}, execution_date {instant} NOT NULL,
    start_date {instant}, end_date {instant}, state VARCHAR(50), run_id VARCHAR(250) NOT NULL,
    run_type VARCHAR(50) NOT NULL, conf {bytes}, data_interval_start {instant}, data_interval_end {instant},
    UNIQUE (dag_id, execution_date), UNIQUE (dag_id, run_id));
CREATE TABLE task_instance (
    task_id VARCHAR(250) NOT NULL, dag_id VARCHAR(250) NOT NULL, run_id VARCHAR(250) NOT NULL,
    map_index INTEGER DEFAULT '-1' NOT NULL, start_date {instant}, end_date {instant}, state VARCHAR(20),
    try_number INTEGER, max_tries INTEGER DEFAULT '-1', pool VARCHAR(256) NOT NULL, pool_slots INTEGER NOT NULL,
    queue VARCHAR(256), priority_weight INTEGER, queued_dttm {instant},
    PRIMARY KEY (dag_id, task_id, run_id, map_index));
INSERT INTO alembic_version VALUES ('5f2621c13b39');
""",
    3: """
CREATE TABLE dag (
    dag_id VARCHAR(250) NOT NULL PRIMARY KEY, is_paused BOOLEAN, is_stale BOOLEAN NOT NULL, fileloc VARCHAR(2000),
    relative_fileloc VARCHAR(2000), next_dagrun {instant}, next_dagrun_data_interval_start {instant},
    next_dagrun_data_interval_end {instant}, next_dagrun_create_after {instant});
CREATE TABLE dag_run (
    id INTEGER PRIMARY KEY, dag_id VARCHAR(250) NOT NULL, queued_at {instant}, logical_date {instant},
    start_date {instant}, end_date {instant}, state VARCHAR(50), run_id VARCHAR(250) NOT NULL,
    run_type VARCHAR(50) NOT NULL, conf {json}, data_interval_start {instant}, data_interval_end {instant},
    run_after {instant} NOT NULL, backfill_id INTEGER, UNIQUE (dag_id, logical_date), UNIQUE (dag_id, run_id));
CREATE TABLE task_instance (
    id VARCHAR(36) NOT NULL PRIMARY KEY, task_id VARCHAR(250) NOT NULL, dag_id VARCHAR(250) NOT NULL,
    run_id VARCHAR(250) NOT NULL, map_index INTEGER DEFAULT '-1' NOT NULL, start_date {instant}, end_date {instant},
    state VARCHAR(20), try_number INTEGER NOT NULL, max_tries INTEGER DEFAULT '-1' NOT NULL,
    pool VARCHAR(256) NOT NULL, pool_slots INTEGER NOT NULL, queue VARCHAR(256), priority_weight INTEGER,
    queued_dttm {instant}, scheduled_dttm {instant}, rendered_map_index VARCHAR(250),
    UNIQUE (dag_id, task_id, run_id, map_index));
INSERT INTO alembic_version VALUES ('fde9ed84d07b');
""",
}
_TASK_OF_RUN = "task_id VARCHAR(250) NOT NULL, dag_id VARCHAR(250) NOT NULL, {} NOT NULL,\n"
BEFORE = (
    ("2.7", ",\n    include_deferred BOOLEAN NOT NULL", ""),
    ("2.3", "map_index INTEGER DEFAULT '-1' NOT NULL, ", ""),
    ("2.3", ", map_index)", ")"),
    ("2.2", _TASK_OF_RUN.format("run_id VARCHAR(250)"), _TASK_OF_RUN.format("execution_date {instant}")),
    ("2.2", "(dag_id, task_id, run_id)", "(dag_id, task_id, execution_date)"),
    ("2.2", ", data_interval_start {instant}, data_interval_end {instant}", ""),
    ("2.1", "queued_at {instant}, ", ""),
    ("2.1", "val TEXT, description TEXT", "val TEXT"),
    ("2.0", "run_type VARCHAR(50) NOT NULL, ", ""),
    ("2.0", "conn_type VARCHAR(500) NOT NULL, description TEXT", "conn_type VARCHAR(500)"),
)
"""Each version of Airflow that changed the tables, the text of the change, and the text before."""


def instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC)


class Metadata:
    """The metadata database of an Airflow 2 or 3, or of an older version. Instants are texts without a zone, in UTC.

    Values that the tables of the version have no column for are left out.
    """

    def __init__(self, url: str, generation: int, version: str = "3") -> None:
        self.url = url
        self.generation = generation
        self.key = Fernet.generate_key().decode()
        self._date = {2: "execution_date", 3: "logical_date"}[generation]
        self._conf = {2: sa.PickleType(), 3: sa.JSON()}[generation]
        self._number = 0
        kind = parse_url(url).backend
        text = BOTH + OF_GENERATION[generation]
        for since, now, before in BEFORE:
            if version < since:
                assert now in text
                text = text.replace(now, before)
        text = text.format(instant=INSTANT[kind], bytes=BYTES[kind], json=JSON[kind])
        self._execute(*(sa.text(statement) for statement in text.split(";\n") if statement.strip()))

    def encrypted(self, text: str) -> str:
        return Fernet(self.key).encrypt(text.encode()).decode()

    def add_dag(self, dag_id: str, file: str, *, is_paused: bool = False) -> None:
        where = {2: {"is_active": True, "is_subdag": False}, 3: {"is_stale": False, "relative_fileloc": file}}
        self._add("dag", dag_id=dag_id, is_paused=is_paused, fileloc=f"/airflow/dags/{file}", **where[self.generation])

    def add_run(
        self, dag_id: str, run_id: str, date: str, *, run_type: str, state: str = "success", end: str | None = None,
        conf: object = None,
    ) -> None:  # fmt: skip
        """Add a run of a logical date and the end of its data interval; with a task instance `work` if it has begun."""
        at, is_begun, is_ended = instant(date), state != "queued", state in ("success", "failed")
        times = {"start_date": at if is_begun else None, "end_date": at if is_ended else None}
        until = instant(end or date)
        self.add(
            "dag_run", **times, dag_id=dag_id, run_id=run_id, run_type=run_type, state=state, **{self._date: at},
            queued_at=at, data_interval_start=at, data_interval_end=until, conf=conf or {},
            **({} if self.generation == 2 else {"run_after": until}),
        )  # fmt: skip
        if is_begun:
            self._add(
                "task_instance", **times, task_id="work", dag_id=dag_id, run_id=run_id, map_index=-1, state=state,
                try_number=2, max_tries=1, pool="default_pool", pool_slots=1, queue="default", priority_weight=1,
                queued_dttm=at, **({"execution_date": at} if self.generation == 2 else {"id": str(self._number)}),
            )  # fmt: skip

    def add(self, table: str, **values: Any) -> None:
        """Add a row, with the next number as its id."""
        self._number += 1
        self._add(table, id=self._number, **values)

    def contents(self) -> dict[str, list[str]]:
        """Return all rows of the tables, as text."""

        def rows(conn: sa.Connection, table: str) -> list[str]:
            return sorted(map(str, conn.exec_driver_sql(f"SELECT * FROM {table}")))

        with connect_direct(parse_url(self.url)) as database:
            return {table: database.read(rows, table) for table in TABLES}

    def _add(self, table: str, **values: Any) -> None:
        types = {"conf": self._conf} | {name: sa.DateTime(timezone=True) for name in values if name in INSTANTS}
        with connect_direct(parse_url(self.url)) as database:
            known = database.read(lambda conn: {column["name"] for column in sa.inspect(conn).get_columns(table)})
        values = {name: value for name, value in values.items() if name in known}
        columns = [sa.column(name, types.get(name)) for name in values]
        self._execute(sa.insert(sa.table(table, *columns)).values(values))

    def _execute(self, *statements: Any) -> None:
        def execute(conn: sa.Connection) -> None:
            for statement in statements:
                conn.execute(statement)

        with connect_direct(parse_url(self.url)) as database:
            database.write(execute)
