"""The first tables.

They are here as they were then: `schema.py` has them as they are now.
"""

from typing import Any, NamedTuple

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Index, UniqueConstraint

from asynsched.store.migrations.triggers_0001 import make_triggers

revision = "0001"
down_revision = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INSTANT = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
NAME, WORD, TEXT = sa.String(250), sa.String(32), sa.Text()
STRING_16, STRING_64, STRING_256, STRING_500, STRING_512 = (sa.String(length) for length in (16, 64, 256, 500, 512))
INTEGER, BIG, FLOAT, BOOLEAN, BYTES = sa.Integer(), sa.BigInteger(), sa.Float(), sa.Boolean(), sa.LargeBinary()
metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def upgrade() -> None:
    """Create every table, and the triggers that number changes."""
    metadata.create_all(op.get_bind(), checkfirst=False)
    make_triggers(op.get_bind())


class _Kind(NamedTuple):
    """A kind of column that may be NULL, or refers to another table."""

    type: "sa.types.TypeEngine[Any]"
    nullable: bool = False
    refers_to: str = ""
    ondelete: str | None = None


def _null(kind: "sa.types.TypeEngine[Any]") -> _Kind:
    return _Kind(kind, nullable=True)


RUN = _Kind(BIG_ID, refers_to="dag_run.id", ondelete="CASCADE")
RUN_OR_NULL = _Kind(BIG_ID, nullable=True, refers_to="dag_run.id", ondelete="SET NULL")
VERSION = _Kind(BIG_ID, nullable=True, refers_to="dag_version.id")
ASSET, ALIAS, EVENT, BACKFILL = (
    _Kind(BIG_ID, refers_to=f"{table}.id", ondelete="CASCADE")
    for table in ("asset", "asset_alias", "asset_event", "backfill")
)
TRIGGER = _Kind(BIG_ID, refers_to="asset_trigger.id", ondelete="CASCADE")
USER_OR_NULL = _Kind(BIG_ID, nullable=True, refers_to="user.id", ondelete="CASCADE")


def _table(name: str, key: str, /, *rest: sa.Constraint | Index, **columns: "sa.types.TypeEngine[Any] | _Kind") -> None:
    sa.Table(
        name, metadata, *(_column(column, kind, key.split()) for column, kind in columns.items()), *rest,
        sqlite_autoincrement=name == "change",  # its numbers never come back, even if the newest change is deleted
    )  # fmt: skip


def _column(name: str, kind: "sa.types.TypeEngine[Any] | _Kind", key: list[str]) -> "sa.Column[Any]":
    found = kind if isinstance(kind, _Kind) else _Kind(kind)
    references = [sa.ForeignKey(found.refers_to, ondelete=found.ondelete)] if found.refers_to else []
    return sa.Column(
        name, found.type, *references, primary_key=name in key, nullable=found.nullable,
        autoincrement="auto" if kind is BIG_ID else False,
    )  # fmt: skip


