"""The one function that writes a state change of a DagRun or a TaskInstance, and the one of runs that change hands.

All changes of one moment are one batch in one transaction, and each kind of change is one statement for a thousand of
them: the rows travel as a JSON array. Every update is guarded by the state, the try number and the lease epoch that
its author knew. A row that does not match was changed elsewhere: it stays as it is, and is returned as stale. A batch
whose commit was not confirmed may be applied again.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, TextClause, select, text, update

from asynsched.states import TaskInstanceState
from asynsched.store.assets import AssetEventRow, record_events
from asynsched.store.rows import MOST_PARAMETERS
from asynsched.store.runs.row_locks import lock_runs
from asynsched.store.schema import CallbackRequest, HistoryRow, dag_run, task_instance
from asynsched.store.secrets import writing_cipher
from asynsched.store.statements import DIALECTS, as_json, assignments, execute_rows, insert_of, rows_of, update_of

TaskRowKey = tuple[int, str, int]
"""dag_run_id, task_id, map_index"""


class _OfInstance(Struct, frozen=True):
    dag_run_id: int
    task_id: str
    map_index: int


class TaskWrite(_OfInstance, frozen=True):
    """The new values of a TaskInstance, written if its row still has the state and the try number from before."""

    before_state: str | None
    before_try: int
    state: str | None
    reason: str
    try_number: int
    max_tries: int
    machine_kills: int
    token: str | None
    scheduled_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    next_try_at: datetime | None
    rendered_map_index: str | None
    result_length: int | None
    priority_weight: int
    pool: str
    pool_slots: int
    queue: str
    executor: str | None
    deferral: str | None
    ignored_dependencies: str | None = None


class ExpandedWrite(_OfInstance, frozen=True):
    """A TaskInstance that its mapped instances replace, if it still has the state from before."""

    before_state: str | None


class RunWrite(Struct, frozen=True):
    """The new values of a DagRun, written if its row still has the state and the lease epoch from before.

    `stop`: JSON of the RunStop of a run that is being stopped, or was.
    """

    id: int
    before_state: str
    before_epoch: int
    state: str
    reason: str
    started_at: datetime | None
    ended_at: datetime | None
    version_id: int | None
    scheduler_id: str | None
    lease_epoch: int
    queued_at: datetime
    stop: str | None = None


class XComDeletion(_OfInstance, frozen=True):
    """A TaskInstance whose XComs are deleted."""


class XComWrite(_OfInstance, frozen=True):
    """A task's return value or decision; `value` is JSON."""

    key: str
    value: str
    created_at: datetime


class RenderedFieldsWrite(_OfInstance, frozen=True):
    """What the templates of a try gave; `fields` is JSON."""

    try_number: int
    fields: str


class Batch(Struct, frozen=True):
    """The changes of one moment, made by one scheduler under one lease."""

    lease_epoch: int
    runs: list[RunWrite] = []
    expanded: list[ExpandedWrite] = []
    new_tasks: list[TaskWrite] = []
    tasks: list[TaskWrite] = []
    history: list[HistoryRow] = []
    forgotten: list[XComDeletion] = []
    xcoms: list[XComWrite] = []
    rendered: list[RenderedFieldsWrite] = []
    callbacks: list[CallbackRequest] = []
    asset_events: list[AssetEventRow] = []

    @property
    def is_of_states_alone(self) -> bool:
        """Whether it only changes task instances that have a row, none with a secret, and runs."""
        others = (
            self.expanded, self.new_tasks, self.history, self.forgotten, self.xcoms, self.rendered, self.callbacks,
            self.asset_events,
        )  # fmt: skip
        return bool(self.tasks) and not any(others) and all(row.deferral is None for row in self.tasks)


class Stale(Struct, frozen=True):
    """The rows that a batch could not change, because they are not as its author knew them."""

    runs: frozenset[int]
    tasks: frozenset[TaskRowKey]

    def __bool__(self) -> bool:
        return bool(self.runs or self.tasks)

    @property
    def run_ids(self) -> frozenset[int]:
        """The runs that have something stale."""
        return self.runs | {key[0] for key in self.tasks}


_ARE_ALL_SIGNED = "(SELECT count(*) FROM signed) = :n_needed"


