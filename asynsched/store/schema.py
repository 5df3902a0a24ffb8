"""The tables, and the types of their rows.

A table whose rows are read or written whole is made from the type of its rows (`table_of`), so each of its columns is
declared once: inserts, their SQL types and the columns of commands follow from that type.

Times are UTC, aware in Python. Key order is lock order: a transaction that touches several rows of a table touches
them by ascending primary key. Names and URIs of assets may be longer than an index can hold: a digest stands for them
(`assets.py`).
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, LargeBinary, String, Text, UniqueConstraint

from asynsched.keys import DagRunKey
from asynsched.protocol.messages import SourceRef
from asynsched.serialization.asked_names import AskedName
from asynsched.store.rows import to_json

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006")
"""Every revision in `migrations/versions`, oldest first; the last one makes the tables below."""
OLDEST_BESIDE = "0005"
"""The oldest revision whose asynsched may use a database that is at the newest one.

Schedulers are upgraded one after another, so a migration only adds: tables, indexes, and columns that may be left out.
A later migration removes the superfluous parts, and raises this to its own revision; so does one that adds a word, such
as a state, that earlier versions cannot read.
"""
ID_LENGTH = 250
LONGEST_CONN_TYPE = 500
NOBODYS_EPOCH = 0
"""The lease epoch of rows that no scheduler owns: those of leases begin with 1."""
ONLY_WHERE = "only where"
"""In the `info` of a partial index: the condition on its rows."""
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
    """Give partial indexes their conditions, in the dialect of the database that gets the tables.

    `sqlite_where` and `postgresql_where` would load both dialects, in each command.
    """
    for index in (index for table in metadata.tables.values() for index in table.indexes):
        if ONLY_WHERE in index.info:
            index.dialect_options[connection.dialect.name]["where"] = sa.text(index.info[ONLY_WHERE])
    # The numbers of changes never come back, even if the newest change is deleted.
    if connection.dialect.name == "sqlite":
        change.dialect_options["sqlite"]["autoincrement"] = True


@sa.event.listens_for(metadata, "after_create")
def _make_triggers(_: sa.MetaData, connection: sa.Connection, **__: object) -> None:
    from asynsched.store.migrations.triggers_0001 import make_triggers  # commands find their tables made

    make_triggers(connection)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(instant: datetime) -> int:
    """Return the microseconds since 1970 of an aware datetime, which SQLite stores."""
    return (instant - EPOCH) // timedelta(microseconds=1)


class Instant(sa.TypeDecorator[datetime]):
    """An aware UTC datetime. SQLite stores microseconds since 1970, so that rows sort and compare as numbers."""

    impl = sa.BigInteger
    cache_ok = True

    @property
    def python_type(self) -> type[datetime]:
        return datetime

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


class DecodedJson(sa.TypeDecorator[Any]):
    """JSON as bytes, in Python a value of a type: the same bytes for equal values. The database never searches it."""

    impl = LargeBinary
    cache_ok = True

    def __init__(self, kind: Any = Any) -> None:
        super().__init__()
        self.kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> bytes | None:
        return None if value is None else to_json(value)

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> Any:
        return None if value is None else self._decoder.decode(value)


BigId = sa.BigInteger().with_variant(Integer, "sqlite")


class Reference(NamedTuple):
    """In the annotation of a field: the column that its column refers to."""

    column: str
    ondelete: str | None = None


Id = Annotated[int, BigId]
VersionId = Annotated[int, BigId, Reference("dag_version.id")]
RunRowId = Annotated[int, BigId, Reference("dag_run.id", "CASCADE")]
UserRowId = Annotated[int, BigId, Reference("user.id", "CASCADE")]
Big = Annotated[int, sa.BigInteger]
Name = Annotated[str, String(ID_LENGTH)]
LimitName = Annotated[str, String(256)]
SchedulerId = Annotated[str, String(64)]
Hash = Annotated[str, String(64)]
Word = Annotated[str, String(32)]
Moment = Annotated[datetime, Instant]
_COLUMN_TYPES: dict[Any, Any] = {str: Text, int: Integer, bool: Boolean, float: Float, bytes: LargeBinary}


def table_of(name: str, row: type[Struct], *constraints: sa.Index | sa.Constraint, key: str = "id") -> sa.Table:
    """Return the table of a type of rows: a column for each field, in their order, but an `id` first.

    Args:
        name: The table's name.
        row: Its fields' annotations name the columns' types; dicts and lists are stored as JSON, and bytes as they
            are; `| None` makes a column nullable, and a field's default is also the column's.
        constraints: Constraints and indexes.
        key: The fields of the primary key, with commas between them.
    """
    fields = sorted(msgspec.structs.fields(row), key=lambda field: field.name != "id")
    columns = [_column(field, is_key=field.name in key.split(",")) for field in fields]
    return sa.Table(name, metadata, *columns, *constraints)


def _column(field: msgspec.structs.FieldInfo, *, is_key: bool) -> "Column[Any]":
    kinds = get_args(field.type) if type(None) in get_args(field.type) else (field.type,)
    kind = kinds[0]
    plain, *more = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    column_type = more[0] if more else _COLUMN_TYPES.get(plain) or DecodedJson(plain)
    references = [ForeignKey(known.column, ondelete=known.ondelete) for known in more if isinstance(known, Reference)]
    default = None if field.default is msgspec.NODEFAULT else field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    return Column(
        field.name, column_type, *references, primary_key=is_key, nullable=len(kinds) > 1,
        default=None if is_key else default,
    )  # fmt: skip


class DagAbout(Struct, frozen=True, omit_defaults=True):
    """More of a DAG's newest version, for lists: to decode whole versions for them would take long.

    Attributes:
        description: Its beginning, if it is long.
        is_periodic: Whether its schedule has regular times, so that it can be backfilled.
        is_partitioned: Whether its schedule gives runs partitions.
        max_consecutive_failed_dag_runs: 0: no limit.
        has_task_limits: Whether a task limits its own simultaneous instances.
        imported_from: The file in the DAG folder that makes the DAG, if the DAG's file has only imported it.
    """

    description: str | None = None
    is_periodic: bool = True
    is_partitioned: bool = False
    max_active_tasks: int | None = None
    max_consecutive_failed_dag_runs: int = 0
    has_task_limits: bool = False
    imported_from: str = ""


class DagColumns(Struct, frozen=True, kw_only=True):
    """A DAG as it is stored. The rest of it is in its newest version.

    Attributes:
        is_active: False once its file is gone, or parsed well without it.
        timetable: The kind of its schedule by time; `asset` or `asset_or_time` if asset events trigger it.
        deadlines: JSON of its SerializedDeadlines.
        access_control: What the users of a role may do with it, by role: `view` or `operate`; None: no more than with
            other DAGs.
        partitions: A hash of its assets' partition mappers; None if it waits for events without partition keys.
        last_examined_at: The `updated_at` that its next run was computed from: if that is another one, or missing, the
            next run is yet to be computed.
        timetable_plan: JSON of the answers of the author's own timetable or partition mappers.
    """

    dag_id: Name
    file_path: str
    is_active: bool = True
    is_paused: bool = False
    version_id: VersionId | None = None
    schedule_summary: str = ""
    timetable: Word = ""
    display_name: str | None = None
    owners: list[str] = []
    tags: list[str] = []
    about: DagAbout = DagAbout()
    max_active_runs: int
    deadlines: bytes = b"[]"
    access_control: dict[str, str] | None = None
    partitions: Hash | None = None
    next_dagrun_logical_date: Moment | None = None
    next_dagrun_data_interval_start: Moment | None = None
    next_dagrun_data_interval_end: Moment | None = None
    next_dagrun_create_after: Moment | None = None
    last_examined_at: Moment | None = None
    timetable_plan: bytes | None = None
    updated_at: Moment


dag = table_of(
    "dag",
    DagColumns,
    Index("ix_dag_next_dagrun_create_after", "next_dagrun_create_after"),
    Index("ix_dag_file_path", "file_path"),
    key="dag_id",
)


class DagVersionRow(Struct, frozen=True):
    """A version of a DAG, immutable. `serialized`: JSON of a SerializedDag; `sources` has the DAG file first."""

    dag_id: Name
    number: int
    version_hash: Hash
    file_path: str
    serialized: bytes
    sources: list[SourceRef]
    created_at: Moment
    id: Id = 0


dag_version = table_of(
    "dag_version",
    DagVersionRow,
    UniqueConstraint("dag_id", "number"),
    Index("ix_dag_version_dag_id_version_hash", "dag_id", "version_hash"),
)

source = sa.Table(
    "source",
    metadata,
    Column("content_hash", String(64), primary_key=True),
    Column("text", Text, nullable=False),
)


class LocalModule(Struct, frozen=True):
    """A local module that a file imported, with the SHA-256 of its text."""

    path: str
    content_hash: str


class DagFileRow(Struct, frozen=True):
    """A file at its last parse.

    `path` is relative to the DAG folder, `runtime` names the code that parsed it, `airflow` is what the file got for
    `import airflow` (the value of that setting); empty if it does not import it. `asked`: the variables, connections
    and options that the parse has read.
    """

    path: str
    content_hash: Hash
    modified_ns: Big
    size: Big
    local_modules: list[LocalModule]
    parsed_at: Moment
    parse_seconds: float
    n_dags: int
    n_errors: int
    runtime: str = ""
    airflow: str = ""
    asked: list[AskedName] = []


dag_file = table_of("dag_file", DagFileRow, key="path")


class ParseClaim(Struct, frozen=True):
    """The scheduler that parses a file at this moment, if there are several."""

    path: str
    scheduler_id: SchedulerId
    claimed_at: Moment


parse_claim = table_of("parse_claim", ParseClaim, key="path")

schema_compatibility = sa.Table(
    "schema_compatibility",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("oldest_revision", String(32), nullable=False),
)
"""One row: the oldest schema revision whose asynsched may go on beside one that has migrated the database."""


class ImportErrorRow(Struct, frozen=True):
    """An error, or a warning, of a file. The first of a file has the output of its code."""

    file_path: str
    kind: Word
    message: str
    traceback: str
    line: int | None
    dag_id: str | None
    output: str
    is_warning: bool
    created_at: Moment
    id: Id = 0


import_error = table_of("import_error", ImportErrorRow, Index("ix_import_error_file_path", "file_path"))


class DagRunRow(Struct, frozen=True, kw_only=True):
    """A run. A new one is pinned to a version when it starts.

    `scheduler_id` and `lease_epoch`: its owner, and the lease under which its rows may be written; NOBODYS_EPOCH while
    it has no owner. `stop`: JSON of why and how it is being stopped, so that another scheduler can continue the stop.
    """

    id: Id = 0
    dag_id: Name
    run_id: Name
    run_type: Word
    state: Word
    reason: str = ""
    logical_date: Moment | None = None
    data_interval_start: Moment | None = None
    data_interval_end: Moment | None = None
    run_after: Moment
    queued_at: Moment
    started_at: Moment | None = None
    ended_at: Moment | None = None
    conf: dict[str, Any] = {}
    version_id: VersionId | None = None
    scheduler_id: SchedulerId | None = None
    lease_epoch: Big = NOBODYS_EPOCH
    backfill_id: Id | None = None
    stop: str | None = None
    partition_key: Name | None = None
    partition_date: Moment | None = None

    @property
    def key(self) -> DagRunKey:
        """The identity of the run."""
        return DagRunKey(self.dag_id, self.run_id)


dag_run = table_of(
    "dag_run",
    DagRunRow,
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


class TaskInstanceRow(Struct, frozen=True, kw_only=True):
    """A task instance.

    Attributes:
        try_number: Counts from 1; 0 before the first try.
        token: Names the try that is queued or running.
        priority_weight: The total, as the weight rule gives it.
        next_try_at: When a retry or a rescheduled sensor is due, or a deferral times out.
        result_length: The number of values that `expand` over its result gives, -1 if it is not a list or dict; None
            without a result.
        deferral: The trigger of a deferred task instance, and later its outcome, as JSON, encrypted (decrypted where a
            run is loaded); it stays until the try ends.
        ignored_dependencies: The dependencies that the user who forced it wants to ignore, separated by spaces.
    """

    id: Id = 0
    dag_run_id: RunRowId
    task_id: Name
    map_index: int = -1
    state: Word | None = None
    reason: str = ""
    try_number: int = 0
    max_tries: int = 0
    machine_kills: int = 0
    token: Word | None = None
    lease_epoch: Big = NOBODYS_EPOCH
    priority_weight: Big = 1
    pool: LimitName
    pool_slots: int = 1
    queue: LimitName = "default"
    executor: LimitName | None = None
    scheduled_at: Moment | None = None
    queued_at: Moment | None = None
    started_at: Moment | None = None
    ended_at: Moment | None = None
    next_try_at: Moment | None = None
    rendered_map_index: str | None = None
    result_length: int | None = None
    deferral: str | None = None
    ignored_dependencies: str | None = None


task_instance = table_of(
    "task_instance",
    TaskInstanceRow,
    UniqueConstraint("dag_run_id", "task_id", "map_index"),
    Index("ix_task_instance_slots", "pool", "state",
          info={ONLY_WHERE: "state IN ('queued', 'running', 'restarting', 'deferred')"}),
)  # fmt: skip


class HistoryRow(Struct, frozen=True, kw_only=True):
    """An earlier try of a task instance, kept when the next one begins; `pool` is NULL if its route is unknown."""

    id: Id = 0
    dag_run_id: RunRowId
    task_id: Name
    map_index: int = -1
    try_number: int
    state: Word | None = None
    reason: str = ""
    token: Word | None = None
    scheduled_at: Moment | None = None
    queued_at: Moment | None = None
    started_at: Moment | None = None
    ended_at: Moment | None = None
    pool: LimitName | None = None
    pool_slots: int | None = None
    queue: LimitName | None = None
    executor: LimitName | None = None
    priority_weight: Big | None = None


task_instance_history = table_of(
    "task_instance_history", HistoryRow, UniqueConstraint("dag_run_id", "task_id", "map_index", "token")
)

pool = sa.Table(
    "pool",
    metadata,
    Column("name", String(256), primary_key=True),
    Column("slots", Integer, nullable=False),
    Column("description", Text, nullable=False, default=""),
    Column("include_deferred", Boolean, nullable=False, default=False),
    Column("settled_by", sa.BigInteger, nullable=True),
)
"""`slots` of -1 means no limit. Taken slots are counted from task_instance, never stored. `settled_by`: lease epoch of
the only scheduler that has settled slots since it counted those of others; NULL if others may have settled some."""


class XComRow(Struct, frozen=True):
    """A value that a task instance pushed; `value` is JSON."""

    dag_run_id: RunRowId
    task_id: Name
    map_index: int
    key: Annotated[str, String(512)]
    value: bytes
    created_at: Moment


xcom = table_of("xcom", XComRow, key="dag_run_id,task_id,map_index,key")


class RenderedFieldsRow(Struct, frozen=True):
    """What the templates of a try gave; `fields` is JSON of an object."""

    dag_run_id: RunRowId
    task_id: Name
    map_index: int
    try_number: int
    fields: bytes


rendered_fields = table_of("rendered_fields", RenderedFieldsRow, key="dag_run_id,task_id,map_index,try_number")


class NoteRow(Struct, frozen=True, kw_only=True):
    """What a user has noted about a run, or about a task instance; `task_id` is empty for the run itself."""

    dag_run_id: RunRowId
    task_id: Name = ""
    map_index: int = -1
    text: str
    actor: str
    updated_at: Moment


note = table_of("note", NoteRow, key="dag_run_id,task_id,map_index")


class TaskStateRow(Struct, frozen=True):
    """A value that a task instance keeps between its tries, as JSON.

    `expires_at`: None: `retention.task_state_days` after the last change.
    """

    dag_run_id: RunRowId
    task_id: Name
    map_index: int
    key: Annotated[str, String(512)]
    value: bytes
    updated_at: Moment
    expires_at: Moment | None = None


task_state_store = table_of(
    "task_state_store",
    TaskStateRow,
    Index("ix_task_state_store_expires_at", "expires_at"),
    Index("ix_task_state_store_without_expiry", "updated_at", info={ONLY_WHERE: "expires_at IS NULL"}),
    key="dag_run_id,task_id,map_index,key",
)


class HITLRow(Struct, frozen=True, kw_only=True):
    """A question that a task instance asks people, and the answer once there is one.

    Attributes:
        token: Of the process that asked: of a try, or of a callback.
        params: Airflow's form of each param by name: `value`, `description` and `schema`.
        assigned_users: The `id` and `name` of each person who may answer; empty: everybody may.
        responded_by: The `id` and `name` of the person who answered; None: no person, because the time was over.
    """

    dag_run_id: RunRowId
    task_id: Name
    map_index: int
    token: Word
    subject: str
    body: str | None = None
    options: list[str]
    defaults: list[str] | None = None
    multiple: bool = False
    params: dict[str, Any] = {}
    assigned_users: list[dict[str, str]] = []
    created_at: Moment
    responded_at: Moment | None = None
    responded_by: dict[str, str] | None = None
    chosen_options: list[str] | None = None
    params_input: dict[str, Any] = {}


hitl_detail = table_of("hitl_detail", HITLRow, key="dag_run_id,task_id,map_index")


class SchedulerRow(Struct, frozen=True, kw_only=True):
    """A scheduler that serves, or has served.

    Attributes:
        takeover_seconds: How long after its last renewal no try of it can run any more.
        ended_at: It has left, or another scheduler has given it up; from then on it renews no lease. The row stays, so
            that no epoch is given twice.
    """

    id: SchedulerId
    hostname: str
    pid: int
    home: str
    lease_epoch: Big
    lease_until: Moment
    started_at: Moment
    heartbeat_at: Moment
    version: Annotated[str, String(64)]
    parallelism: int = 0
    executors: dict[str, int] = {}
    takeover_seconds: float = 0.0
    ended_at: Moment | None = None


scheduler = table_of("scheduler", SchedulerRow)


class VariableRow(Struct, frozen=True):
    """A Variable. Its value is encrypted in the table. It may be a secret: never log or print one as it is."""

    key: Name
    value: str
    description: str = ""

    def __repr__(self) -> str:
        return f"VariableRow({self.key!r}, …)"


variable = table_of("variable", VariableRow, key="key")

connection = sa.Table(
    "connection",
    metadata,
    Column("conn_id", String(ID_LENGTH), primary_key=True),
    Column("conn_type", String(LONGEST_CONN_TYPE), nullable=False),
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


class AuditRow(Struct, frozen=True, kw_only=True):
    """An action of a user: trigger, clear, pause, set."""

    id: Id = 0
    at: Moment
    actor: str
    action: Annotated[str, String(64)]
    dag_id: Name | None
    run_id: Name | None
    task_id: Name | None
    detail: dict[str, Any] = {}


audit = table_of("audit", AuditRow, Index("ix_audit_dag_id_at", "dag_id", "at"))


class Change(Struct, frozen=True, kw_only=True):
    """A stored change of the state of a run, or of the state or try of a task instance. Its creation is a change, too.

    Attributes:
        number: Only rises, over all schedulers of a database.
        at: When the database stored it, by the database's clock.
        kind: `run` or `task`; of a run, `task_id` is empty, `map_index` is -1 and `try_number` is 0.
        state: The new state; None for a task instance that waits for its dependencies.
        reason: Why it has that state, shortened to 1,000 characters; may be empty.
    """

    number: Id
    at: Moment
    kind: Word
    dag_id: Name
    run_id: Name
    task_id: Name = ""
    map_index: int = -1
    try_number: int = 0
    state: Word | None = None
    reason: str = ""


change = table_of("change", Change, key="number")
"""Written by triggers (`migrations/triggers_0001.py`), so a writer of a run or a task instance cannot forget it."""


class AssetRow(Struct, frozen=True, kw_only=True):
    """An asset: one row for each name with a URI that a DAG, or an event, has ever named. `extra` describes it."""

    id: Id = 0
    digest: Hash
    name: str
    uri: str
    group_name: str = "asset"
    extra: dict[str, Any] = {}
    created_at: Moment


asset = table_of("asset", AssetRow, UniqueConstraint("digest"))


class AssetStateRow(Struct, frozen=True, kw_only=True):
    """A value that tasks keep on an asset, as JSON, and the task instance that wrote it last."""

    asset_id: Annotated[int, BigId, Reference("asset.id", "CASCADE")]
    key: Annotated[str, String(512)]
    value: bytes
    updated_at: Moment
    dag_id: Name | None = None
    run_id: Name | None = None
    task_id: Name | None = None
    map_index: int = -1


asset_state_store = table_of("asset_state_store", AssetStateRow, key="asset_id,key")

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


class AssetReference(Struct, frozen=True):
    """A place where a DAG's newest version names an asset, an alias or a reference (`kind`).

    `role`: in its schedule, or as inlet or outlet of a task; `task_id` is empty for its schedule.
    """

    dag_id: Name
    role: Annotated[str, String(16)]
    task_id: Name
    digest: Hash
    kind: Annotated[str, String(16)]
    name: str
    uri: str
    created_at: Moment


asset_reference = table_of(
    "asset_reference",
    AssetReference,
    Index("ix_asset_reference_digest_role", "digest", "role"),
    key="dag_id,role,task_id,digest",
)


class AssetTriggerRow(Struct, frozen=True, kw_only=True):
    """A trigger of watchers, once for all that have the same class and arguments.

    Attributes:
        scheduler_id: The scheduler that runs it, or ran it last.
        error: Its failure, if it has neither fired nor run for a while since.
    """

    id: Id = 0
    digest: Hash
    classpath: str
    kwargs: dict[str, Any]
    scheduler_id: SchedulerId | None = None
    error: str | None = None
    failed_at: Moment | None = None
    created_at: Moment


asset_trigger = table_of("asset_trigger", AssetTriggerRow, UniqueConstraint("digest"))


class AssetWatcherRow(Struct, frozen=True):
    """A watcher of an asset that a DAG's newest version names. By one of the digests, DAGs wait for the asset."""

    dag_id: Name
    digest: Hash
    trigger_id: Annotated[int, BigId, Reference("asset_trigger.id", "CASCADE")]
    name: str
    asset_name: str
    asset_uri: str
    name_digest: Hash
    uri_digest: Hash


