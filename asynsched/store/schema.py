"""The tables, in the order in which they refer to one another.

Times are UTC, aware in Python; JSON columns hold what msgspec encoded. Key order is lock order: a transaction that
touches several rows of a table touches them by ascending primary key. Names and URIs of assets may be longer than an
index can hold: a digest stands for them (`assets/names.py`).
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, LargeBinary, String, Text, UniqueConstraint

ID_LENGTH = 250
ONLY_WHERE = "only where"
"""What an index says of itself (`info`) when it holds a part of the rows: the condition."""
metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


@sa.event.listens_for(metadata, "before_create")
def _make_indexes_partial(_: sa.MetaData, connection: sa.Connection, **__: object) -> None:
    """Give indexes their conditions, in the words of the database that the tables are made in.

    To name them as `sqlite_where` and `postgresql_where` loads both dialects, in each command.
    """
    for index in (index for table in metadata.tables.values() for index in table.indexes):
        if ONLY_WHERE in index.info:
            index.dialect_options[connection.dialect.name]["where"] = sa.text(index.info[ONLY_WHERE])


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(instant: datetime) -> int:
    """Return the microseconds since 1970 of an aware datetime: how SQLite keeps it."""
    return (instant - EPOCH) // timedelta(microseconds=1)


class Instant(sa.TypeDecorator[datetime]):
    """An aware UTC datetime. SQLite keeps microseconds since 1970, so that rows sort and compare as numbers."""

    impl = sa.BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.TIMESTAMP(timezone=True))
        return dialect.type_descriptor(sa.BigInteger())

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> object:
        if value is None or dialect.name == "postgresql":
            return value
        return microseconds(value)

    def process_result_value(self, value: object, dialect: sa.Dialect) -> datetime | None:
        if isinstance(value, int):
            return EPOCH + timedelta(microseconds=value)
        return value.astimezone(UTC) if isinstance(value, datetime) else None


BigId = sa.BigInteger().with_variant(Integer, "sqlite")
Json = LargeBinary
"""JSON as bytes: encoded and decoded by msgspec, never searched by the database."""


dag = sa.Table(
    "dag",
    metadata,
    Column("dag_id", String(ID_LENGTH), primary_key=True),
    Column("file_path", Text, nullable=False),
    Column("is_active", Boolean, nullable=False, default=True),
    Column("is_paused", Boolean, nullable=False, default=False),
    Column("version_id", BigId, ForeignKey("dag_version.id"), nullable=True),
    Column("schedule_summary", Text, nullable=False, default=""),
    Column("tags", Json, nullable=False, default=b"[]"),
    Column("max_active_runs", Integer, nullable=False),
    Column("deadlines", Json, nullable=False, default=b"[]"),
    Column("next_dagrun_logical_date", Instant, nullable=True),
    Column("next_dagrun_data_interval_start", Instant, nullable=True),
    Column("next_dagrun_data_interval_end", Instant, nullable=True),
    Column("next_dagrun_create_after", Instant, nullable=True),
    Column("last_examined_at", Instant, nullable=True),
    Column("timetable_plan", Json, nullable=True),
    Column("updated_at", Instant, nullable=False),
    Index("ix_dag_next_dagrun_create_after", "next_dagrun_create_after"),
    Index("ix_dag_file_path", "file_path"),
)
"""One row a DAG. `is_active` is False once its file is gone, or parsed well without it. `last_examined_at` is the
`updated_at` that its next run was computed from: where it is older, or missing, that is still to be done.
`timetable_plan`: the next runs by a timetable of the author's own."""

dag_version = sa.Table(
    "dag_version",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("dag_id", String(ID_LENGTH), nullable=False),
    Column("number", Integer, nullable=False),
    Column("version_hash", String(64), nullable=False),
    Column("file_path", Text, nullable=False),
    Column("serialized", Json, nullable=False),
    Column("sources", Json, nullable=False),
    Column("created_at", Instant, nullable=False),
    UniqueConstraint("dag_id", "number"),
    Index("ix_dag_version_dag_id_version_hash", "dag_id", "version_hash"),
)
"""Immutable. `serialized` is a SerializedDag, `sources` a list of {path, module, content_hash}."""

source = sa.Table(
    "source",
    metadata,
    Column("content_hash", String(64), primary_key=True),
    Column("text", Text, nullable=False),
)

