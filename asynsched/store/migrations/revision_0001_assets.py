"""The first tables of assets, a part of revision 0001."""

import sqlalchemy as sa
from alembic import op

from asynsched.store.migrations.column_types import BIG_ID, INSTANT


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
