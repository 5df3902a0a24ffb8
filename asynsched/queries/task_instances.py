"""Questions about task instances and their tries."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, Row

from asynsched.errors import AsynschedError, NotFound
from asynsched.executors.log_paths import log_path
from asynsched.home import LOGS
from asynsched.keys import DagRunKey, TaskInstanceKey, instance_name
from asynsched.queries.dag_versions import VersionInfo
from asynsched.queries.paging import ANY_TEXT, FIRST_PAGE, Page, Paging, Pattern, Range, Sorting, one_of, select_page
from asynsched.queries.runs import OF_VERSION, RunFilter, RunInfo, conditions_of_runs, no_such_run, version_of
from asynsched.states import FINISHED_RUN_STATES, FINISHED_TASK_STATES, PAUSED_TASK_STATES, TaskInstanceState
from asynsched.store.expressions import seconds_between, tasks_of_versions
from asynsched.store.rows import count, fetch, in_common, near_names
from asynsched.store.runs.task_instances import UNDER_WAY_IDS, UNDER_WAY_STATES
from asynsched.store.schema import (
    dag,
    dag_run,
    dag_version,
    note,
    rendered_fields,
    task_instance,
    task_instance_history,
)

_T = TaskInstanceState
_OVER = FINISHED_TASK_STATES | {_T.UP_FOR_RETRY}
DURATION = seconds_between(task_instance.c.started_at, task_instance.c.ended_at)
CHANGED_AT = sa.func.coalesce(
    task_instance.c.ended_at, task_instance.c.started_at, task_instance.c.queued_at, task_instance.c.scheduled_at
)
"""The last moment that is stored of a task instance."""
BEGAN_AT = sa.func.coalesce(task_instance.c.started_at, task_instance.c.ended_at)
"""When a task instance started; if it was skipped or has failed before that, when it ended."""
TRY_NUMBER = task_instance.c.try_number + sa.case((task_instance.c.state.in_(PAUSED_TASK_STATES), 1), else_=0)
SORTING = Sorting(
    {
        "id": task_instance.c.id,
        "state": task_instance.c.state,
        "dag_id": dag_run.c.dag_id,
        "run_id": dag_run.c.run_id,
        "task_id": task_instance.c.task_id,
        "map_index": task_instance.c.map_index,
        "rendered_map_index": task_instance.c.rendered_map_index,
        "try_number": TRY_NUMBER,
        "queued_at": task_instance.c.queued_at,
        "began_at": BEGAN_AT,
        "started_at": task_instance.c.started_at,
        "ended_at": task_instance.c.ended_at,
        "updated_at": CHANGED_AT,
        "duration_seconds": DURATION,
        "logical_date": dag_run.c.logical_date,
        "run_after": dag_run.c.run_after,
        "data_interval_start": dag_run.c.data_interval_start,
        "data_interval_end": dag_run.c.data_interval_end,
    },
    key=task_instance.c.id,
    usual=("id",),
)


class TaskInstanceInfo(Struct, frozen=True, kw_only=True):
    """A task instance.

    Attributes:
        reason: Why it is in its state.
        task_display_name: The name of its task for people.
        operator: The class of its task; None while its run has no version. `operator_name` is its name for people.
        try_number: Counts from 1; 0 before the first try.
        priority_weight: The total, as the weight rule gives it.
        duration_seconds: None until it has ended.
        note: A user's text about it.
        version: That of its run.
    """

    id: int
    dag_id: str
    dag_display_name: str
    run_id: str
    task_id: str
    task_display_name: str
    map_index: int
    rendered_map_index: str | None
    state: str | None
    reason: str
    operator: str | None
    operator_name: str | None
    try_number: int
    max_tries: int
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
    duration_seconds: float | None
    logical_date: datetime | None
    run_after: datetime
    note: str | None
    version: VersionInfo | None

    @property
    def key(self) -> TaskInstanceKey:
        """The identity of the task instance."""
        return TaskInstanceKey(self.dag_id, self.run_id, self.task_id, self.map_index)

    @property
    def name(self) -> str:
        """Its name within its run."""
        return instance_name(self.task_id, self.map_index)


def number_of_newest_try(home: Path, info: TaskInstanceInfo) -> int:
    """Return the number of the newest try that has begun; 0 before the first. This looks at the logs in the home."""
    if info.state != _T.SCHEDULED:
        return info.try_number
    # A try that goes on after a pause, or that a stop has interrupted, is not counted yet.
    path = home / LOGS / log_path(info.key, info.try_number + 1)
    return info.try_number + (info.started_at is not None or path.exists())


def is_try_over(info: TaskInstanceInfo, number: int, newest: int) -> bool:
    """Return whether a try has ended, so that its log is whole; `newest` is the number of the newest try."""
    return number < newest or info.state in _OVER


class TaskInstanceFilter(Struct, frozen=True):
    """Which task instances are wanted; None and empty ones: all.

    Attributes:
        run: Of such runs.
        states: None among them stands for no state.
        groups: Of tasks in these groups.
        display_name: Of tasks with such a name for people.
        is_mapped: Only instances of mapped tasks, or only others.
        started_at: When it started; if it was skipped or has failed before that, when it ended.
        updated_at: When its last stored moment was: its end, else its start, and so on.
    """

    run: RunFilter = RunFilter()
    task_ids: tuple[str, ...] | None = None
    states: tuple[str | None, ...] | None = None
    pools: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    executors: tuple[str, ...] | None = None
    operators: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    try_numbers: tuple[int, ...] | None = None
    map_indexes: tuple[int, ...] | None = None
    is_mapped: bool | None = None
    task_id: Pattern = ANY_TEXT
    display_name: Pattern = ANY_TEXT
    pool: Pattern = ANY_TEXT
    queue: Pattern = ANY_TEXT
    operator_name: Pattern = ANY_TEXT
    rendered_map_index: Pattern = ANY_TEXT
    started_at: Range = Range()
    ended_at: Range = Range()
    updated_at: Range = Range()
    duration_seconds: Range = Range()


_OWN = (
    "id", "task_id", "map_index", "rendered_map_index", "state", "reason", "max_tries", "priority_weight", "pool",
    "pool_slots", "queue", "executor", "scheduled_at", "queued_at", "started_at", "ended_at", "next_try_at",
)  # fmt: skip
_JOINED = (
    sa.select(
        *(task_instance.c[name] for name in _OWN),
        dag_run.c.dag_id,
        dag_run.c.run_id,
        dag_run.c.logical_date,
        dag_run.c.run_after,
        TRY_NUMBER.label("try_number"),
        DURATION.label("duration_seconds"),
        note.c.text.label("note"),
        *OF_VERSION,
    )
    .select_from(task_instance)
    .join(dag_run, dag_run.c.id == task_instance.c.dag_run_id)
    .join(dag, dag.c.dag_id == dag_run.c.dag_id, isouter=True)
    .join(dag_version, dag_version.c.id == dag_run.c.version_id, isouter=True)
    .join(
        note,
        sa.and_(
            note.c.dag_run_id == task_instance.c.dag_run_id,
            note.c.task_id == task_instance.c.task_id,
            note.c.map_index == task_instance.c.map_index,
        ),
        isouter=True,
    )
)
_COUNTED = (
    sa.select(task_instance.c.id)
    .select_from(task_instance)
    .join(dag_run, dag_run.c.id == task_instance.c.dag_run_id)
    .join(dag_version, dag_version.c.id == dag_run.c.version_id, isouter=True)
)


def list_task_instances(
    conn: Connection, wanted: TaskInstanceFilter, paging: Paging = FIRST_PAGE
) -> Page[TaskInstanceInfo]:
    """Return task instances. Raises BadRequest."""
    rows, after = select_page(conn, _JOINED.where(*_conditions(conn, wanted)), SORTING, paging)
    return Page(tuple(_infos(conn, rows)), after)


def instances_of_rows(conn: Connection, row_ids: Collection[int]) -> list[TaskInstanceInfo]:
    """Return the task instances with these row ids that exist, in the order of the ids."""
    query = _JOINED.where(task_instance.c.id.in_(row_ids)).order_by(task_instance.c.id)
    return _infos(conn, conn.execute(query).all())


def count_task_instances(conn: Connection, wanted: TaskInstanceFilter, at_most: int | None = None) -> int:
    """Count such task instances; a larger number than `at_most` is not counted to its end."""
    query = _COUNTED if _depends_on_runs(wanted) else sa.select(task_instance.c.id)
    query = query.where(*_conditions(conn, wanted))
    return count(conn, query if at_most is None else query.limit(at_most))


def count_states(conn: Connection, run: DagRunKey) -> dict[str | None, int]:
    """Return the number of a run's task instances in each state."""
    query = (
        sa.select(task_instance.c.state, sa.func.count().label("n"))
        .join(dag_run, dag_run.c.id == task_instance.c.dag_run_id)
        .where(dag_run.c.dag_id == run.dag_id, dag_run.c.run_id == run.run_id)
        .group_by(task_instance.c.state)
    )
    return {row.state: row.n for row in conn.execute(query)}


