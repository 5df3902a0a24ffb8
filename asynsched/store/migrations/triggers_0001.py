"""The triggers that number every change of a run and of a task instance, as revision 0001 makes them.

A trigger writes the rows of `change` within the transaction of the change, so no writer can forget them, and a change
is never stored without its number. `change.number` only rises. A change has a higher number than every earlier change
of the same row, because it gets the number while its transaction holds that row.

SQLite has one writer, so the order of the numbers is that of the commits. PostgreSQL takes numbers from a sequence,
which locks nothing, so a transaction may commit after another one that has higher numbers. A reader must not pass over
numbers that are yet to be committed. Therefore a transaction takes a shared advisory lock before it takes numbers. The
key of that lock is the sequence's last number at that moment: the numbers that follow are higher. `changes.py` reads
only up to the lowest of these keys. A lock of this kind never waits. A transaction takes it once, however many
statements it has: locks of all transactions share a table of a fixed size. A setting of the transaction says that it
has the lock; a savepoint that is rolled back undoes both.

On PostgreSQL one trigger numbers all rows of a statement with one INSERT. It finds the former state of each row by a
sort and not by a join: a plan for one row would join a thousand rows by a million comparisons.
"""

from functools import partial

import sqlalchemy as sa

LOCK_NAMESPACE = 0x6368
"""The first 16 bits of the key of an advisory lock on numbers; the other 48 are a number."""
NEWEST_NUMBER = "CASE WHEN is_called THEN last_value ELSE 0 END"
"""An expression for the number that a sequence gave last; 0 before the first."""
REASON_LENGTH = 1000
"""How much of a reason is copied: it may be as long as an error message of user code."""

_COLUMNS = "at, kind, dag_id, run_id, task_id, map_index, try_number, state, reason"


def _sqlite(name: str, event: str, row: str) -> str:
    """Return the statement that makes a trigger for each row."""
    now = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
    return f"CREATE TRIGGER {name} AFTER {event} BEGIN INSERT INTO change ({_COLUMNS}) SELECT {now}, {row}; END"


_SQLITE_RUN = f"'run', new.dag_id, new.run_id, '', -1, 0, new.state, substr(new.reason, 1, {REASON_LENGTH})"
_SQLITE_TASK = (
    "'task', r.dag_id, r.run_id, new.task_id, new.map_index, new.try_number, new.state,"
    f" substr(new.reason, 1, {REASON_LENGTH}) FROM dag_run AS r WHERE r.id = new.dag_run_id"
)
_SQLITE_RUN_CHANGES = "UPDATE OF state ON dag_run WHEN new.state IS NOT old.state"
_SQLITE_TASK_CHANGES = (
    "UPDATE OF state, try_number ON task_instance"
    " WHEN new.state IS NOT old.state OR new.try_number IS NOT old.try_number"
)
_HAS_LOCK = "asynsched.has_lock_on_numbers"
_POSTGRESQL_FUNCTION = f"""
CREATE FUNCTION {{name}}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('{_HAS_LOCK}', true) IS DISTINCT FROM 'yes' THEN
    PERFORM pg_advisory_xact_lock_shared({LOCK_NAMESPACE << 48} + {NEWEST_NUMBER}) FROM change_number_seq;
    PERFORM set_config('{_HAS_LOCK}', 'yes', true);
  END IF;
  INSERT INTO change ({_COLUMNS}) {{select}};
  RETURN NULL;
END $$
"""
_POSTGRESQL_TRIGGER = (
    "CREATE TRIGGER {name} AFTER {event} ON {table} REFERENCING {rows} FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
)
_POSTGRESQL_RUN = (
    "SELECT statement_timestamp(), 'run', c.dag_id, c.run_id, '', -1, 0, c.state,"  # noqa: S608 - constants
    f" left(c.reason, {REASON_LENGTH}) FROM {{rows}} AS c {{where}} ORDER BY c.id"
)
# OFFSET 0 keeps the lookup of each run by its id, however large the server believes the tables to be.
_POSTGRESQL_TASK = (
    "SELECT statement_timestamp(), 'task', r.dag_id, r.run_id, c.task_id, c.map_index, c.try_number, c.state,"  # noqa: S608 - as above
    f" left(c.reason, {REASON_LENGTH}) FROM {{rows}} AS c"
    " CROSS JOIN LATERAL (SELECT d.dag_id, d.run_id FROM dag_run AS d WHERE d.id = c.dag_run_id OFFSET 0) AS r"
    " {where} ORDER BY c.id"
)


def _with_former(columns: str, compared: str) -> str:
    """Return a table expression of updated rows, each with the columns `compared` also as `old_…`."""
    former = ", ".join(f"lag({name}) OVER of_row AS old_{name}" for name in compared.split(", "))
    both = " UNION ALL ".join(
        f"SELECT {is_new} AS is_new, id, {columns} FROM {rows}"  # noqa: S608 - as above
        for is_new, rows in (("false", "old_rows"), ("true", "new_rows"))
    )
    return f"(SELECT *, {former} FROM ({both}) AS v WINDOW of_row AS (PARTITION BY id ORDER BY is_new))"  # noqa: S608 - as above


def _where_changed(compared: str) -> str:
    differs = " OR ".join(f"c.{name} IS DISTINCT FROM c.old_{name}" for name in compared.split(", "))
    return f"WHERE c.is_new AND ({differs})"


def _postgresql(table: str, select: str, columns: str, compared: str) -> tuple[str, ...]:
    """Return the statements that make the functions and the triggers of a table."""
    inserts, updates = f"number_inserts_of_{table}", f"number_updates_of_{table}"
    of_inserts = select.format(rows="new_rows", where="")
    of_updates = select.format(rows=_with_former(columns, compared), where=_where_changed(compared))
    both = "OLD TABLE AS old_rows NEW TABLE AS new_rows"
    trigger = partial(_POSTGRESQL_TRIGGER.format, table=table)
    return (
        _POSTGRESQL_FUNCTION.format(name=inserts, select=of_inserts),
        _POSTGRESQL_FUNCTION.format(name=updates, select=of_updates),
        trigger(name="number_inserts", event="INSERT", rows="NEW TABLE AS new_rows", function=inserts),
        trigger(name="number_updates", event="UPDATE", rows=both, function=updates),
    )


_TASK_COLUMNS = "dag_run_id, task_id, map_index, try_number, state, reason"
STATEMENTS = {
    "sqlite": (
        _sqlite("number_new_run", "INSERT ON dag_run", _SQLITE_RUN),
        _sqlite("number_run", _SQLITE_RUN_CHANGES, _SQLITE_RUN),
        _sqlite("number_new_task", "INSERT ON task_instance", _SQLITE_TASK),
        _sqlite("number_task", _SQLITE_TASK_CHANGES, _SQLITE_TASK),
    ),
    "postgresql": (
        *_postgresql("dag_run", _POSTGRESQL_RUN, "dag_id, run_id, state, reason", "state"),
        *_postgresql("task_instance", _POSTGRESQL_TASK, _TASK_COLUMNS, "state, try_number"),
    ),
}
"""By dialect: the statements that make the triggers, once the tables are there."""


def make_triggers(conn: sa.Connection) -> None:
    """Make the triggers of a database that has the tables."""
    for statement in STATEMENTS[conn.dialect.name]:
        conn.exec_driver_sql(statement)