asset_watcher = table_of(
    "asset_watcher",
    AssetWatcherRow,
    Index("ix_asset_watcher_trigger_id", "trigger_id"),
    key="dag_id,digest,trigger_id",
)

asset_event = sa.Table(
    "asset_event",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("asset_id", BigId, ForeignKey("asset.id", ondelete="CASCADE"), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("extra", DecodedJson, nullable=False, default={}),
    Column("source_dag_id", String(ID_LENGTH), nullable=True),
    Column("source_run_id", String(ID_LENGTH), nullable=True),
    Column("source_task_id", String(ID_LENGTH), nullable=True),
    Column("source_map_index", Integer, nullable=False, default=-1),
    Column("token", String(32), nullable=True),
    Column("ordinal", Integer, nullable=False, default=0),
    Column("partition_key", String(ID_LENGTH), nullable=True),
    Column("partition_date", Instant, nullable=True),
    UniqueConstraint("token", "ordinal"),
    Index("ix_asset_event_asset_id_created_at", "asset_id", "created_at"),
)
"""An update of an asset. `token` and `ordinal` name the try and the number of its event, so that applying a batch again
adds no event. Events from outside have no source and no token."""

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
    Column("partition_key", String(ID_LENGTH), primary_key=True, default=""),
    Column("is_examined", Boolean, nullable=False, default=False),
    Index("ix_asset_dag_run_queue_event_id", "event_id"),
    Index("ix_asset_dag_run_queue_unexamined", "dag_id", info={ONLY_WHERE: "NOT is_examined"}),
)
"""The events that a DAG waits for and that no run of it has consumed. `is_examined`: they do not suffice for a run.
`partition_key`: of the run that an event counts for; empty until it is mapped, or if the DAG has no partitions."""