class TaskSpan(Struct, frozen=True):
    """When a task instance waited and ran: little enough for thousands at once."""

    id: int
    task_id: str
    map_index: int
    state: str | None
    queued_at: datetime | None
    started_at: datetime
    ended_at: datetime | None

    @property
    def name(self) -> str:
        """Its name within its run."""
        return instance_name(self.task_id, self.map_index)


def list_spans(conn: Connection, run: DagRunKey, *, at_most: int = 1000) -> tuple[TaskSpan, ...]:
    """Return when the task instances of a run that have begun waited and ran, in the order of their starts."""
    query: sa.Select[Any] = (
        sa.select(*(task_instance.c[name] for name in TaskSpan.__struct_fields__))
        .join(dag_run, dag_run.c.id == task_instance.c.dag_run_id)
        .where(dag_run.c.dag_id == run.dag_id, dag_run.c.run_id == run.run_id, task_instance.c.started_at.is_not(None))
        .order_by(task_instance.c.started_at, task_instance.c.id)
        .limit(at_most)
    )
    return tuple(fetch(conn, TaskSpan, query))


def get_task_instance(conn: Connection, key: TaskInstanceKey) -> TaskInstanceInfo:
    """Return a task instance. Raises NotFound with the nearest names."""
    found = _of_task(conn, key.dag_id, key.run_id, key.task_id, [key.map_index])
    if not found:
        raise no_such_instance(conn, key)
    return found[0]


