"""Queries of `task_instance` and of its earlier tries. `transitions.py` writes them."""

from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection

from asynsched.states import TaskInstanceState
from asynsched.store.encryption import reading_cipher
from asynsched.store.rows import as_struct
from asynsched.store.schema.tables import task_instance, task_instance_history


class TaskInstanceRow(Struct, frozen=True):
    """A task instance. `priority_weight` is the total, as the weight rule gives it.

    `deferral` is decrypted where a run is loaded, and a token where it is listed.
    """

    id: int
    dag_run_id: int
    task_id: str
    map_index: int
    state: str | None
    reason: str
    try_number: int
    max_tries: int
    machine_kills: int
    token: str | None
    lease_epoch: int
    priority_weight: int
    pool: str
    pool_slots: int
    queue: str
    executor: str | None
    scheduled_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    next_try_at: datetime | None
    rendered_map_index: str | None
    result_length: int | None
    deferral: str | None
    ignored_dependencies: str | None = None


class FailedTask(NamedTuple):
    """A task instance that has failed, and why."""

    task_id: str
    map_index: int
    reason: str

    @property
    def name(self) -> str:
        """Its task's id, with the map index of one that is mapped."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"


class TryRow(Struct, frozen=True):
    """A try of a task instance that another try has followed."""

    task_id: str
    map_index: int
    try_number: int
    state: str | None
    reason: str
    scheduled_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None


_IS_OF_RUN = task_instance.c.dag_run_id == sa.bindparam("run")
_LOADED = sa.select(task_instance).where(_IS_OF_RUN).order_by(task_instance.c.id)
_LISTED = (
    sa.select(task_instance)
    .where(_IS_OF_RUN)
    .order_by(
        sa.func.coalesce(task_instance.c.started_at, task_instance.c.ended_at).asc().nulls_last(), task_instance.c.id
    )
)
_FIRST_FAILURE = (
    sa.select(task_instance.c.task_id, task_instance.c.map_index, task_instance.c.reason)
    .where(_IS_OF_RUN, task_instance.c.state == TaskInstanceState.FAILED)
    .order_by(task_instance.c.ended_at, task_instance.c.id)
    .limit(1)
)
_TRIES = (
    sa.select(*(task_instance_history.c[name] for name in TryRow.__struct_fields__))
    .where(task_instance_history.c.dag_run_id == sa.bindparam("run"))
    .order_by(task_instance_history.c.task_id, task_instance_history.c.map_index, task_instance_history.c.id)
)
_NUMBERS = sa.select(
    task_instance_history.c.task_id,
    task_instance_history.c.map_index,
    task_instance_history.c.token,
    task_instance_history.c.try_number,
).where(task_instance_history.c.dag_run_id == sa.bindparam("run"))

_TOKENS = sa.union(
    *(
        sa.select(table.c.token).where(table.c.dag_run_id == sa.bindparam("run"), table.c.token.is_not(None))
        for table in (task_instance, task_instance_history)
    )
)


def load_task_instances(conn: Connection, dag_run_id: int) -> list[TaskInstanceRow]:
    """Return the task instances of a run, in the order in which they were made."""
    rows = [as_struct(TaskInstanceRow, row) for row in conn.execute(_LOADED, {"run": dag_run_id})]
    if all(row.deferral is None for row in rows):
        return rows
    cipher = reading_cipher(conn)
    return [row if row.deferral is None else replace(row, deferral=cipher.decrypt(row.deferral)) for row in rows]


def list_task_instances(conn: Connection, dag_run_id: int) -> list[TaskInstanceRow]:
    """Return the task instances of a run for a reader: in the order in which they began, then those that have not."""
    return [as_struct(TaskInstanceRow, row) for row in conn.execute(_LISTED, {"run": dag_run_id})]


def first_failure(conn: Connection, dag_run_id: int) -> FailedTask | None:
    """Return the task instance of a run that failed first; None if none has."""
    row = conn.execute(_FIRST_FAILURE, {"run": dag_run_id}).first()
    return None if row is None else FailedTask(*row)


def list_tries(conn: Connection, dag_run_id: int) -> list[TryRow]:
    """Return the earlier tries of a run's task instances, by task, oldest first."""
    return [as_struct(TryRow, row) for row in conn.execute(_TRIES, {"run": dag_run_id})]


def numbers_of_tries(conn: Connection, dag_run_id: int) -> dict[tuple[str, int], dict[str | None, int]]:
    """Return the numbers of the earlier tries of a run's task instances: of each, by token."""
    found: dict[tuple[str, int], dict[str | None, int]] = {}
    for task_id, map_index, token, number in conn.execute(_NUMBERS, {"run": dag_run_id}):
        found.setdefault((task_id, map_index), {})[token] = number
    return found


def tokens_of_tries(conn: Connection, dag_run_id: int) -> frozenset[str]:
    """Return the tokens of the last and the earlier tries of a run's task instances."""
    return frozenset(conn.scalars(_TOKENS, {"run": dag_run_id}))