dag_run_asset_event = sa.Table(
    "dag_run_asset_event",
    metadata,
    Column("dag_run_id", BigId, ForeignKey("dag_run.id", ondelete="CASCADE"), primary_key=True),
    Column("event_id", BigId, ForeignKey("asset_event.id", ondelete="CASCADE"), primary_key=True),
    Index("ix_dag_run_asset_event_event_id", "event_id"),
)
"""The events that a run consumed: those that triggered it."""


class CallbackRequest(Struct, frozen=True, kw_only=True):
    """A callback of a task instance, or of the run when `task_id` is empty.

    Attributes:
        attempts: How often it was begun.
        caused_by: JSON of the CausingTry that a task's callback is about.
        scheduler_id: The scheduler that runs it, or ran it last.
    """

    id: Id = 0
    dag_run_id: RunRowId
    task_id: Name = ""
    map_index: int = -1
    try_number: int = 0
    event: Word
    reason: str = ""
    state: Word = "queued"
    token: Word | None = None
    attempts: int = 0
    created_at: Moment
    caused_by: str = ""
    scheduler_id: SchedulerId | None = None


callback_request = table_of(
    "callback_request",
    CallbackRequest,
    UniqueConstraint(
        "dag_run_id", "task_id", "map_index", "try_number", "event", "created_at", name="uq_callback_request_event"
    ),
    Index("ix_callback_request_state", "state"),
)
"""Written in the transaction of the state change that caused it. Unique, so that a transaction that is applied again
adds nothing; a run that ends once more has another `created_at`."""