def task_instances_of(
    conn: Connection, dag_id: str, run_id: str, names: Sequence[tuple[str, int]]
) -> list[TaskInstanceInfo]:
    """Return some task instances of a run, each named by task_id and map index, in this order."""
    indexes: dict[str, list[int]] = {}
    for task_id, map_index in names:
        indexes.setdefault(task_id, []).append(map_index)
    found = {
        (info.task_id, info.map_index): info
        for task_id, of_task in indexes.items()
        for info in _of_task(conn, dag_id, run_id, task_id, of_task)
    }
    return [found[name] for name in names if name in found]


def _of_task(
    conn: Connection, dag_id: str, run_id: str, task_id: str, map_indexes: Sequence[int]
) -> list[TaskInstanceInfo]:
    of_run = (dag_run.c.dag_id == dag_id, dag_run.c.run_id == run_id)
    query = _JOINED.where(*of_run, task_instance.c.task_id == task_id, task_instance.c.map_index.in_(map_indexes))
    return _infos(conn, conn.execute(query).all())


def no_such_instance(conn: Connection, key: TaskInstanceKey) -> NotFound:
    """Return the error for a task instance that does not exist: perhaps its run does not either."""
    run = sa.select(dag_run.c.id).where(dag_run.c.dag_id == key.dag_id, dag_run.c.run_id == key.run_id)
    if (row_id := conn.scalar(run)) is None:
        return no_such_run(conn, key.dag_id, key.run_id)
    known = sa.select(task_instance.c.task_id, task_instance.c.map_index).where(task_instance.c.dag_run_id == row_id)
    indexes = [row.map_index for row in conn.execute(known.where(task_instance.c.task_id == key.task_id).limit(2))]
    where = f"the run {key.run_id!r} of the DAG {key.dag_id!r}"
    if not indexes:
        names = conn.scalars(known.with_only_columns(task_instance.c.task_id).distinct().limit(1000))
        return NotFound("task instance", key.task_id, near_names(key.task_id, names), where=where)
    if key.map_index < 0:
        return NotFound("task instance", key.task_id, where=f"{where} without a map index: the task is mapped")
    return NotFound("task instance", f"{key.task_id}[{key.map_index}]", where=where)


