"""Which fields of a DAG differ between two parses of the same file: because of them alone no version is made.

Such a field comes from the order of a set, the time, a random number. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from asynsched.serialization.schema import UNSTABLE, FileError, ParsedDag, ParseReport, SerializedDag

MAX_NAMED = 10
"""Most fields that a warning names."""


class KnownVersion(Struct, frozen=True):
    """The newest version of a DAG as it is stored."""

    version_hash: str
    dag: SerializedDag


def would_be_new(report: ParseReport, known: Mapping[str, str]) -> list[str]:
    """Return the DAGs of a report that would get a new version in place of one that is there.

    Args:
        report: What a parse found.
        known: The hashes of the newest versions, by dag_id.
    """
    return [
        parsed.dag.dag_id
        for parsed in report.dags
        if known.get(parsed.dag.dag_id, parsed.version_hash) != parsed.version_hash
    ]


def settled(first: ParseReport, second: ParseReport, known: Mapping[str, KnownVersion]) -> ParseReport:
    """Return the first report, in which a DAG keeps its version if it differs from that in unstable fields only.

    Args:
        first: What is to be stored.
        second: Another parse of the same file, under another hash seed, that was asked about the known versions.
        known: The newest versions of the DAGs that would get new ones.
    """
    again = {parsed.dag.dag_id: parsed for parsed in second.dags}
    dags, warnings = [], list(first.warnings)
    for parsed in first.dags:
        dag_id = parsed.dag.dag_id
        fields = differing_fields(parsed.dag, again[dag_id].dag) if dag_id in again else []
        if fields:
            warnings.append(_warning(first.path, dag_id, fields))
            if dag_id in known and _is_known(parsed.dag, again[dag_id], known[dag_id]):
                parsed = msgspec.structs.replace(parsed, dag=known[dag_id].dag, version_hash=known[dag_id].version_hash)
        dags.append(parsed)
    return msgspec.structs.replace(first, dags=tuple(dags), warnings=tuple(warnings))


def _is_known(dag: SerializedDag, again: ParsedDag, known: KnownVersion) -> bool:
    """Whether nothing but what is unstable is different from the known version."""
    has_known_code = again.known_hash == known.version_hash
    return has_known_code and _with_known_fields(dag, again.dag, known.dag) == known.dag


def differing_fields(one: SerializedDag, other: SerializedDag) -> list[str]:
    """Return the names of the fields in which two parses of a DAG differ, those of tasks with their task_id."""
    return list(_dag_differences(one, other))


def _dag_differences(one: SerializedDag, other: SerializedDag) -> Iterator[str]:
    for name in _differing(one, other):
        if name != "tasks":
            yield name
            continue
        ours, theirs = _tasks(one), _tasks(other)
        if ours.keys() != theirs.keys():
            yield f"the ids of its tasks ({min(ours.keys() ^ theirs.keys())!r} is not always there)"
            continue
        if list(ours) != list(theirs):
            yield "the order of its tasks"
        for task_id, task in ours.items():
            yield from (f"{field} of task {task_id!r}" for field in _differing(task, theirs[task_id]))


def _with_known_fields(dag: SerializedDag, again: SerializedDag, known: SerializedDag) -> SerializedDag:
    """Return the DAG with the known values in those fields that are unstable; as it is where other tasks are known."""
    values = {name: getattr(known, name) for name in _differing(dag, again)}
    ours, theirs, kept = _tasks(dag), _tasks(again), _tasks(known)
    if "tasks" in values and ours.keys() == theirs.keys():
        if ours.keys() != kept.keys():
            return dag
        values["tasks"] = tuple(
            msgspec.structs.replace(
                ours[task_id],
                **{name: getattr(kept[task_id], name) for name in _differing(ours[task_id], theirs[task_id])},
            )
            for task_id in (kept if list(ours) != list(theirs) else ours)
        )
    return msgspec.structs.replace(dag, **values)


def _tasks(dag: SerializedDag) -> dict[str, Any]:
    return {task.task_id: task for task in dag.tasks}


def _differing(one: Struct, other: Struct) -> list[str]:
    return [name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)]


def _warning(path: str, dag_id: str, fields: list[str]) -> FileError:
    named = ", ".join(fields[:MAX_NAMED]) + (f" and {len(fields) - MAX_NAMED} more" if len(fields) > MAX_NAMED else "")
    return FileError(
        UNSTABLE,
        f"{path}: DAG {dag_id!r}: two parses of the same file differ in {named}; sort what comes from a set, and do not"
        " use the time or random values there. Such a difference makes no new version.",
        dag_id=dag_id,
    )