dag_file = sa.Table(
    "dag_file",
    metadata,
    Column("path", Text, primary_key=True),
    Column("content_hash", String(64), nullable=False),
    Column("modified_ns", sa.BigInteger, nullable=False),
    Column("size", sa.BigInteger, nullable=False),
    Column("local_modules", Json, nullable=False, default=b"[]"),
    Column("parsed_at", Instant, nullable=False),
    Column("parse_seconds", Float, nullable=False),
    Column("n_dags", Integer, nullable=False),
    Column("n_errors", Integer, nullable=False),
    Column("runtime", Text, nullable=False, default=""),
)
"""What was last parsed of each file: a start with nothing changed parses nothing."""

parse_claim = sa.Table(
    "parse_claim",
    metadata,
    Column("path", Text, primary_key=True),
    Column("scheduler_id", String(64), nullable=False),
    Column("claimed_at", Instant, nullable=False),
)
"""Which scheduler parses a file at this moment, where there are several."""

schema_compatibility = sa.Table(
    "schema_compatibility",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("oldest_revision", String(32), nullable=False),
)
"""One row: the oldest schema revision whose asynsched may go on beside one that has migrated the database."""

import_error = sa.Table(
    "import_error",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("file_path", Text, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("message", Text, nullable=False),
    Column("traceback", Text, nullable=False, default=""),
    Column("line", Integer, nullable=True),
    Column("dag_id", Text, nullable=True),
    Column("output", Text, nullable=False, default=""),
    Column("is_warning", Boolean, nullable=False, default=False),
    Column("created_at", Instant, nullable=False),
    Index("ix_import_error_file_path", "file_path"),
)

dag_run = sa.Table(
    "dag_run",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("dag_id", String(ID_LENGTH), nullable=False),
    Column("run_id", String(ID_LENGTH), nullable=False),
    Column("run_type", String(32), nullable=False),
    Column("state", String(32), nullable=False),
    Column("reason", Text, nullable=False, default=""),
    Column("logical_date", Instant, nullable=True),
    Column("data_interval_start", Instant, nullable=True),
    Column("data_interval_end", Instant, nullable=True),
    Column("run_after", Instant, nullable=False),
    Column("queued_at", Instant, nullable=False),
    Column("started_at", Instant, nullable=True),
    Column("ended_at", Instant, nullable=True),
    Column("conf", Json, nullable=False, default=b"{}"),
    Column("version_id", BigId, ForeignKey("dag_version.id"), nullable=True),
    Column("scheduler_id", String(64), nullable=True),
    Column("lease_epoch", sa.BigInteger, nullable=False, default=0),
    Column("backfill_id", BigId, nullable=True),
    Column("stop", Text, nullable=True),
    UniqueConstraint("dag_id", "run_id"),
    UniqueConstraint("dag_id", "logical_date"),
    Index("ix_dag_run_dag_id_run_after", "dag_id", "run_after"),
    Index("ix_dag_run_ended_at", "ended_at", info={ONLY_WHERE: "ended_at IS NOT NULL"}),
    Index("ix_dag_run_version_id", "version_id"),
    Index("ix_dag_run_running", "dag_id", info={ONLY_WHERE: "state = 'running'"}),
    Index("ix_dag_run_queued_of_dag", "dag_id", "run_after", "id",
          info={ONLY_WHERE: "state = 'queued' AND backfill_id IS NULL"}),
    Index("ix_dag_run_queued_of_backfill", "backfill_id", "logical_date",
          info={ONLY_WHERE: "state = 'queued' AND backfill_id IS NOT NULL"}),
    Index("ix_dag_run_scheduled", "dag_id", "logical_date", info={ONLY_WHERE: "run_type = 'scheduled'"}),
)  # fmt: skip
"""`scheduler_id` and `lease_epoch`: who owns the run, and under which lease its rows may be written.

`stop`: JSON of why and how a run is being stopped, so that whoever takes it up goes on with that.
"""

task_instance = sa.Table(
    "task_instance",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("dag_run_id", BigId, ForeignKey("dag_run.id", ondelete="CASCADE"), nullable=False),
    Column("task_id", String(ID_LENGTH), nullable=False),
    Column("map_index", Integer, nullable=False, default=-1),
    Column("state", String(32), nullable=True),
    Column("reason", Text, nullable=False, default=""),
    Column("try_number", Integer, nullable=False, default=0),
    Column("max_tries", Integer, nullable=False, default=0),
    Column("machine_kills", Integer, nullable=False, default=0),
    Column("token", String(32), nullable=True),
    Column("lease_epoch", sa.BigInteger, nullable=False, default=0),
    Column("priority_weight", sa.BigInteger, nullable=False, default=1),
    Column("pool", String(256), nullable=False),
    Column("pool_slots", Integer, nullable=False, default=1),
    Column("queue", String(256), nullable=False, default="default"),
    Column("executor", String(256), nullable=True),
    Column("scheduled_at", Instant, nullable=True),
    Column("queued_at", Instant, nullable=True),
    Column("started_at", Instant, nullable=True),
    Column("ended_at", Instant, nullable=True),
    Column("next_try_at", Instant, nullable=True),
    Column("rendered_map_index", Text, nullable=True),
    Column("result_length", Integer, nullable=True),
    Column("deferral", Text, nullable=True),
    Column("ignored_dependencies", Text, nullable=True),
    UniqueConstraint("dag_run_id", "task_id", "map_index"),
    Index("ix_task_instance_slots", "pool", "state",
          info={ONLY_WHERE: "state IN ('queued', 'running', 'restarting', 'deferred')"}),
)  # fmt: skip
"""`try_number` counts from 1, and is 0 before the first try. `token` names the try that is queued or running.
`next_try_at` is when a retry or a rescheduled sensor is due, or a deferral times out. `deferral` is what a deferred
task instance waits for, and then what came of it, as JSON, encrypted; it stays until the try ends. `result_length`:
how many values `expand` over its result gives, -1 where that is no list or dict; NULL when there is no result.
`ignored_dependencies`: what somebody who forced it wants to be ignored, names with spaces between them."""

task_instance_history = sa.Table(
    "task_instance_history",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("dag_run_id", BigId, ForeignKey("dag_run.id", ondelete="CASCADE"), nullable=False),
    Column("task_id", String(ID_LENGTH), nullable=False),
    Column("map_index", Integer, nullable=False, default=-1),
    Column("try_number", Integer, nullable=False),
    Column("state", String(32), nullable=True),
    Column("reason", Text, nullable=False, default=""),
    Column("token", String(32), nullable=True),
    Column("scheduled_at", Instant, nullable=True),
    Column("queued_at", Instant, nullable=True),
    Column("started_at", Instant, nullable=True),
    Column("ended_at", Instant, nullable=True),
    UniqueConstraint("dag_run_id", "task_id", "map_index", "token"),
)
"""Earlier tries, kept when the next one begins."""

pool = sa.Table(
    "pool",
    metadata,
    Column("name", String(256), primary_key=True),
    Column("slots", Integer, nullable=False),
    Column("description", Text, nullable=False, default=""),
    Column("include_deferred", Boolean, nullable=False, default=False),
    Column("settled_by", sa.BigInteger, nullable=True),
)
"""`slots` of -1 is no limit. What is taken is counted from task_instance, never stored. `settled_by`: lease epoch of a
scheduler that alone has settled slots since it counted what others have; NULL where others may have, too."""

xcom = sa.Table(
    "xcom",
    metadata,
    Column("dag_run_id", BigId, ForeignKey("dag_run.id", ondelete="CASCADE"), primary_key=True),
    Column("task_id", String(ID_LENGTH), primary_key=True),
    Column("map_index", Integer, primary_key=True, default=-1),
    Column("key", String(512), primary_key=True),
    Column("value", Json, nullable=False),
    Column("created_at", Instant, nullable=False),
)

scheduler = sa.Table(
    "scheduler",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("hostname", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("home", Text, nullable=False),
    Column("lease_epoch", sa.BigInteger, nullable=False),
    Column("lease_until", Instant, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("heartbeat_at", Instant, nullable=False),
    Column("version", String(64), nullable=False),
    Column("parallelism", Integer, nullable=False, default=0),
    Column("executors", Json, nullable=False, default=b"{}"),
    Column("takeover_seconds", Float, nullable=False, default=0.0),
    Column("ended_at", Instant, nullable=True),
)
"""Who serves, and who did. `takeover_seconds`: how long after its last renewal no try of it can run any more.
`ended_at`: it has left, or another one has given it up; it renews no lease from then on. The row stays, so that no
epoch is given twice."""

variable = sa.Table(
    "variable",
    metadata,
    Column("key", String(ID_LENGTH), primary_key=True),
    Column("value", Text, nullable=False),
    Column("description", Text, nullable=False, default=""),
)
"""`value` is encrypted."""

connection = sa.Table(
    "connection",
    metadata,
    Column("conn_id", String(ID_LENGTH), primary_key=True),
    Column("conn_type", String(500), nullable=False),
    Column("description", Text, nullable=False, default=""),
    Column("secret", Text, nullable=False),
)
"""`secret`: encrypted, JSON of everything else: host, schema, login, password, port, extra."""

fernet_key = sa.Table(
    "fernet_key",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("key_id", String(32), nullable=False),
)
"""One row: the name of the key that secrets are encrypted with; none before there are any."""

audit = sa.Table(
    "audit",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("at", Instant, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", String(64), nullable=False),
    Column("dag_id", String(ID_LENGTH), nullable=True),
    Column("run_id", String(ID_LENGTH), nullable=True),
    Column("task_id", String(ID_LENGTH), nullable=True),
    Column("detail", Json, nullable=False, default=b"{}"),
    Index("ix_audit_dag_id_at", "dag_id", "at"),
)
"""Who did what from outside: trigger, clear, pause, set."""


asset = sa.Table(
    "asset",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("uri", Text, nullable=False),
    Column("group_name", Text, nullable=False, default="asset"),
    Column("extra", Json, nullable=False, default=b"{}"),
    Column("created_at", Instant, nullable=False),
)
"""One row for each name with a URI that a DAG, or an event, has ever named."""

asset_alias = sa.Table(
    "asset_alias",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("group_name", Text, nullable=False, default="asset"),
)

asset_alias_asset = sa.Table(
    "asset_alias_asset",
    metadata,
    Column("alias_id", BigId, ForeignKey("asset_alias.id", ondelete="CASCADE"), primary_key=True),
    Column("asset_id", BigId, ForeignKey("asset.id", ondelete="CASCADE"), primary_key=True),
    Index("ix_asset_alias_asset_asset_id", "asset_id"),
)
"""The assets that an alias was found to stand for, when a task updated them through it."""

asset_reference = sa.Table(
    "asset_reference",
    metadata,
    Column("dag_id", String(ID_LENGTH), primary_key=True),
    Column("role", String(16), primary_key=True),
    Column("task_id", String(ID_LENGTH), primary_key=True, default=""),
    Column("digest", String(64), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("name", Text, nullable=False),
    Column("uri", Text, nullable=False, default=""),
    Column("created_at", Instant, nullable=False),
    Index("ix_asset_reference_digest_role", "digest", "role"),
)
"""Where a DAG's newest version names an asset, an alias or a reference (`kind`): in its schedule, or as inlet or outlet
of a task (`role`)."""

asset_event = sa.Table(
    "asset_event",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("asset_id", BigId, ForeignKey("asset.id", ondelete="CASCADE"), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("extra", Json, nullable=False, default=b"{}"),
    Column("source_dag_id", String(ID_LENGTH), nullable=True),
    Column("source_run_id", String(ID_LENGTH), nullable=True),
    Column("source_task_id", String(ID_LENGTH), nullable=True),
    Column("source_map_index", Integer, nullable=False, default=-1),
    Column("token", String(32), nullable=True),
    Column("ordinal", Integer, nullable=False, default=0),
    UniqueConstraint("token", "ordinal"),
    Index("ix_asset_event_asset_id_created_at", "asset_id", "created_at"),
)
"""An update of an asset. `token` and `ordinal` tell which event of which try it is: a batch that is applied again adds
none. Events from outside have no source and no token."""

asset_alias_event = sa.Table(
    "asset_alias_event",
    metadata,
    Column("alias_id", BigId, ForeignKey("asset_alias.id", ondelete="CASCADE"), primary_key=True),
    Column("event_id", BigId, ForeignKey("asset_event.id", ondelete="CASCADE"), primary_key=True),
    Index("ix_asset_alias_event_event_id", "event_id"),
)
"""The aliases through which a task updated an asset."""

asset_dag_run_queue = sa.Table(
    "asset_dag_run_queue",
    metadata,
    Column("dag_id", String(ID_LENGTH), primary_key=True),
    Column("event_id", BigId, ForeignKey("asset_event.id", ondelete="CASCADE"), primary_key=True),
    Column("is_examined", Boolean, nullable=False, default=False),
    Index("ix_asset_dag_run_queue_event_id", "event_id"),
    Index("ix_asset_dag_run_queue_unexamined", "dag_id", info={ONLY_WHERE: "NOT is_examined"}),
)
"""The events that a DAG waits for and that no run of it has consumed. `is_examined`: they were not enough so far."""

dag_run_asset_event = sa.Table(
    "dag_run_asset_event",
    metadata,
    Column("dag_run_id", BigId, ForeignKey("dag_run.id", ondelete="CASCADE"), primary_key=True),
    Column("event_id", BigId, ForeignKey("asset_event.id", ondelete="CASCADE"), primary_key=True),
    Index("ix_dag_run_asset_event_event_id", "event_id"),
)
"""The events that a run consumed: those that triggered it."""


callback_request = sa.Table(
    "callback_request",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("dag_run_id", BigId, ForeignKey("dag_run.id", ondelete="CASCADE"), nullable=False),
    Column("task_id", String(ID_LENGTH), nullable=False, default=""),
    Column("map_index", Integer, nullable=False, default=-1),
    Column("try_number", Integer, nullable=False, default=0),
    Column("event", String(32), nullable=False),
    Column("reason", Text, nullable=False, default=""),
    Column("state", String(32), nullable=False, default="queued"),
    Column("token", String(32), nullable=True),
    Column("attempts", Integer, nullable=False, default=0),
    Column("created_at", Instant, nullable=False),
    Column("caused_by", Text, nullable=False, default=""),
    Column("scheduler_id", String(64), nullable=True),
    UniqueConstraint(
        "dag_run_id", "task_id", "map_index", "try_number", "event", "created_at", name="uq_callback_request_event"
    ),
    Index("ix_callback_request_state", "state"),
)
"""Written in the transaction of the state change that caused it. No task_id: a callback of the run. `caused_by` is
JSON of the CausingTry that a task's callback is about. `scheduler_id`: who runs it, or ran it last.

Unique, so that a transaction that is applied again adds nothing; a run that ends once more has another `created_at`."""

deadline = sa.Table(
    "deadline",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("dag_run_id", BigId, ForeignKey("dag_run.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("name", Text, nullable=False, default=""),
    Column("due_at", Instant, nullable=False),
    Column("state", String(32), nullable=False, default="pending"),
    UniqueConstraint("dag_run_id", "number"),
    Index("ix_deadline_pending", "due_at", info={ONLY_WHERE: "state = 'pending'"}),
)
"""Until when a run is to have succeeded. `number` is its place among the DAG's deadlines; `state` is pending, met or
missed."""


run_request = sa.Table(
    "run_request",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("dag_run_id", BigId, ForeignKey("dag_run.id", ondelete="CASCADE"), nullable=False),
    Column("request", Json, nullable=False),
    Column("actor", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Index("ix_run_request_dag_run_id", "dag_run_id"),
)
"""What somebody wants done with a running run. The scheduler that owns the run does it, and deletes the row."""

backfill = sa.Table(
    "backfill",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("dag_id", String(ID_LENGTH), nullable=False),
    Column("from_date", Instant, nullable=False),
    Column("to_date", Instant, nullable=False),
    Column("reprocess", String(32), nullable=False),
    Column("is_reverse", Boolean, nullable=False),
    Column("max_active_runs", Integer, nullable=False),
    Column("conf", Json, nullable=False),
    Column("is_paused", Boolean, nullable=False, default=False),
    Column("actor", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("cancelled_at", Instant, nullable=True),
    Index("ix_backfill_dag_id", "dag_id"),
)
"""Whether it has ended is seen from its runs, and stored nowhere."""

backfill_dag_run = sa.Table(
    "backfill_dag_run",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("backfill_id", BigId, ForeignKey("backfill.id", ondelete="CASCADE"), nullable=False),
    Column("dag_run_id", BigId, ForeignKey("dag_run.id", ondelete="SET NULL"), nullable=True),
    Column("logical_date", Instant, nullable=False),
    Column("sort_ordinal", Integer, nullable=False),
    Column("exception_reason", String(64), nullable=True),
    UniqueConstraint("backfill_id", "dag_run_id"),
    Index("ix_backfill_dag_run_dag_run_id", "dag_run_id"),
)
"""The dates of a backfill: the run of each, or why it has none (Airflow's words)."""