def _signed(dialect: str) -> str:
    """Return the beginning of a statement with pools: it selects those that are signed and have enough slots.

    Rows that another transaction has locked are left out. A row that was changed since the statement began is read in
    its new state.
    """
    rows, lock = "json_each(:needed)", ""
    if dialect == "postgresql":
        rows, lock = "jsonb_each_text(CAST(:needed AS jsonb))", " ORDER BY p.name FOR NO KEY UPDATE OF p SKIP LOCKED"
    return (
        "WITH signed AS MATERIALIZED (SELECT p.name"  # noqa: S608 - nothing but the above
        f" FROM pool AS p JOIN {rows} AS n ON p.name = n.key WHERE p.settled_by = :epoch"
        f" AND (p.slots = -1 OR p.slots >= CAST(n.value AS bigint)){lock}) "
    )


_RUN_IS_SAME = "t.state = v.before_state AND t.lease_epoch = v.before_epoch"
_RUNS_ARE_SAME = "(SELECT count(*) FROM same_runs) = :n_runs"
_ARE_ALL_WRITTEN = "(SELECT count(*) FROM written) = :n_tasks"


def _with_runs(update_tasks: str) -> str:
    """Return a PostgreSQL statement that changes task instances, and then runs, if all are as their author knew them.

    The runs of all task instances are locked first, in their order, as every transaction does that has to do with runs.
    `update_tasks` ends the statement that is begun here; it changes nothing unless `_RUNS_ARE_SAME`.
    """
    tasks = rows_of(TaskWrite, "postgresql")
    runs = rows_of(RunWrite, "postgresql", "runs")
    return (
        f"{_signed('postgresql')}, locked AS MATERIALIZED (SELECT t.id, t.state, t.lease_epoch FROM"  # noqa: S608 - ours
        f" (SELECT dag_run_id AS id FROM {tasks} AS a UNION SELECT id FROM {runs} AS b ORDER BY id) AS v"
        " CROSS JOIN LATERAL (SELECT * FROM dag_run AS t WHERE t.id = v.id FOR NO KEY UPDATE) AS t)"
        ", same_runs AS MATERIALIZED"
        f" (SELECT v.* FROM {runs} AS v JOIN locked AS t ON t.id = v.id WHERE {_RUN_IS_SAME})"
        f", written AS ({update_tasks})"
        f", ended AS (UPDATE dag_run AS t SET {assignments(RunWrite, ('id',))} FROM same_runs AS v"
        f" WHERE t.id = v.id AND {_ARE_ALL_WRITTEN} RETURNING t.id) SELECT id FROM ended"
    )


_SAME_TASK = "t.dag_run_id = v.dag_run_id AND t.task_id = v.task_id AND t.map_index = v.map_index"


def _statements(dialect: str) -> dict[str, TextClause]:
    in_order = "" if dialect == "sqlite" else " ORDER BY t.dag_run_id, t.task_id, t.map_index FOR UPDATE OF t"
    same_state = "IS" if dialect == "sqlite" else "IS NOT DISTINCT FROM"
    before = frozenset({"before_state", "before_try"})
    same_task = f"t.state {same_state} v.before_state AND t.try_number = v.before_try AND t.lease_epoch = :epoch"
    forgotten = rows_of(XComDeletion, dialect)
    expanded = rows_of(ExpandedWrite, dialect)
    statements = {
        "insert_tasks": insert_of(
            "task_instance", TaskWrite, dialect, skip=before, extra={"lease_epoch": ":epoch"}, conflict="DO NOTHING"
        ),
        "insert_history": insert_of("task_instance_history", HistoryRow, dialect, conflict="DO NOTHING"),
        "delete_xcoms": "DELETE FROM xcom WHERE (dag_run_id, task_id, map_index) IN"  # noqa: S608 - names of our own
        f" (SELECT v.dag_run_id, v.task_id, v.map_index FROM {forgotten} AS v)",
        "upsert_xcoms": insert_of(
            "xcom", XComWrite, dialect,
            conflict="(dag_run_id, task_id, map_index, key) DO UPDATE SET value = excluded.value,"
            " created_at = excluded.created_at",
        ),
        "upsert_rendered": insert_of(
            "rendered_fields", RenderedFieldsWrite, dialect,
            conflict="(dag_run_id, task_id, map_index, try_number) DO UPDATE SET fields = excluded.fields",
        ),
        "insert_callbacks": insert_of("callback_request", CallbackRequest, dialect, conflict="DO NOTHING"),
        "update_tasks": update_of(
            "task_instance", TaskWrite, dialect, keys=("dag_run_id", "task_id", "map_index"), guard=same_task
        ),
        "update_tasks_at_once": update_of(
            "task_instance", TaskWrite, dialect, keys=("dag_run_id", "task_id", "map_index"),
            guard=f"{same_task} AND {_ARE_ALL_SIGNED}", given=_signed(dialect),
        ),
        "delete_expanded": "DELETE FROM task_instance WHERE id IN (SELECT t.id"  # noqa: S608 - as above
        f" FROM {expanded} AS v JOIN task_instance AS t ON {_SAME_TASK}"
        f" WHERE t.state {same_state} v.before_state AND t.lease_epoch = :epoch{in_order})",
        "find_expanded": "SELECT t.dag_run_id, t.task_id, t.map_index"  # noqa: S608 - as above
        f" FROM {expanded} AS v JOIN task_instance AS t ON {_SAME_TASK}",
        "update_runs": update_of("dag_run", RunWrite, dialect, keys=("id",), guard=_RUN_IS_SAME),
    }  # fmt: skip
    if dialect == "postgresql":
        statements["update_runs_at_once"] = _with_runs(
            update_of(
                "task_instance", TaskWrite, dialect, keys=("dag_run_id", "task_id", "map_index"),
                guard=f"{same_task} AND {_ARE_ALL_SIGNED} AND {_RUNS_ARE_SAME}",
            )
        )  # fmt: skip
    return {name: text(statement) for name, statement in statements.items()}


