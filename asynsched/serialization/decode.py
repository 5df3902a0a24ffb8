"""Strict reading of the serialized form, which a process that ran user code wrote."""

from collections.abc import Iterable
from typing import Any

import msgspec

from asynsched.authoring.node import is_key
from asynsched.errors import DagError, SerializationError
from asynsched.serialization.schema import SCHEMA_VERSION, ParseReport, SerializedDag, results_in
from asynsched.timetables import decode as decode_timetable
from asynsched.timetables.asset_condition import check_condition
from asynsched.timetables.base import TimeRestriction
from asynsched.timetables.partitions import read_partitioning

MAX_TASKS = 100_000
"""The largest number of tasks in a DAG."""

_report_decoder = msgspec.json.Decoder(ParseReport)
_dag_decoder = msgspec.json.Decoder(SerializedDag)


def decode_report(data: bytes) -> ParseReport:
    """Return the report of a parse.

    Raises:
        SerializationError: The data is not a report, has another version, or contains an invalid DAG.
    """
    report: ParseReport = _decode(_report_decoder, data, "report")
    if report.schema_version != SCHEMA_VERSION:
        raise SerializationError(
            f"the report has schema version {report.schema_version}, this asynsched reads version {SCHEMA_VERSION}"
        )
    _refuse_repeated((parsed.dag.dag_id for parsed in report.dags), "the report has the dag_id")
    for parsed in report.dags:
        check_dag(parsed.dag)
        if len(parsed.version_hash) != 64 or not set(parsed.version_hash) <= set("0123456789abcdef"):
            raise SerializationError(f"DAG {parsed.dag.dag_id!r}: the version hash is invalid")
    return report


def decode_dag(data: bytes) -> SerializedDag:
    """Return a stored DAG. Raises SerializationError if the data is not a valid DAG."""
    dag: SerializedDag = _decode(_dag_decoder, data, "serialized DAG")
    check_dag(dag)
    return dag


def _decode(decoder: msgspec.json.Decoder[Any], data: bytes, what: str) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise SerializationError(f"this is not a valid {what}: {exc}") from exc


def check_dag(dag: SerializedDag) -> None:
    """Check the rules that the types cannot express: ids, edges, cycles, groups, assets, dates and the timetable.

    Raises:
        SerializationError: The DAG is invalid; the message says why.
    """
    who = f"DAG {dag.dag_id!r}"
    if not is_key(dag.dag_id):
        raise SerializationError(f"{who}: the dag_id is invalid")
    if len(dag.tasks) > MAX_TASKS:
        raise SerializationError(f"{who} has {len(dag.tasks)} tasks; at most {MAX_TASKS} are allowed")
    _check_tasks(who, dag)
    _check_groups(who, dag)
    _check_mapping(who, dag)
    _check_assets(who, dag)
    of_dag = (dag.start_date, dag.end_date, *(deadline.at for deadline in dag.deadlines))
    for date in (*of_dag, *(date for task in dag.tasks for date in (task.start_date, task.end_date))):
        if date is not None and date.utcoffset() is None:
            raise SerializationError(f"{who}: the date {date.isoformat()} has no offset")
    try:
        decode_timetable(dag.timetable)
    except DagError as exc:
        raise SerializationError(f"{who}: its timetable is invalid: {exc}") from exc


def _check_tasks(who: str, dag: SerializedDag) -> None:
    _refuse_repeated((task.task_id for task in dag.tasks), f"{who} has the task_id")
    position = {task.task_id: place for place, task in enumerate(dag.tasks)}
    for task in dag.tasks:
        if not is_key(task.task_id):
            raise SerializationError(f"{who}: the task_id {task.task_id!r} is invalid")
        _refuse_repeated(task.downstream_task_ids, f"{who}, task {task.task_id!r} has the downstream task")
        for after in task.downstream_task_ids:
            if after not in position:
                raise SerializationError(f"{who}, task {task.task_id!r}: its downstream task {after!r} does not exist")
            # Tasks are in topological order, so this also rejects every cycle.
            if position[after] <= position[task.task_id]:
                raise SerializationError(f"{who}: tasks are not in order, {after!r} must come after {task.task_id!r}")


def _check_groups(who: str, dag: SerializedDag) -> None:
    known: set[str | None] = {None}
    for group in dag.task_groups:
        if not is_key(group.group_id):
            raise SerializationError(f"{who}: the group_id {group.group_id!r} is invalid")
        # Outer groups come first, so this also rejects every cycle.
        if group.parent_id not in known:
            raise SerializationError(
                f"{who}: the parent {group.parent_id!r} of task group {group.group_id!r} is unknown"
            )
        if group.group_id in known:
            raise SerializationError(f"{who} has the task group {group.group_id!r} twice")
        known.add(group.group_id)
    for task in dag.tasks:
        if task.group_id not in known:
            raise SerializationError(f"{who}, task {task.task_id!r}: its task group {task.group_id!r} is unknown")


def _check_mapping(who: str, dag: SerializedDag) -> None:
    known = {task.task_id for task in dag.tasks}
    mapped = [(f"task {task.task_id!r}", task.map_length) for task in dag.tasks]
    mapped += [(f"task group {group.group_id!r}", group.map_length) for group in dag.task_groups]
    for name, length in mapped:
        for source in () if length is None else results_in(length):
            if source not in known:
                raise SerializationError(f"{who}: {name} is mapped over the result of {source!r}, which is not a task")


def _check_assets(who: str, dag: SerializedDag) -> None:
    try:
        if dag.asset_condition is not None:
            check_condition(dag.asset_condition)
        if dag.partitions is not None:
            read_partitioning(dag.partitions)
    except DagError as exc:
        raise SerializationError(f"{who}: {exc}") from exc
    for task in dag.tasks:
        if not all(asset.is_leaf for asset in (*task.inlets, *task.outlets)):
            raise SerializationError(f"{who}, task {task.task_id!r}: inlets and outlets are assets, not expressions")


def _refuse_repeated(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SerializationError(f"{what} {name!r} twice")
        seen.add(name)


def restriction(dag: SerializedDag) -> TimeRestriction:
    """Return the earliest and latest date of a DAG's runs, and its catchup.

    Without its own `start_date`, the DAG has the earliest of its tasks; without its own `end_date`, the latest of its
    tasks if all of them have one.

    Source: Airflow's `DAG.add_task` (tasks keep within the DAG's dates) and `DAG._time_restriction`.
    """
    starts = [task.start_date for task in dag.tasks if task.start_date is not None]
    ends = [task.end_date for task in dag.tasks if task.end_date is not None]
    all_end = len(ends) == len(dag.tasks)
    return TimeRestriction(
        earliest=dag.start_date or min(starts, default=None),
        latest=dag.end_date or (max(ends, default=None) if all_end else None),
        catchup=dag.catchup,
    )