class ListenerCall(Struct, frozen=True, kw_only=True):
    """A call of a hook of listeners that belongs to no run.

    Attributes:
        event: The hook.
        subjects: The new assets or aliases, each with its `name`, `group`, and for an asset `uri` and `extra`; or the
            `file` with errors and its `stacktrace`.
        attempts: How often it was begun.
        scheduler_id: The scheduler that runs it, or ran it last.
    """

    id: Id = 0
    event: Word
    subjects: list[dict[str, Any]]
    created_at: Moment
    state: Word = "queued"
    token: Word | None = None
    attempts: int = 0
    scheduler_id: SchedulerId | None = None


listener_call = table_of("listener_call", ListenerCall)
"""Written in the transaction that makes its subjects, and deleted when the call has ended."""


class DeadlineRow(Struct, frozen=True, kw_only=True):
    """A deadline of a run. `number` is its place among the DAG's; `state` is pending, met or missed.

    A deadline that is not due yet is met once its run has succeeded, and pending again if the run is cleared.
    """

    id: Id = 0
    dag_run_id: RunRowId
    number: int
    name: str = ""
    due_at: Moment
    state: Word = "pending"


deadline = table_of(
    "deadline",
    DeadlineRow,
    UniqueConstraint("dag_run_id", "number"),
    Index("ix_deadline_pending", "due_at", info={ONLY_WHERE: "state = 'pending'"}),
)

