"""The first tables."""

import sqlalchemy as sa
from alembic import op

INSTANT = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def create_assets() -> None:
    """Create every table of assets."""
    _create_names()
    _create_references()
    _create_events()
    _create_consumers()


def _create_names() -> None:
    op.create_table(
        "asset",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("group_name", sa.Text(), nullable=False),
        sa.Column("extra", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_asset"),
        sa.UniqueConstraint("digest", name="uq_asset_digest"),
    )
    op.create_table(
        "asset_alias",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("group_name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_asset_alias"),
        sa.UniqueConstraint("digest", name="uq_asset_alias_digest"),
    )
    _create_link("asset_alias_asset", ("alias_id", "asset_alias"), ("asset_id", "asset"))


def _create_references() -> None:
    op.create_table(
        "asset_reference",
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("task_id", sa.String(length=250), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("dag_id", "role", "task_id", "digest", name="pk_asset_reference"),
    )
    op.create_index("ix_asset_reference_digest_role", "asset_reference", ["digest", "role"])


def _create_events() -> None:
    op.create_table(
        "asset_event",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("asset_id", BIG_ID, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("extra", sa.LargeBinary(), nullable=False),
        sa.Column("source_dag_id", sa.String(length=250)),
        sa.Column("source_run_id", sa.String(length=250)),
        sa.Column("source_task_id", sa.String(length=250)),
        sa.Column("source_map_index", sa.Integer(), nullable=False),
        sa.Column("token", sa.String(length=32)),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["asset_id"], ["asset.id"], name="fk_asset_event_asset_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_asset_event"),
        sa.UniqueConstraint("token", "ordinal", name="uq_asset_event_token_ordinal"),
    )
    op.create_index("ix_asset_event_asset_id_created_at", "asset_event", ["asset_id", "created_at"])
    _create_link("asset_alias_event", ("alias_id", "asset_alias"), ("event_id", "asset_event"))


def _create_consumers() -> None:
    op.create_table(
        "asset_dag_run_queue",
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("event_id", BIG_ID, nullable=False),
        sa.Column("is_examined", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["event_id"], ["asset_event.id"], name="fk_asset_dag_run_queue_event_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("dag_id", "event_id", name="pk_asset_dag_run_queue"),
    )
    op.create_index("ix_asset_dag_run_queue_event_id", "asset_dag_run_queue", ["event_id"])
    unexamined = sa.text("NOT is_examined")
    op.create_index(
        "ix_asset_dag_run_queue_unexamined",
        "asset_dag_run_queue",
        ["dag_id"],
        sqlite_where=unexamined,
        postgresql_where=unexamined,
    )
    _create_link("dag_run_asset_event", ("dag_run_id", "dag_run"), ("event_id", "asset_event"))


def _create_link(name: str, *ends: tuple[str, str]) -> None:
    """Create a table that connects rows of two others, and goes with either of them."""
    columns = [column for column, _ in ends]
    op.create_table(
        name,
        *(sa.Column(column, BIG_ID, nullable=False) for column in columns),
        *(
            sa.ForeignKeyConstraint([column], [f"{table}.id"], name=f"fk_{name}_{column}", ondelete="CASCADE")
            for column, table in ends
        ),
        sa.PrimaryKeyConstraint(*columns, name=f"pk_{name}"),
    )
    op.create_index(f"ix_{name}_{columns[1]}", name, [columns[1]])


def create_callbacks() -> None:
    """Create both tables."""
    op.create_table(
        "callback_request",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_run_id", BIG_ID, nullable=False),
        sa.Column("task_id", sa.String(length=250), nullable=False),
        sa.Column("map_index", sa.Integer(), nullable=False),
        sa.Column("try_number", sa.Integer(), nullable=False),
        sa.Column("event", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("token", sa.String(length=32)),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("caused_by", sa.Text(), nullable=False),
        sa.Column("scheduler_id", sa.String(length=64)),
        sa.ForeignKeyConstraint(
            ["dag_run_id"], ["dag_run.id"], name="fk_callback_request_dag_run_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_callback_request"),
        sa.UniqueConstraint(
            "dag_run_id",
            "task_id",
            "map_index",
            "try_number",
            "event",
            "created_at",
            name="uq_callback_request_event",
        ),
    )
    op.create_index("ix_callback_request_state", "callback_request", ["state"])
    op.create_table(
        "deadline",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_run_id", BIG_ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("due_at", INSTANT, nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["dag_run_id"], ["dag_run.id"], name="fk_deadline_dag_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_deadline"),
        sa.UniqueConstraint("dag_run_id", "number", name="uq_deadline_dag_run_id_number"),
    )
    op.create_index(
        "ix_deadline_pending",
        "deadline",
        ["due_at"],
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )


def create_reruns() -> None:
    """Create the tables."""
    op.create_table(
        "run_request",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_run_id", BIG_ID, nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.ForeignKeyConstraint(["dag_run_id"], ["dag_run.id"], name="fk_run_request_dag_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_run_request"),
    )
    op.create_index("ix_run_request_dag_run_id", "run_request", ["dag_run_id"])
    op.create_table(
        "backfill",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("from_date", INSTANT, nullable=False),
        sa.Column("to_date", INSTANT, nullable=False),
        sa.Column("reprocess", sa.String(length=32), nullable=False),
        sa.Column("is_reverse", sa.Boolean(), nullable=False),
        sa.Column("max_active_runs", sa.Integer(), nullable=False),
        sa.Column("conf", sa.LargeBinary(), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("cancelled_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_backfill"),
    )
    op.create_index("ix_backfill_dag_id", "backfill", ["dag_id"])
    op.create_table(
        "backfill_dag_run",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("backfill_id", BIG_ID, nullable=False),
        sa.Column("dag_run_id", BIG_ID),
        sa.Column("logical_date", INSTANT, nullable=False),
        sa.Column("sort_ordinal", sa.Integer(), nullable=False),
        sa.Column("exception_reason", sa.String(length=64)),
        sa.ForeignKeyConstraint(
            ["backfill_id"], ["backfill.id"], name="fk_backfill_dag_run_backfill_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["dag_run_id"], ["dag_run.id"], name="fk_backfill_dag_run_dag_run_id", ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_backfill_dag_run"),
        sa.UniqueConstraint("backfill_id", "dag_run_id", name="uq_backfill_dag_run_backfill_id_dag_run_id"),
    )
    op.create_index("ix_backfill_dag_run_dag_run_id", "backfill_dag_run", ["dag_run_id"])


def create_sharing() -> None:
    """Create the tables."""
    op.create_table(
        "parse_claim",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("scheduler_id", sa.String(length=64), nullable=False),
        sa.Column("claimed_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("path", name="pk_parse_claim"),
    )
    op.create_table(
        "schema_compatibility",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("oldest_revision", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schema_compatibility"),
    )


revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create every table."""
    _create_dags()
    _create_runs()
    _create_task_instances()
    _create_settings()
    _create_operation()
    create_callbacks()
    create_assets()
    create_reruns()
    create_sharing()


def _create_dags() -> None:
    op.create_table(
        "source",
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("content_hash", name="pk_source"),
    )
    op.create_table(
        "dag_version",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("version_hash", sa.String(length=64), nullable=False),
        sa.Column("file_path", sa.Text(), nullable=False),
        sa.Column("serialized", sa.LargeBinary(), nullable=False),
        sa.Column("sources", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_dag_version"),
        sa.UniqueConstraint("dag_id", "number", name="uq_dag_version_dag_id_number"),
    )
    op.create_index("ix_dag_version_dag_id_version_hash", "dag_version", ["dag_id", "version_hash"])
    op.create_table(
        "dag",
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("file_path", sa.Text(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("version_id", BIG_ID),
        sa.Column("schedule_summary", sa.Text(), nullable=False),
        sa.Column("tags", sa.LargeBinary(), nullable=False),
        sa.Column("max_active_runs", sa.Integer(), nullable=False),
        sa.Column("deadlines", sa.LargeBinary(), nullable=False),
        sa.Column("next_dagrun_logical_date", INSTANT),
        sa.Column("next_dagrun_data_interval_start", INSTANT),
        sa.Column("next_dagrun_data_interval_end", INSTANT),
        sa.Column("next_dagrun_create_after", INSTANT),
        sa.Column("last_examined_at", INSTANT),
        sa.Column("timetable_plan", sa.LargeBinary()),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.ForeignKeyConstraint(["version_id"], ["dag_version.id"], name="fk_dag_version_id"),
        sa.PrimaryKeyConstraint("dag_id", name="pk_dag"),
    )
    op.create_index("ix_dag_file_path", "dag", ["file_path"])
    op.create_index("ix_dag_next_dagrun_create_after", "dag", ["next_dagrun_create_after"])
    op.create_table(
        "dag_file",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("modified_ns", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("local_modules", sa.LargeBinary(), nullable=False),
        sa.Column("parsed_at", INSTANT, nullable=False),
        sa.Column("parse_seconds", sa.Float(), nullable=False),
        sa.Column("n_dags", sa.Integer(), nullable=False),
        sa.Column("n_errors", sa.Integer(), nullable=False),
        sa.Column("runtime", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("path", name="pk_dag_file"),
    )
    op.create_table(
        "import_error",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("file_path", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("traceback", sa.Text(), nullable=False),
        sa.Column("line", sa.Integer()),
        sa.Column("dag_id", sa.Text()),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("is_warning", sa.Boolean(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_import_error"),
    )
    op.create_index("ix_import_error_file_path", "import_error", ["file_path"])


def _create_runs() -> None:
    op.create_table(
        "dag_run",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("run_id", sa.String(length=250), nullable=False),
        sa.Column("run_type", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("logical_date", INSTANT),
        sa.Column("data_interval_start", INSTANT),
        sa.Column("data_interval_end", INSTANT),
        sa.Column("run_after", INSTANT, nullable=False),
        sa.Column("queued_at", INSTANT, nullable=False),
        sa.Column("started_at", INSTANT),
        sa.Column("ended_at", INSTANT),
        sa.Column("conf", sa.LargeBinary(), nullable=False),
        sa.Column("version_id", BIG_ID),
        sa.Column("scheduler_id", sa.String(length=64)),
        sa.Column("lease_epoch", sa.BigInteger(), nullable=False),
        sa.Column("backfill_id", BIG_ID),
        sa.Column("stop", sa.Text()),
        sa.ForeignKeyConstraint(["version_id"], ["dag_version.id"], name="fk_dag_run_version_id"),
        sa.PrimaryKeyConstraint("id", name="pk_dag_run"),
        sa.UniqueConstraint("dag_id", "logical_date", name="uq_dag_run_dag_id_logical_date"),
        sa.UniqueConstraint("dag_id", "run_id", name="uq_dag_run_dag_id_run_id"),
    )
    op.create_index("ix_dag_run_dag_id_run_after", "dag_run", ["dag_id", "run_after"])
    ended = sa.text("ended_at IS NOT NULL")
    op.create_index("ix_dag_run_ended_at", "dag_run", ["ended_at"], sqlite_where=ended, postgresql_where=ended)
    op.create_index("ix_dag_run_version_id", "dag_run", ["version_id"])
    op.create_index(
        "ix_dag_run_scheduled",
        "dag_run",
        ["dag_id", "logical_date"],
        sqlite_where=sa.text("run_type = 'scheduled'"),
        postgresql_where=sa.text("run_type = 'scheduled'"),
    )
    running = sa.text("state = 'running'")
    op.create_index("ix_dag_run_running", "dag_run", ["dag_id"], sqlite_where=running, postgresql_where=running)
    of_dag = sa.text("state = 'queued' AND backfill_id IS NULL")
    op.create_index(
        "ix_dag_run_queued_of_dag",
        "dag_run",
        ["dag_id", "run_after", "id"],
        sqlite_where=of_dag,
        postgresql_where=of_dag,
    )
    of_backfill = sa.text("state = 'queued' AND backfill_id IS NOT NULL")
    op.create_index(
        "ix_dag_run_queued_of_backfill",
        "dag_run",
        ["backfill_id", "logical_date"],
        sqlite_where=of_backfill,
        postgresql_where=of_backfill,
    )
    op.create_table(
        "xcom",
        sa.Column("dag_run_id", BIG_ID, nullable=False),
        sa.Column("task_id", sa.String(length=250), nullable=False),
        sa.Column("map_index", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=512), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.ForeignKeyConstraint(["dag_run_id"], ["dag_run.id"], name="fk_xcom_dag_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("dag_run_id", "task_id", "map_index", "key", name="pk_xcom"),
    )


def _create_task_instances() -> None:
    op.create_table(
        "task_instance",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_run_id", BIG_ID, nullable=False),
        sa.Column("task_id", sa.String(length=250), nullable=False),
        sa.Column("map_index", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32)),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("try_number", sa.Integer(), nullable=False),
        sa.Column("max_tries", sa.Integer(), nullable=False),
        sa.Column("machine_kills", sa.Integer(), nullable=False),
        sa.Column("token", sa.String(length=32)),
        sa.Column("lease_epoch", sa.BigInteger(), nullable=False),
        sa.Column("priority_weight", sa.BigInteger(), nullable=False),
        sa.Column("pool", sa.String(length=256), nullable=False),
        sa.Column("pool_slots", sa.Integer(), nullable=False),
        sa.Column("queue", sa.String(length=256), nullable=False),
        sa.Column("executor", sa.String(length=256)),
        sa.Column("scheduled_at", INSTANT),
        sa.Column("queued_at", INSTANT),
        sa.Column("started_at", INSTANT),
        sa.Column("ended_at", INSTANT),
        sa.Column("next_try_at", INSTANT),
        sa.Column("rendered_map_index", sa.Text()),
        sa.Column("result_length", sa.Integer()),
        sa.Column("deferral", sa.Text()),
        sa.Column("ignored_dependencies", sa.Text()),
        sa.ForeignKeyConstraint(["dag_run_id"], ["dag_run.id"], name="fk_task_instance_dag_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_task_instance"),
        sa.UniqueConstraint("dag_run_id", "task_id", "map_index", name="uq_task_instance_dag_run_id_task_id_map_index"),
    )
    op.create_index(
        "ix_task_instance_slots",
        "task_instance",
        ["pool", "state"],
        sqlite_where=sa.text("state IN ('queued', 'running', 'restarting', 'deferred')"),
        postgresql_where=sa.text("state IN ('queued', 'running', 'restarting', 'deferred')"),
    )
    op.create_table(
        "task_instance_history",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("dag_run_id", BIG_ID, nullable=False),
        sa.Column("task_id", sa.String(length=250), nullable=False),
        sa.Column("map_index", sa.Integer(), nullable=False),
        sa.Column("try_number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32)),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("token", sa.String(length=32)),
        sa.Column("scheduled_at", INSTANT),
        sa.Column("queued_at", INSTANT),
        sa.Column("started_at", INSTANT),
        sa.Column("ended_at", INSTANT),
        sa.ForeignKeyConstraint(
            ["dag_run_id"], ["dag_run.id"], name="fk_task_instance_history_dag_run_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_task_instance_history"),
        sa.UniqueConstraint(
            "dag_run_id",
            "task_id",
            "map_index",
            "token",
            name="uq_task_instance_history_dag_run_id_task_id_map_index_token",
        ),
    )


def _create_settings() -> None:
    op.create_table(
        "pool",
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("include_deferred", sa.Boolean(), nullable=False),
        sa.Column("settled_by", sa.BigInteger()),
        sa.PrimaryKeyConstraint("name", name="pk_pool"),
    )
    op.create_table(
        "variable",
        sa.Column("key", sa.String(length=250), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_variable"),
    )
    op.create_table(
        "connection",
        sa.Column("conn_id", sa.String(length=250), nullable=False),
        sa.Column("conn_type", sa.String(length=500), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("conn_id", name="pk_connection"),
    )
    op.create_table(
        "fernet_key",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_fernet_key"),
    )


def _create_operation() -> None:
    op.create_table(
        "scheduler",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("hostname", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("home", sa.Text(), nullable=False),
        sa.Column("lease_epoch", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", INSTANT, nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("heartbeat_at", INSTANT, nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("parallelism", sa.Integer(), nullable=False),
        sa.Column("executors", sa.LargeBinary(), nullable=False),
        sa.Column("takeover_seconds", sa.Float(), nullable=False),
        sa.Column("ended_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_scheduler"),
    )
    op.create_table(
        "audit",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("dag_id", sa.String(length=250)),
        sa.Column("run_id", sa.String(length=250)),
        sa.Column("task_id", sa.String(length=250)),
        sa.Column("detail", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_dag_id_at", "audit", ["dag_id", "at"])