def _index(name: str, *columns: str, where: str) -> Index:
    return Index(name, *columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


_table(
    "dag", "dag_id", Index(None, "file_path"), Index(None, "next_dagrun_create_after"), dag_id=NAME, file_path=TEXT,
    is_active=BOOLEAN, is_paused=BOOLEAN, version_id=VERSION, schedule_summary=TEXT, timetable=WORD,
    display_name=_null(TEXT), owners=BYTES, tags=BYTES, about=BYTES, max_active_runs=INTEGER, deadlines=BYTES,
    access_control=_null(BYTES), partitions=_null(STRING_64), next_dagrun_logical_date=_null(INSTANT),
    next_dagrun_data_interval_start=_null(INSTANT), next_dagrun_data_interval_end=_null(INSTANT),
    next_dagrun_create_after=_null(INSTANT), last_examined_at=_null(INSTANT), timetable_plan=_null(BYTES),
    updated_at=INSTANT,
)  # fmt: skip
_table(
    "dag_version", "id", UniqueConstraint("dag_id", "number"), Index(None, "dag_id", "version_hash"), id=BIG_ID,
    dag_id=NAME, number=INTEGER, version_hash=STRING_64, file_path=TEXT, serialized=BYTES, sources=BYTES,
    created_at=INSTANT,
)  # fmt: skip
_table("source", "content_hash", content_hash=STRING_64, text=TEXT)
_table(
    "dag_file", "path", path=TEXT, content_hash=STRING_64, modified_ns=BIG, size=BIG, local_modules=BYTES,
    parsed_at=INSTANT, parse_seconds=FLOAT, n_dags=INTEGER, n_errors=INTEGER, runtime=TEXT,
    airflow=TEXT, asked=BYTES,
)  # fmt: skip
_table("parse_claim", "path", path=TEXT, scheduler_id=STRING_64, claimed_at=INSTANT)
_table("schema_compatibility", "id", id=INTEGER, oldest_revision=WORD)
_table(
    "import_error", "id", Index(None, "file_path"), id=BIG_ID, file_path=TEXT, kind=WORD, message=TEXT, traceback=TEXT,
    line=_null(INTEGER), dag_id=_null(TEXT), output=TEXT, is_warning=BOOLEAN, created_at=INSTANT,
)  # fmt: skip
_table(
    "dag_run", "id", UniqueConstraint("dag_id", "logical_date"), UniqueConstraint("dag_id", "run_id"),
    Index(None, "dag_id", "run_after"), _index("ix_dag_run_ended_at", "ended_at", where="ended_at IS NOT NULL"),
    _index("ix_dag_run_queued_of_backfill", "backfill_id", "logical_date",
        where="state = 'queued' AND backfill_id IS NOT NULL"),
    _index("ix_dag_run_queued_of_dag", "dag_id", "run_after", "id", where="state = 'queued' AND backfill_id IS NULL"),
    _index("ix_dag_run_running", "dag_id", where="state = 'running'"),
    _index("ix_dag_run_scheduled", "dag_id", "logical_date", where="run_type = 'scheduled'"), Index(None, "version_id"),
    id=BIG_ID, dag_id=NAME, run_id=NAME, run_type=WORD, state=WORD, reason=TEXT, logical_date=_null(INSTANT),
    data_interval_start=_null(INSTANT), data_interval_end=_null(INSTANT), run_after=INSTANT, queued_at=INSTANT,
    started_at=_null(INSTANT), ended_at=_null(INSTANT), conf=BYTES, version_id=VERSION, scheduler_id=_null(STRING_64),
    lease_epoch=BIG, backfill_id=_null(BIG_ID), stop=_null(TEXT), partition_key=_null(NAME),
    partition_date=_null(INSTANT),
)  # fmt: skip
_table(
    "task_instance", "id", UniqueConstraint("dag_run_id", "task_id", "map_index"),
    _index("ix_task_instance_slots", "pool", "state", where="state IN ('queued', 'running', 'restarting', 'deferred')"),
    id=BIG_ID, dag_run_id=RUN, task_id=NAME, map_index=INTEGER, state=_null(WORD), reason=TEXT, try_number=INTEGER,
    max_tries=INTEGER, machine_kills=INTEGER, token=_null(WORD), lease_epoch=BIG, priority_weight=BIG, pool=STRING_256,
    pool_slots=INTEGER, queue=STRING_256, executor=_null(STRING_256), scheduled_at=_null(INSTANT),
    queued_at=_null(INSTANT), started_at=_null(INSTANT), ended_at=_null(INSTANT), next_try_at=_null(INSTANT),
    rendered_map_index=_null(TEXT), result_length=_null(INTEGER), deferral=_null(TEXT),
    ignored_dependencies=_null(TEXT),
)  # fmt: skip
_table(
    "task_instance_history", "id", UniqueConstraint("dag_run_id", "task_id", "map_index", "token"), id=BIG_ID,
    dag_run_id=RUN, task_id=NAME, map_index=INTEGER, try_number=INTEGER, state=_null(WORD), reason=TEXT,
    token=_null(WORD), scheduled_at=_null(INSTANT), queued_at=_null(INSTANT), started_at=_null(INSTANT),
    ended_at=_null(INSTANT),
)  # fmt: skip
_table(
    "pool", "name", name=STRING_256, slots=INTEGER, description=TEXT, include_deferred=BOOLEAN, settled_by=_null(BIG)
)
_table(
    "xcom", "dag_run_id task_id map_index key", dag_run_id=RUN, task_id=NAME, map_index=INTEGER, key=STRING_512,
    value=BYTES, created_at=INSTANT,
)  # fmt: skip
_table(
    "note", "dag_run_id task_id map_index", dag_run_id=RUN, task_id=NAME, map_index=INTEGER, text=TEXT, actor=TEXT,
    updated_at=INSTANT,
)  # fmt: skip
_table(
    "task_state_store", "dag_run_id task_id map_index key", Index(None, "expires_at"),
    _index("ix_task_state_store_without_expiry", "updated_at", where="expires_at IS NULL"), dag_run_id=RUN,
    task_id=NAME, map_index=INTEGER, key=STRING_512, value=BYTES, updated_at=INSTANT, expires_at=_null(INSTANT),
)  # fmt: skip
_table(
    "hitl_detail", "dag_run_id task_id map_index", dag_run_id=RUN, task_id=NAME, map_index=INTEGER, token=WORD,
    subject=TEXT, body=_null(TEXT), options=BYTES, defaults=_null(BYTES), multiple=BOOLEAN, params=BYTES,
    assigned_users=BYTES, created_at=INSTANT, responded_at=_null(INSTANT), responded_by=_null(BYTES),
    chosen_options=_null(BYTES), params_input=BYTES,
)  # fmt: skip
_table(
    "scheduler", "id", id=STRING_64, hostname=TEXT, pid=INTEGER, home=TEXT, lease_epoch=BIG, lease_until=INSTANT,
    started_at=INSTANT, heartbeat_at=INSTANT, version=STRING_64, parallelism=INTEGER, executors=BYTES,
    takeover_seconds=FLOAT, ended_at=_null(INSTANT),
)  # fmt: skip
_table("variable", "key", key=NAME, value=TEXT, description=TEXT)
_table("connection", "conn_id", conn_id=NAME, conn_type=STRING_500, description=TEXT, secret=TEXT)
_table("fernet_key", "id", id=INTEGER, key_id=WORD)
_table(
    "audit", "id", Index(None, "dag_id", "at"), id=BIG_ID, at=INSTANT, actor=TEXT, action=STRING_64, dag_id=_null(NAME),
    run_id=_null(NAME), task_id=_null(NAME), detail=BYTES,
)  # fmt: skip
_table(
    "change", "number", number=BIG_ID, at=INSTANT, kind=WORD, dag_id=NAME, run_id=NAME, task_id=NAME, map_index=INTEGER,
    try_number=INTEGER, state=_null(WORD), reason=TEXT,
)  # fmt: skip
_table(
    "asset", "id", UniqueConstraint("digest"), id=BIG_ID, digest=STRING_64, name=TEXT, uri=TEXT, group_name=TEXT,
    extra=BYTES, created_at=INSTANT,
)  # fmt: skip
_table(
    "asset_state_store", "asset_id key", asset_id=ASSET, key=STRING_512, value=BYTES, updated_at=INSTANT,
    dag_id=_null(NAME), run_id=_null(NAME), task_id=_null(NAME), map_index=INTEGER,
)  # fmt: skip
_table("asset_alias", "id", UniqueConstraint("digest"), id=BIG_ID, digest=STRING_64, name=TEXT, group_name=TEXT)
_table("asset_alias_asset", "alias_id asset_id", Index(None, "asset_id"), alias_id=ALIAS, asset_id=ASSET)
_table(
    "asset_reference", "dag_id role task_id digest", Index(None, "digest", "role"), dag_id=NAME, role=STRING_16,
    task_id=NAME, digest=STRING_64, kind=STRING_16, name=TEXT, uri=TEXT, created_at=INSTANT,
)  # fmt: skip
_table(
    "asset_trigger", "id", UniqueConstraint("digest"), id=BIG_ID, digest=STRING_64, classpath=TEXT, kwargs=BYTES,
    scheduler_id=_null(STRING_64), error=_null(TEXT), failed_at=_null(INSTANT), created_at=INSTANT,
)  # fmt: skip
_table(
    "asset_watcher", "dag_id digest trigger_id", Index(None, "trigger_id"), dag_id=NAME, digest=STRING_64,
    trigger_id=TRIGGER, name=TEXT, asset_name=TEXT, asset_uri=TEXT, name_digest=STRING_64, uri_digest=STRING_64,
)  # fmt: skip
_table(
    "asset_event", "id", UniqueConstraint("token", "ordinal"), Index(None, "asset_id", "created_at"), id=BIG_ID,
    asset_id=ASSET, created_at=INSTANT, extra=BYTES, source_dag_id=_null(NAME), source_run_id=_null(NAME),
    source_task_id=_null(NAME), source_map_index=INTEGER, token=_null(WORD), ordinal=INTEGER,
    partition_key=_null(NAME), partition_date=_null(INSTANT),
)  # fmt: skip
_table("asset_alias_event", "alias_id event_id", Index(None, "event_id"), alias_id=ALIAS, event_id=EVENT)
_table(
    "asset_dag_run_queue", "dag_id event_id partition_key", Index(None, "event_id"),
    _index("ix_asset_dag_run_queue_unexamined", "dag_id", where="NOT is_examined"), dag_id=NAME, event_id=EVENT,
    partition_key=NAME, is_examined=BOOLEAN,
)  # fmt: skip
_table("dag_run_asset_event", "dag_run_id event_id", Index(None, "event_id"), dag_run_id=RUN, event_id=EVENT)
_table(
    "callback_request", "id",
    UniqueConstraint("dag_run_id", "task_id", "map_index", "try_number", "event", "created_at",
        name="uq_callback_request_event"),
    Index(None, "state"), id=BIG_ID, dag_run_id=RUN, task_id=NAME, map_index=INTEGER, try_number=INTEGER, event=WORD,
    reason=TEXT, state=WORD, token=_null(WORD), attempts=INTEGER, created_at=INSTANT, caused_by=TEXT,
    scheduler_id=_null(STRING_64),
)  # fmt: skip
_table(
    "deadline", "id", UniqueConstraint("dag_run_id", "number"),
    _index("ix_deadline_pending", "due_at", where="state = 'pending'"), id=BIG_ID, dag_run_id=RUN, number=INTEGER,
    name=TEXT, due_at=INSTANT, state=WORD,
)  # fmt: skip
_table(
    "run_request", "id", Index(None, "dag_run_id"), id=BIG_ID, dag_run_id=RUN, request=BYTES, actor=TEXT,
    created_at=INSTANT,
)  # fmt: skip
_table(
    "backfill", "id", Index(None, "dag_id"), id=BIG_ID, dag_id=NAME, from_date=INSTANT, to_date=INSTANT, reprocess=WORD,
    is_reverse=BOOLEAN, max_active_runs=INTEGER, conf=BYTES, is_paused=BOOLEAN, actor=TEXT, created_at=INSTANT,
    cancelled_at=_null(INSTANT),
)  # fmt: skip
_table(
    "backfill_dag_run", "id", UniqueConstraint("backfill_id", "dag_run_id"), Index(None, "dag_run_id"), id=BIG_ID,
    backfill_id=BACKFILL, dag_run_id=RUN_OR_NULL, logical_date=INSTANT, sort_ordinal=INTEGER,
    exception_reason=_null(STRING_64),
)  # fmt: skip
_table(
    "user", "id", UniqueConstraint("name"), UniqueConstraint("issuer", "subject"), id=BIG_ID, name=NAME, roles=BYTES,
    password=_null(TEXT), issuer=NAME, subject=_null(NAME), created_at=INSTANT,
)  # fmt: skip
_table(
    "token", "id", UniqueConstraint("digest"), Index(None, "user_id"), Index(None, "expires_at"), id=BIG_ID,
    digest=STRING_64, kind=WORD, user_id=USER_OR_NULL, owner=NAME, label=NAME, permission=WORD, dag_ids=_null(BYTES),
    created_at=INSTANT, expires_at=INSTANT,
)  # fmt: skip