def task_named(conn: Connection, run: RunInfo, task_id: str, map_index: int = -1) -> TaskInstanceInfo:
    """Return a task instance that a person has named. Raises the errors of `absence`."""
    found = _of_task(conn, run.dag_id, run.run_id, task_id, [map_index])
    if found:
        return found[0]
    known = sa.select(task_instance.c.task_id, task_instance.c.map_index).where(task_instance.c.dag_run_id == run.id)
    instances = [(row.task_id, row.map_index) for row in conn.execute(known)]
    raise absence(run.run_id, run.state, instances, task_id, map_index)


def absence(
    run_id: str, state: str, instances: Sequence[tuple[str, int]], task_id: str, map_index: int
) -> AsynschedError:
    """Return why a run has no such task instance: NotFound with the nearest names if it has no such task.

    Args:
        state: That of the run.
        instances: The task_ids and map indexes that it has.
    """
    if not instances and state not in FINISHED_RUN_STATES:
        return AsynschedError(f"The run {run_id!r} is {state}, and has no tasks yet.")
    indexes = sorted(index for name, index in instances if name == task_id)
    if indexes:
        from asynsched.scheduling.requests.run_requests import no_such_instance  # few questions need it

        return AsynschedError(no_such_instance(task_id, map_index, indexes))
    return NotFound("task", task_id, near_names(task_id, sorted({name for name, _ in instances})))


def has_task(conn: Connection, key: TaskInstanceKey) -> None:
    """Raise NotFound unless a run has instances of a task, whatever their map indexes."""
    query = _COUNTED.where(dag_run.c.dag_id == key.dag_id, dag_run.c.run_id == key.run_id)
    if conn.scalar(query.where(task_instance.c.task_id == key.task_id).limit(1)) is None:
        raise no_such_instance(conn, key)


class TryInfo(Struct, frozen=True, kw_only=True):
    """A try of a task instance.

    Attributes:
        pool: Where it waited; None, as for the next ones, if that was not stored with the try.
        priority_weight: The total.
    """

    task_id: str
    map_index: int
    try_number: int
    state: str | None
    reason: str
    scheduled_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    pool: str | None = None
    pool_slots: int | None = None
    queue: str | None = None
    executor: str | None = None
    priority_weight: int | None = None

    @property
    def duration_seconds(self) -> float | None:
        """None until it has ended."""
        return None if None in (self.started_at, self.ended_at) else (self.ended_at - self.started_at).total_seconds()  # type: ignore[operator]


class TriesInfo(Struct, frozen=True):
    """A task instance, and its tries, the oldest first."""

    of: TaskInstanceInfo
    tries: tuple[TryInfo, ...]


