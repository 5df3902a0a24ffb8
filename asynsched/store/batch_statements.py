"""The statements that write a batch of state changes: one for each kind of change, the rows as a JSON array."""

from sqlalchemy import TextClause, text

from asynsched.store.changes import CallbackRow, ExpandedRow, ForgottenRow, HistoryRow, RunRow, TaskRow, XComRow
from asynsched.store.json_rows import DIALECTS, assignments, insert_of, rows_of, update_of

_ARE_ALL_SIGNED = "(SELECT count(*) FROM signed) = :n_needed"


def _signed(dialect: str) -> str:
    """Return what begins a statement that is given pools: those of them that are signed and have as many slots.

    Rows that somebody else holds are left out. A row that was changed since the statement began is looked at as it is.
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
    """Return what changes task instances, and then runs, if all of them are as their author knew them. PostgreSQL's.

    The runs of all task instances are locked first, in their order, as every transaction does that has to do with runs.

    Args:
        update_tasks: Ends the statement that is begun here; it changes nothing unless `_RUNS_ARE_SAME`.
    """
    tasks = rows_of(TaskRow.__struct_fields__, "postgresql")
    runs = rows_of(RunRow.__struct_fields__, "postgresql", "runs")
    return (
        f"{_signed('postgresql')}, locked AS MATERIALIZED (SELECT t.id, t.state, t.lease_epoch FROM"  # noqa: S608 - ours
        f" (SELECT dag_run_id AS id FROM {tasks} AS a UNION SELECT id FROM {runs} AS b ORDER BY id) AS v"
        " CROSS JOIN LATERAL (SELECT * FROM dag_run AS t WHERE t.id = v.id FOR NO KEY UPDATE) AS t)"
        ", same_runs AS MATERIALIZED"
        f" (SELECT v.* FROM {runs} AS v JOIN locked AS t ON t.id = v.id WHERE {_RUN_IS_SAME})"
        f", written AS ({update_tasks})"
        f", ended AS (UPDATE dag_run AS t SET {assignments(RunRow, ('id',))} FROM same_runs AS v"
        f" WHERE t.id = v.id AND {_ARE_ALL_WRITTEN} RETURNING t.id) SELECT id FROM ended"
    )


_SAME_TASK = "t.dag_run_id = v.dag_run_id AND t.task_id = v.task_id AND t.map_index = v.map_index"


def _statements(dialect: str) -> dict[str, TextClause]:
    in_order = "" if dialect == "sqlite" else " ORDER BY t.dag_run_id, t.task_id, t.map_index FOR UPDATE OF t"
    same_state = "IS" if dialect == "sqlite" else "IS NOT DISTINCT FROM"
    before = frozenset({"before_state", "before_try"})
    same_task = f"t.state {same_state} v.before_state AND t.try_number = v.before_try AND t.lease_epoch = :epoch"
    forgotten = rows_of(ForgottenRow.__struct_fields__, dialect)
    expanded = rows_of(ExpandedRow.__struct_fields__, dialect)
    statements = {
        "insert_tasks": insert_of(
            "task_instance", TaskRow, dialect, skip=before, extra={"lease_epoch": ":epoch"}, conflict="DO NOTHING"
        ),
        "insert_history": insert_of("task_instance_history", HistoryRow, dialect, conflict="DO NOTHING"),
        "delete_xcoms": "DELETE FROM xcom WHERE (dag_run_id, task_id, map_index) IN"  # noqa: S608 - names of our own
        f" (SELECT v.dag_run_id, v.task_id, v.map_index FROM {forgotten} AS v)",
        "upsert_xcoms": insert_of(
            "xcom", XComRow, dialect,
            conflict="(dag_run_id, task_id, map_index, key) DO UPDATE SET value = excluded.value,"
            " created_at = excluded.created_at",
        ),
        "insert_callbacks": insert_of(
            "callback_request", CallbackRow, dialect, extra={"state": "'queued'", "attempts": "0"},
            conflict="DO NOTHING",
        ),
        "update_tasks": update_of(
            "task_instance", TaskRow, dialect, keys=("dag_run_id", "task_id", "map_index"), guard=same_task
        ),
        "update_tasks_at_once": update_of(
            "task_instance", TaskRow, dialect, keys=("dag_run_id", "task_id", "map_index"),
            guard=f"{same_task} AND {_ARE_ALL_SIGNED}", given=_signed(dialect),
        ),
        "delete_expanded": "DELETE FROM task_instance WHERE id IN (SELECT t.id"  # noqa: S608 - as above
        f" FROM {expanded} AS v JOIN task_instance AS t ON {_SAME_TASK}"
        f" WHERE t.state {same_state} v.before_state AND t.lease_epoch = :epoch{in_order})",
        "find_expanded": "SELECT t.dag_run_id, t.task_id, t.map_index"  # noqa: S608 - as above
        f" FROM {expanded} AS v JOIN task_instance AS t ON {_SAME_TASK}",
        "update_runs": update_of(
            "dag_run", RunRow, dialect, keys=("id",), guard=_RUN_IS_SAME,
        ),
    }  # fmt: skip
    if dialect == "postgresql":
        statements["update_runs_at_once"] = _with_runs(
            update_of(
                "task_instance", TaskRow, dialect, keys=("dag_run_id", "task_id", "map_index"),
                guard=f"{same_task} AND {_ARE_ALL_SIGNED} AND {_RUNS_ARE_SAME}",
            )
        )  # fmt: skip
    return {name: text(statement) for name, statement in statements.items()}


STATEMENTS = {dialect: _statements(dialect) for dialect in DIALECTS}
"""By dialect, then by name."""