STATEMENTS = {dialect: _statements(dialect) for dialect in DIALECTS}
"""By dialect, then by name."""


def apply(conn: Connection, batch: Batch) -> Stale:
    """Write a batch except its stale changes, which are returned.

    Guarded rows are written first. No row is added for a stale task instance or run, except rows of task instances that
    were written. A run is stale when one of its task instances is: its state follows from theirs.
    """
    epoch = batch.lease_epoch
    taken_away = _lock_runs(conn, batch)
    tasks = _update_tasks(conn, _encrypted(conn, batch.tasks), epoch) | _delete_expanded(conn, batch.expanded, epoch)
    with_stale_tasks = {key[0] for key in tasks}
    runs = {row.id for row in batch.runs if row.id in with_stale_tasks}
    runs |= _update_runs(conn, [row for row in batch.runs if row.id not in with_stale_tasks])
    runs |= taken_away

    written = {_key(row) for row in batch.tasks} - tasks

    def is_valid(row: "_OfTask") -> bool:
        return _key(row) in written or (row.dag_run_id not in runs and _key(row) not in tasks)

    for statement, rows in (
        ("insert_tasks", _encrypted(conn, batch.new_tasks)),
        ("insert_history", batch.history),
        ("delete_xcoms", batch.forgotten),
        ("upsert_xcoms", batch.xcoms),
        ("upsert_rendered", batch.rendered),
        ("insert_callbacks", batch.callbacks),
    ):
        if valid := [row for row in rows if is_valid(row)]:
            _execute(conn, statement, valid, epoch)
    if batch.asset_events:
        record_events(conn, filter(is_valid, batch.asset_events))
    return Stale(frozenset(runs), frozenset(tasks))


def apply_at_once(conn: Connection, batch: Batch, needed: Mapping[str, int]) -> bool:
    """Write a batch that `is_of_states_alone` in one statement, if its author may take slots without a settlement.

    For that, each pool must have the `needed` slots in all; see `pools.settle_slots`. Returns whether everything is
    written. If not, some task instances may be, but no run, and `apply` is to write it.
    """
    dialect = conn.dialect.name
    parameters = {
        "rows": as_json(batch.tasks, dialect),
        "epoch": batch.lease_epoch,
        "needed": msgspec.json.encode(needed).decode(),
        "n_needed": len(needed),
    }
    if batch.runs and dialect == "sqlite":
        return False  # no statement of it changes two tables
    if not batch.runs:
        return len(conn.execute(STATEMENTS[dialect]["update_tasks_at_once"], parameters).all()) == len(batch.tasks)
    parameters |= {"runs": as_json(batch.runs, dialect), "n_tasks": len(batch.tasks), "n_runs": len(batch.runs)}
    return len(conn.execute(STATEMENTS[dialect]["update_runs_at_once"], parameters).all()) == len(batch.runs)