def list_tries(conn: Connection, key: TaskInstanceKey, *, at_most: int = 1000) -> TriesInfo:
    """Return the tries of a task instance. Raises NotFound."""
    current, history = get_task_instance(conn, key), task_instance_history.c
    query = (
        sa.select(*(history[name] for name in TryInfo.__struct_fields__))
        .join(dag_run, dag_run.c.id == history.dag_run_id)
        .where(dag_run.c.dag_id == key.dag_id, dag_run.c.run_id == key.run_id)
        .where(history.task_id == key.task_id, history.map_index == key.map_index)
        .order_by(history.id.desc())
        .limit(at_most)
    )
    tries = fetch(conn, TryInfo, query)[::-1]
    if current.try_number > 0 and all(one.try_number != current.try_number for one in tries):
        tries.append(TryInfo(**in_common(TryInfo, current)))
    return TriesInfo(current, tuple(sorted(tries, key=lambda one: one.try_number)))


def list_tries_of_run(conn: Connection, run: DagRunKey) -> tuple[TryInfo, ...]:
    """Return every try of a run's tasks, by task; a task instance that has none yet is left out."""
    of_run = (dag_run.c.dag_id == run.dag_id, dag_run.c.run_id == run.run_id)
    earlier = sa.select(*(task_instance_history.c[name] for name in TryInfo.__struct_fields__))
    earlier = earlier.join(dag_run, dag_run.c.id == task_instance_history.c.dag_run_id).where(*of_run)
    tries = fetch(conn, TryInfo, earlier.order_by(task_instance_history.c.id))
    known = {(one.task_id, one.map_index, one.try_number): one.queued_at for one in tries}
    current: sa.Select[Any] = sa.select(
        *(task_instance.c[name] for name in TryInfo.__struct_fields__), task_instance.c.token
    )
    for row in conn.execute(current.join(dag_run, dag_run.c.id == task_instance.c.dag_run_id).where(*of_run)):
        number = _newest_try(row, known)
        if number and (row.task_id, row.map_index, number) not in known:
            newest = {name: getattr(row, name) for name in TryInfo.__struct_fields__}
            tries.append(TryInfo(**newest | {"try_number": number}))
    return tuple(sorted(tries, key=lambda one: (one.task_id, one.map_index, one.try_number)))


_OF_TRY = [rendered_fields.c[name] == task_instance.c[name] for name in ("dag_run_id", "task_id", "map_index")]


def fields_of_try(conn: Connection, row_id: int, try_number: int) -> dict[str, Any]:
    """Return the template fields of a try after rendering; empty if no template was rendered in them, or not yet.

    Args:
        row_id: That of the task instance.
    """
    query = sa.select(rendered_fields.c.fields).join(task_instance, sa.and_(*_OF_TRY))
    stored = conn.scalar(query.where(task_instance.c.id == row_id, rendered_fields.c.try_number == try_number))
    return {} if stored is None else msgspec.json.decode(stored, type=dict[str, Any])


def _newest_try(row: "Row[Any]", known: Mapping[tuple[str, int, int], datetime | None]) -> int:
    """Return the number of a task instance's newest try; 0 if there is none.

    A try that is to resume or to begin again (deferred, rescheduled, interrupted) has not used its number up.
    """
    has_begun = row.token is not None and row.queued_at is not None
    is_over = known.get((row.task_id, row.map_index, row.try_number)) == row.queued_at
    return int(row.try_number) + (row.state in PAUSED_TASK_STATES | {_T.SCHEDULED} and has_begun and not is_over)


def _infos(conn: Connection, rows: "Sequence[Any]") -> list[TaskInstanceInfo]:
    """Return rows as they are shown, with what only versions know of their tasks."""
    tasks = names_of_tasks(conn, rows)
    infos = []
    for row in rows:
        values = dict(row._mapping)  # noqa: SLF001 - public in spite of its name
        more: dict[str, Any] = {**tasks[row.version_id, row.task_id]._asdict(), "version": version_of(values)}
        names = [name for name in TaskInstanceInfo.__struct_fields__ if name not in more]
        infos.append(TaskInstanceInfo(**{name: values[name] for name in names}, **more))
    return infos


class TaskNames(NamedTuple):
    """The names of a task for people, and those of its operator, which are None for a task that is in no version."""

    task_display_name: str
    operator: str | None = None
    operator_name: str | None = None


