"""The tables of assets: what they are, who names them, what has happened to them, and who has still to hear of it.

Names and URIs may be longer than an index can hold: a digest stands for them (`asset_names.py`).
"""

import sqlalchemy as sa
from sqlalchemy import Boolean, Column, ForeignKey, Index, Integer, String, Text, UniqueConstraint

from asynsched.store.schema.column_types import BigId, Instant, Json
from asynsched.store.schema.metadata import ID_LENGTH, ONLY_WHERE, metadata

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