run_request = sa.Table(
    "run_request",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("dag_run_id", BigId, ForeignKey("dag_run.id", ondelete="CASCADE"), nullable=False),
    Column("request", LargeBinary, nullable=False),
    Column("actor", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Index("ix_run_request_dag_run_id", "dag_run_id"),
)
"""A user's request about a running run. The scheduler that owns the run carries it out, and deletes the row."""


class BackfillRow(Struct, frozen=True, kw_only=True):
    """A backfill. Whether it has ended is seen from its runs, and stored nowhere."""

    id: Id = 0
    dag_id: Name
    from_date: Moment
    to_date: Moment
    reprocess: Word
    is_reverse: bool
    max_active_runs: int
    conf: dict[str, Any]
    is_paused: bool = False
    actor: str
    created_at: Moment
    cancelled_at: Moment | None = None


backfill = table_of("backfill", BackfillRow, Index("ix_backfill_dag_id", "dag_id"))

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


class UserRow(Struct, frozen=True, kw_only=True):
    """A user of the page and the REST APIs.

    Attributes:
        roles: `viewer`, `operator`, `admin`, and names that DAGs have in their `access_control`.
        password: Its Argon2 hash; None: the user signs in some other way.
        issuer: The OpenID Connect provider that names the user; empty: none.
        subject: The name by which the provider knows the user, which never changes.
    """

    id: Id = 0
    name: Name
    roles: list[str]
    password: str | None = None
    issuer: Name = ""
    subject: Name | None = None
    created_at: Moment


user = table_of("user", UserRow, UniqueConstraint("name"), UniqueConstraint("issuer", "subject"))


class TokenRow(Struct, frozen=True, kw_only=True):
    """A secret that stands for a user: only its hash is stored.

    Attributes:
        digest: SHA-256 of the secret, which is random and long.
        kind: `session` (in the cookie of a browser), `personal`, `access` (of `/auth/token`) or `link` (signs in once).
        user_id: None: the owner of the home, who may do everything.
        owner: The user's name, also the home's owner's.
        label: Its purpose, for the user.
        permission: The most that it allows: `view`, `operate` or `administer`.
        dag_ids: The only DAGs that it is for; None: all.
    """

    id: Id = 0
    digest: Hash
    kind: Word
    user_id: UserRowId | None = None
    owner: Name
    label: Name = ""
    permission: Word = "administer"
    dag_ids: list[str] | None = None
    created_at: Moment
    expires_at: Moment


token = table_of(
    "token", TokenRow, UniqueConstraint("digest"), Index("ix_token_user_id", "user_id"),
    Index("ix_token_expires_at", "expires_at"),
)  # fmt: skip


class TicketRow(Struct, frozen=True, kw_only=True):
    """A try that runs on another machine; `store/tickets.py` has its states.

    Attributes:
        executor: The name of its executor; empty where there is only one.
        engine_id: The name that the engine has given it; empty: it is not known to have it.
        digest: SHA-256 of the ticket's secret.
        launch: JSON of the Launch.
        sight: How the engine saw its job last, before a worker claimed it; for people.
        kill_reason: Not empty: its worker is to end it.
        worker: The worker that has claimed it, for people.
        worker_boot: Identifies the home of the worker that has claimed it, and the boot of its machine.
        renewals: Counts the renewals of its lease.
        lease_seconds: How long the lease lasts from its last renewal on.
        end_seconds: How long after its lease it has ended at the latest, as its worker was told.
        log_start: The byte of the stored log at which this try's own begins.
        started: JSON of its Started, `ended` of its Ended, once there is one.
        has_news: Whether its scheduler has not heard of them.
    """

    token: Word
    dag_run_id: RunRowId
    executor: LimitName
    engine_id: LimitName = ""
    state: Word = "submitted"
    digest: Hash
    launch: bytes
    sight: str = ""
    kill_reason: str = ""
    worker: Name = ""
    worker_boot: Hash = ""
    renewals: Big = 0
    lease_seconds: float = 0.0
    end_seconds: float = 0.0
    log_start: Big = 0
    started: bytes | None = None
    ended: bytes | None = None
    has_news: bool = False
    submitted_at: Moment


ticket = table_of(
    "ticket", TicketRow, Index("ix_ticket_dag_run_id", "dag_run_id"),
    Index("ix_ticket_news", "dag_run_id", info={ONLY_WHERE: "has_news"}), key="token",
)  # fmt: skip