def names_of_tasks(conn: Connection, rows: "Sequence[Any]") -> dict[tuple[int | None, str], TaskNames]:
    """Return the names of the tasks of rows with a `version_id` and a `task_id`."""
    if not rows:
        return {}
    tasks = tasks_of_versions(conn.dialect.name).c
    query = sa.select(tasks.version_id, tasks.task_id, tasks.display_name, tasks.operator, tasks.operator_name).where(
        tasks.version_id.in_({row.version_id for row in rows}), tasks.task_id.in_({row.task_id for row in rows})
    )
    known = {(version_id, task_id): TaskNames(*names) for version_id, task_id, *names in conn.execute(query)}
    return {(row.version_id, row.task_id): TaskNames(row.task_id) for row in rows} | known


def _conditions(conn: Connection, wanted: TaskInstanceFilter) -> list[sa.ColumnElement[bool]]:
    row = task_instance.c
    conditions = [
        *conditions_of_runs(wanted.run),
        *one_of(row.task_id, wanted.task_ids),
        *one_of(row.state, wanted.states),
        *one_of(row.pool, wanted.pools),
        *one_of(row.queue, wanted.queues),
        *one_of(row.executor, wanted.executors),
        *one_of(TRY_NUMBER, wanted.try_numbers),
        *one_of(row.map_index, wanted.map_indexes),
        *wanted.task_id.holds_for(row.task_id),
        *wanted.pool.holds_for(row.pool),
        *wanted.queue.holds_for(row.queue),
        *wanted.rendered_map_index.holds_for(row.rendered_map_index),
        *wanted.started_at.holds_for(BEGAN_AT),
        *wanted.ended_at.holds_for(row.ended_at),
        *wanted.updated_at.holds_for(CHANGED_AT),
        *wanted.duration_seconds.holds_for(DURATION),
    ]
    if wanted.states and set(wanted.states) <= UNDER_WAY_STATES:
        conditions.append(row.id.in_(UNDER_WAY_IDS))
    if wanted.is_mapped is not None:
        conditions.append(row.map_index >= 0 if wanted.is_mapped else row.map_index < 0)
    return [*conditions, *_conditions_of_tasks(conn, wanted)]


def _depends_on_runs(wanted: TaskInstanceFilter) -> bool:
    """Return whether the conditions are also on runs or their versions: with millions of instances, these cost most."""
    of_tasks = (wanted.operators, wanted.groups, wanted.operator_name, wanted.display_name)
    return wanted.run != RunFilter() or of_tasks != (None, None, ANY_TEXT, ANY_TEXT)


def _conditions_of_tasks(conn: Connection, wanted: TaskInstanceFilter) -> list[sa.ColumnElement[bool]]:
    """Return the conditions on what only versions know of tasks: their classes, groups and names for people."""
    tasks = tasks_of_versions(conn.dialect.name).c
    conditions = [
        *one_of(tasks.operator, wanted.operators),
        *wanted.operator_name.holds_for(tasks.operator_name),
        *wanted.display_name.holds_for(tasks.display_name),
    ]
    if wanted.groups is not None:
        within = (tasks.group_id.like(f"{_escaped(group)}.%", escape="\\") for group in wanted.groups)
        conditions.append(sa.or_(tasks.group_id.in_(wanted.groups), *within))
    if not conditions:
        return []
    # Those of a run, or of a DAG: to read the tasks of all versions takes long.
    versions = sa.select(dag_version.c.id).where(*one_of(dag_version.c.dag_id, wanted.run.dag_ids))
    if wanted.run.run_ids is not None:
        versions = sa.select(dag_run.c.version_id).where(
            *one_of(dag_run.c.dag_id, wanted.run.dag_ids), *one_of(dag_run.c.run_id, wanted.run.run_ids)
        )
    found = sa.select(tasks.version_id, tasks.task_id).where(tasks.version_id.in_(versions), *conditions)
    return [sa.tuple_(dag_run.c.version_id, task_instance.c.task_id).in_(found)]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