def take_for_begun(conn: Connection, run_row_ids: Sequence[int]) -> None:
    """Mark queued task instances of some runs as running, because it is unknown whether their tries have begun.

    Call it in the transaction that makes the runs one's own, with their rows locked.
    """
    if run_row_ids:
        is_queued = task_instance.c.state == TaskInstanceState.QUEUED
        taken = update(task_instance).where(task_instance.c.dag_run_id.in_(run_row_ids), is_queued)
        conn.execute(taken.values(state=TaskInstanceState.RUNNING))


_OfTask = TaskWrite | HistoryRow | XComDeletion | XComWrite | RenderedFieldsWrite | CallbackRequest | AssetEventRow
"""A row of a task instance."""


def _key(row: _OfTask) -> TaskRowKey:
    return (row.dag_run_id, row.task_id, row.map_index)


def _encrypted(conn: Connection, rows: list[TaskWrite]) -> list[TaskWrite]:
    """Return the rows with the deferrals as they are stored: the arguments of triggers may be secrets."""
    if all(row.deferral is None for row in rows):
        return rows
    cipher = writing_cipher(conn)
    return [row if row.deferral is None else replace(row, deferral=cipher.encrypt(row.deferral)) for row in rows]


def _update_tasks(conn: Connection, rows: list[TaskWrite], epoch: int) -> set[TaskRowKey]:
    if not rows:
        return set()
    updated = {(key[0], key[1], key[2]) for key in _execute(conn, "update_tasks", rows, epoch)}
    missing = [row for row in rows if _key(row) not in updated]
    return {_key(row) for row in missing if not _is_applied(conn, row, epoch)}


def _delete_expanded(conn: Connection, rows: list[ExpandedWrite], epoch: int) -> set[TaskRowKey]:
    """Delete the unexpanded task instances; one that is still there was changed elsewhere."""
    if not rows:
        return set()
    _execute(conn, "delete_expanded", rows, epoch)
    return {(key[0], key[1], key[2]) for key in _execute(conn, "find_expanded", rows)}


def _update_runs(conn: Connection, rows: list[RunWrite]) -> set[int]:
    if not rows:
        return set()
    # Sorted, for more than one statement takes may wait for another such batch in the middle.
    in_order = sorted(rows, key=lambda row: row.id)
    updated = {key[0] for key in _execute(conn, "update_runs", in_order)}
    return {row.id for row in rows if row.id not in updated and not _run_is_applied(conn, row)}


def _lock_runs(conn: Connection, batch: Batch) -> set[int]:
    """Lock the runs of a batch, unless it locks only a few task instances, which one statement does in their order.

    So a transaction that has locked a run, such as a takeover, never waits for one that waits for that run.

    Returns:
        The runs that are to get task instances, but belong to another scheduler by now. The other runs remain this
        scheduler's until the commit: a new task instance has no row whose epoch could guard it.
    """
    getting = {row.dag_run_id for row in batch.new_tasks} - {row.id for row in batch.runs}
    wanted = set(getting)
    most = max(len(batch.tasks), len(batch.expanded))
    if most and (batch.runs or batch.new_tasks or (batch.tasks and batch.expanded) or most > MOST_PARAMETERS):
        wanted.update(row.id for row in batch.runs)
        wanted.update(row.dag_run_id for row in batch.tasks)
        wanted.update(row.dag_run_id for row in batch.expanded)
    owners = lock_runs(conn, wanted) if conn.dialect.name != "sqlite" or getting else {}
    return {run_id for run_id in getting if owners.get(run_id) != batch.lease_epoch}


def _is_applied(conn: Connection, row: TaskWrite, epoch: int) -> bool:
    names = ("dag_run_id", "task_id", "map_index", "state", "try_number", "token")
    same = (task_instance.c[name] == getattr(row, name) for name in names)
    query = select(task_instance.c.id).where(*same, task_instance.c.lease_epoch == epoch)
    return conn.scalar(query) is not None


def _run_is_applied(conn: Connection, row: RunWrite) -> bool:
    same = (dag_run.c[name] == getattr(row, name) for name in ("id", "state", "lease_epoch"))
    return conn.scalar(select(dag_run.c.id).where(*same)) is not None


def _execute(conn: Connection, name: str, rows: list[Any], epoch: int | None = None) -> list[Any]:
    statement = STATEMENTS[conn.dialect.name][name]
    parameters = {"epoch": epoch} if ":epoch" in statement.text else {}
    return execute_rows(conn, statement, rows, **parameters)
