"""Stores the results of parses: adds a version only after a change, and removes a DAG only on proof.

    outcomes ──▶ read the stored state ──▶ decide (pure) ──▶ changes ──▶ write

A DAG is removed when its file is gone, or was parsed successfully without it. A file that could not be used keeps all
its DAGs as they were; an error of one DAG keeps that DAG. Of two files that define the same dag_id, the first keeps it.

Files are stored together, by one statement for each kind of change: the number of statements bounds a first start on a
large folder. The result is the same as if one file had been stored after the other.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple, get_args

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.protocol.messages import SourceRef
from asynsched.serialization.schema import FileError, ImportErrorEvent, ParsedDag, ParseReport, SerializedDag
from asynsched.store.assets import ON_ALIAS_CREATED, ON_ASSET_CREATED, drop_partitions, store_references
from asynsched.store.dags import files
from asynsched.store.dags.dags import add_versions, put_sources
from asynsched.store.rows import LARGEST_INTEGER, as_new, portions, select_in, storable, to_json
from asynsched.store.schema import (
    DagAbout,
    DagFileRow,
    DagVersionRow,
    ImportErrorRow,
    ListenerCall,
    LocalModule,
    asset_watcher,
    dag,
    dag_version,
    import_error,
    listener_call,
)
from asynsched.store.watchers import drop_watchers, store_watchers
from asynsched.timetables import decode


class FileStamp(NamedTuple):
    """A file at its parse. `runtime` names the code that parsed it; another runtime parses all files again."""

    content_hash: str
    modified_ns: int
    size: int
    runtime: str


class DagDefaults(NamedTuple):
    """The settings that apply to a DAG that does not set them itself."""

    max_active_runs: int
    paused: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The news of a file to store: the report of its parse; without a report, the file is gone.

    `claimed_by`: the scheduler that has claimed the file, which other schedulers leave alone until that is stored.
    `keeps_dags`: the parse may have read a file that was being written, so no DAG leaves.
    """

    path: str
    report: ParseReport | None = None
    stamp: FileStamp | None = None
    claimed_by: str | None = None
    keeps_dags: bool = False


class StoredReport(NamedTuple):
    """The changes that storing an outcome has made.

    Attributes:
        new: DAGs that were not known before.
        changed: DAGs with a new version, or that came back.
        removed: DAGs that left.
        contested: Other files that define a DAG that left: parsed again, the first of them gets it.
    """

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    contested: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as it is stored now. `row` is None when it is gone."""

    path: str
    changes: StoredReport
    row: DagFileRow | None
    errors: tuple[ImportErrorRow, ...]

    @property
    def changed_dags(self) -> tuple[str, ...]:
        """The DAGs that are new, changed or gone."""
        return (*self.changes.new, *self.changes.changed, *self.changes.removed)


REFUSED = "dag"
"""The kind of error of a file that does not get a DAG which it defines."""
MOST_BYTES = 1 << 20
"""Of DAGs as JSON, sources and errors stored together: on PostgreSQL the event loop makes statements of them."""


def may_call_listeners(outcome: Outcome) -> bool:
    """Whether storing an outcome may request calls of listeners: some hear of new assets or aliases, or of errors."""
    if outcome.report is None:
        return False
    heard = {event for parsed in outcome.report.dags for event in parsed.dag.callbacks}
    return bool(outcome.report.hears) or not heard.isdisjoint((ON_ASSET_CREATED, ON_ALIAS_CREATED))


def store_outcomes(
    conn: Connection, outcomes: Sequence[Outcome], *, now: datetime, defaults: DagDefaults, may_be_stored: bool = False
) -> list[StoredFile]:
    """Store outcomes, each of another file.

    An outcome of a parse under a claim that another scheduler has taken meanwhile is not stored, and is missing in the
    answer.

    Args:
        may_be_stored: The answer to storing some of them was lost: perhaps that write has ended their claims.
    """
    files.store_alone(conn)
    held: set[str] = set()
    for scheduler_id in {outcome.claimed_by for outcome in outcomes if outcome.claimed_by is not None}:
        held |= files.drop_claims(conn, [one.path for one in outcomes if one.claimed_by == scheduler_id], scheduler_id)
    stored: list[StoredFile] = []
    for found in _portions(outcomes):
        known = _read(conn, found)
        stored += _write(conn, decide(found, held, known, now, defaults, may_be_stored=may_be_stored), now)
    if may_be_stored and stored:
        # The lost answer would have said which files may now get a DAG that they were refused.
        changes = stored[-1].changes
        contested = (*changes.contested, *_refused_for_nobody(conn))
        stored[-1] = replace(stored[-1], changes=changes._replace(contested=contested))
    return stored


def store_report(
    conn: Connection, report: ParseReport, stamp: FileStamp, *, now: datetime, defaults: DagDefaults
) -> StoredReport:
    """Store the result of one parse, for a caller who shares the database with no other scheduler."""
    [found] = [_encoded(Outcome(report.path, report, stamp))]
    [stored] = _write(conn, decide([found], (), _read(conn, [found]), now, defaults), now)
    return stored.changes


def load_files(conn: Connection) -> tuple[list[DagFileRow], dict[str, tuple[ImportErrorRow, ...]]]:
    """Return every file that was parsed, and the errors of those that have any.

    A file that was refused a DAG that no file has now is returned as if no runtime had parsed it: parsed again, the
    first of them gets the DAG. The scheduler that stored that the DAG left died before it announced those files.
    """
    again = frozenset(_refused_for_nobody(conn))
    rows = [msgspec.structs.replace(row, runtime="") if row.path in again else row for row in files.known_files(conn)]
    errors: dict[str, tuple[ImportErrorRow, ...]] = {}
    for error in files.list_errors(conn):
        errors[error.file_path] = (*errors.get(error.file_path, ()), error)
    return rows, errors


def _refused_for_nobody(conn: Connection) -> tuple[str, ...]:
    has_dag = sa.exists().where(dag.c.dag_id == import_error.c.dag_id, dag.c.is_active)
    refused = sa.select(import_error.c.file_path).distinct().order_by(import_error.c.file_path)
    is_refused = (import_error.c.kind == REFUSED, import_error.c.dag_id.is_not(None))
    return tuple(conn.scalars(refused.where(*is_refused, ~has_dag)))


# Reading


@dataclass(frozen=True, slots=True)
class Found:
    """An outcome with its DAGs as JSON, by dag_id."""

    outcome: Outcome
    path: str
    dags: dict[str, tuple[ParsedDag, bytes]]


def _encoded(outcome: Outcome) -> Found:
    parsed = () if outcome.report is None else sorted(outcome.report.dags, key=lambda one: one.dag.dag_id)
    return Found(outcome, storable(outcome.path), {one.dag.dag_id: (one, to_json(one.dag)) for one in parsed})


def _portions(outcomes: Sequence[Outcome]) -> Iterator[list[Found]]:
    """Yield as many outcomes at once as have `MOST_BYTES`, or one that has more; each is encoded as it is taken."""
    some: list[Found] = []
    texts: set[str] = set()
    n_bytes = 0
    for found in map(_encoded, outcomes):
        size = _size(found, texts)
        if some and n_bytes + size > MOST_BYTES:
            yield some
            some, texts, n_bytes = [], set(), 0
            size = _size(found, texts)
        some.append(found)
        texts.update(source.content_hash for source in _sources(found))
        n_bytes += size
    if some:
        yield some


def _size(found: Found, texts: Collection[str]) -> int:
    """Return the length of all that is stored of an outcome, beside the texts with these hashes."""
    report = found.outcome.report
    errors = () if report is None else (*report.errors, *report.warnings)
    return (
        sum(len(serialized) for _, serialized in found.dags.values())
        + sum(len(source.text) for source in _sources(found) if source.content_hash not in texts)
        + sum(len(error.message) + len(error.traceback) for error in errors)
        + (len(report.output) if report is not None and errors else 0)
    )


def _sources(found: Found) -> Sequence[Any]:
    """Return the sources that are stored: those of a file without a DAG are not."""
    return found.outcome.report.sources if found.outcome.report is not None and found.dags else ()


@dataclass(slots=True)
class KnownDag:
    """A DAG as it is stored, and as the outcomes that are decided already leave it. `row`: None for a new one."""

    row: Any
    file_path: str
    is_active: bool
    imported_from: str


@dataclass(slots=True)
class Known:
    """The stored state that concerns some outcomes.

    Attributes:
        dags: By dag_id: those that the outcomes define, and those that their files have.
        of_files: The active DAGs of each file.
        files: The files of the outcomes and of these DAGs, by path.
    """

    dags: dict[str, KnownDag] = field(default_factory=dict)
    of_files: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, DagFileRow] = field(default_factory=dict)


_KNOWN = (
    sa.select(
        dag,
        dag_version.c.version_hash,
        dag_version.c.number,
        sa.exists().where(asset_watcher.c.dag_id == dag.c.dag_id).label("has_watchers"),
    )
    .join(dag_version, dag_version.c.id == dag.c.version_id, isouter=True)
    .where(
        sa.or_(
            dag.c.dag_id.in_(sa.bindparam("dag_ids", expanding=True)),
            sa.and_(dag.c.file_path.in_(sa.bindparam("paths", expanding=True)), dag.c.is_active),
        )
    )
    .order_by(dag.c.dag_id)
    .with_for_update(of=dag)
)


def _read(conn: Connection, found: Sequence[Found]) -> Known:
    known = Known()
    paths = [one.path for one in found]
    dag_ids = sorted({dag_id for one in found for dag_id in one.dags})
    for some in portions(dag_ids) if dag_ids else [[]]:
        for row in conn.execute(_KNOWN, {"dag_ids": some, "paths": paths}):
            known.dags[row.dag_id] = KnownDag(row, row.file_path, row.is_active, row.about.imported_from)
    for dag_id, one in known.dags.items():
        if one.is_active:
            known.of_files.setdefault(one.file_path, []).append(dag_id)
    known.files = files.get_files(conn, sorted({*paths, *known.of_files}))
    return known


# Deciding


@dataclass(frozen=True, slots=True)
class DagChange:
    """A DAG that is new, has another version or other values, or comes back.

    `before` is its row, None for a new one; `version` is None if it keeps its version.
    """

    dag: SerializedDag
    before: Any
    version: DagVersionRow | None
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FileChange:
    """The changes of one file. `row` is None when the file is gone; `told` is what listeners hear of its errors."""

    path: str
    row: DagFileRow | None
    dags: list[DagChange] = field(default_factory=list)
    removed: tuple[str, ...] = ()
    errors: list[ImportErrorRow] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    told: tuple[ImportErrorEvent, dict[str, Any]] | None = None


def decide(
    found: Sequence[Found],
    held: Collection[str],
    known: Known,
    now: datetime,
    defaults: DagDefaults,
    *,
    may_be_stored: bool = False,
) -> list[FileChange]:
    """Return the changes by outcomes. `known` is updated with each, so that the next is decided as if it were stored.

    Args:
        held: The files whose claims were held until now.
    """
    changes: list[FileChange] = []
    change_of: dict[str, FileChange] = {}
    for one in found:
        outcome = one.outcome
        is_stored = may_be_stored and _is_stored(outcome, known.files.get(one.path))
        if outcome.claimed_by is None or outcome.path in held or is_stored:
            changes.append(change := _change(one, known, now, defaults))
            for dag_id in [made.dag.dag_id for made in change.dags]:
                if (other := change_of.get(dag_id)) is not None:
                    # A file that has imported the DAG came before the one that makes it.
                    other.dags[:] = [made for made in other.dags if made.dag.dag_id != dag_id]
                change_of[dag_id] = change
    return changes


def _is_stored(outcome: Outcome, row: DagFileRow | None) -> bool:
    """Whether a file is stored as it was parsed: to store that once more changes nothing."""
    if row is None or outcome.stamp is None:
        return row is None and outcome.stamp is None
    return (row.content_hash, row.runtime) == (outcome.stamp.content_hash, outcome.stamp.runtime)


def _change(found: Found, known: Known, now: datetime, defaults: DagDefaults) -> FileChange:
    path, report, stamp = found.path, found.outcome.report, found.outcome.stamp
    if report is None or stamp is None:
        known.files.pop(path, None)
        return FileChange(path, None, removed=_remove_all_but((), path, known))
    refs = [SourceRef(source.path, source.module, source.content_hash) for source in report.sources]
    errors, dags = list(report.errors), []
    for dag_id, (parsed, serialized) in found.dags.items():
        before = known.dags.get(dag_id)
        keeper = _keeper(path, before, known)
        if keeper is not None and keeper == parsed.imported_from:
            continue  # it has imported a DAG of the keeper's, and defines none of its own
        if (refusal := _refusal(path, dag_id, serialized, keeper)) is not None:
            errors.append(FileError(REFUSED, refusal, dag_id=dag_id))
            continue
        row = None if before is None else before.row
        number = 0 if row is None else row.number or 0
        version = DagVersionRow(dag_id, number + 1, parsed.version_hash, path, serialized, refs, now)
        is_same = row is not None and (row.version_hash, row.file_path) == (parsed.version_hash, path)
        values = _values(path, parsed, now, defaults)
        was_active = before is not None and before.is_active
        if not (is_same and was_active) or any(getattr(row, name) != values[name] for name in values.keys() - VOLATILE):
            dags.append(DagChange(parsed.dag, row, None if is_same else version, values))
        known.dags[dag_id] = KnownDag(row, path, is_active=True, imported_from=parsed.imported_from)
    removed: tuple[str, ...] = ()
    if not found.outcome.keeps_dags and all(error.dag_id is not None for error in report.errors):
        removed = _remove_all_but({*found.dags, *(error.dag_id for error in errors)}, path, known)
    modules = [LocalModule(source.path, source.content_hash) for source in report.sources[1:]]
    if not report.sources and path in known.files:
        modules = known.files[path].local_modules  # the parse ended before it could say: those of the one before count
    file = DagFileRow(
        path, stamp.content_hash, stamp.modified_ns, stamp.size, modules, now, report.duration, len(report.dags),
        len(errors), stamp.runtime, report.airflow, list(report.asked),
    )  # fmt: skip
    was_faulty = path in known.files and known.files[path].n_errors > 0
    known.files[path] = file
    rows = files.error_rows(path, errors, warnings=report.warnings, output=report.output, now=now)
    texts = {source.content_hash: source.text for source in _sources(found)}
    return FileChange(path, file, dags, removed, rows, texts, _told(path, errors, report.hears, was_faulty=was_faulty))


def _told(
    path: str, errors: Sequence[FileError], heard: Sequence[ImportErrorEvent], *, was_faulty: bool
) -> tuple[ImportErrorEvent, dict[str, Any]] | None:
    """Return the event and the subject of a call of listeners, if they hear of the errors of a file."""
    event: ImportErrorEvent = "on_existing_dag_import_error" if was_faulty else "on_new_dag_import_error"
    if not errors or event not in heard:
        return None
    stack = "\n".join(error.traceback or error.message for error in errors)
    return event, {"file": path, "stacktrace": storable(stack[-LONGEST_STACK:])}


def _keeper(path: str, before: KnownDag | None, known: Known) -> str | None:
    """Return the other file that keeps a DAG, if there is one; not one that has only imported it from this file."""
    if before is None or not before.is_active or before.file_path == path or before.file_path not in known.files:
        return None
    return None if before.imported_from == path else before.file_path


def _refusal(path: str, dag_id: str, serialized: bytes, keeper: str | None) -> str | None:
    """Return why a file does not get a DAG; None if it does."""
    if keeper is not None:
        return defined_elsewhere(dag_id, keeper, path)
    if rb"\u0000" in serialized:
        return f"the DAG {dag_id!r} has a text with a NUL character, which cannot be stored; remove it"
    return None


def defined_elsewhere(dag_id: str, keeper: str, path: str) -> str:
    """Return why a file does not get a DAG that another one, its keeper, has."""
    return f"the DAG {dag_id!r} is defined in {keeper} already, which keeps it; {path} must choose another dag_id"


def _remove_all_but(kept: Collection[str | None], path: str, known: Known) -> tuple[str, ...]:
    """Return the DAGs that a file no longer has."""
    removed = []
    for dag_id in known.of_files.get(path, ()):
        one = known.dags[dag_id]
        if one.is_active and one.file_path == path and dag_id not in kept:
            one.is_active = False
            removed.append(dag_id)
    return tuple(removed)


LONGEST_DESCRIPTION = 1000
"""Characters of a DAG's description in its row."""
PARTITIONED = frozenset({"cron_partition", "partitioned_at_runtime"})
"""The kinds of timetables whose runs have partitions."""
LONGEST_STACK = 16_384
"""Characters of a stack trace that listeners get: its end, where the error is."""
FILES_OF_A_CALL = 20
"""Files with errors that one process of listeners hears of: each may have a long stack trace."""
VOLATILE = frozenset({"is_paused", "updated_at"})
"""Columns that a parse sets for a new DAG only, or changes only together with others."""


def _values(path: str, parsed: ParsedDag, now: datetime, defaults: DagDefaults) -> dict[str, Any]:
    found = parsed.dag
    limit = defaults.max_active_runs if found.max_active_runs is None else found.max_active_runs
    paused = found.is_paused_upon_creation
    return {
        "file_path": path,
        "is_active": True,
        "is_paused": defaults.paused if paused is None else paused,
        "schedule_summary": found.schedule_summary,
        "timetable": _timetable(found),
        "display_name": found.display_name,
        "owners": list(found.owners),
        "tags": list(found.tags),
        "about": _about(parsed),
        "max_active_runs": min(limit, LARGEST_INTEGER) or LARGEST_INTEGER,  # 0 means no limit, as in Airflow
        "deadlines": to_json(found.deadlines),
        "access_control": found.access_control or None,
        "partitions": None if found.partitions is None else sha256(to_json(found.partitions)).hexdigest(),
        # Each parse asks for it, so a DAG that has a plan counts as changed by each.
        "timetable_plan": None if parsed.plan is None else to_json(parsed.plan),
        "updated_at": now,
    }


def _timetable(found: SerializedDag) -> str:
    kind: str = found.timetable["kind"]
    if found.asset_condition is None:
        return kind
    return "asset" if kind == "null" else "asset_or_time"


def _about(parsed: ParsedDag) -> DagAbout:
    found = parsed.dag
    return DagAbout(
        description=found.description and found.description[:LONGEST_DESCRIPTION],
        is_periodic=decode(found.timetable).periodic,
        is_partitioned=found.partitions is not None or found.timetable["kind"] in PARTITIONED,
        max_active_tasks=found.max_active_tasks,
        max_consecutive_failed_dag_runs=found.max_consecutive_failed_dag_runs or 0,
        has_task_limits=any(
            task.max_active_tis_per_dag is not None or task.max_active_tis_per_dagrun is not None
            for task in found.tasks
        ),
        imported_from=parsed.imported_from,
    )


# Writing

_UPDATE = sa.update(dag).where(dag.c.dag_id == sa.bindparam("key"))


_CONTESTED = (
    sa.select(import_error.c.dag_id, import_error.c.file_path)
    .distinct()
    .join(dag, dag.c.dag_id == import_error.c.dag_id)
    .where(~dag.c.is_active)
)


def _write(conn: Connection, changes: Sequence[FileChange], now: datetime) -> list[StoredFile]:
    """Store changes, each kind of them for all files. A DAG that moves leaves first."""
    put_sources(conn, {content_hash: text for change in changes for content_hash, text in change.sources.items()})
    dags = sorted((one for change in changes for one in change.dags), key=lambda one: one.dag.dag_id)
    ids = add_versions(conn, [one.version for one in dags if one.version is not None])
    removed = sorted(dag_id for change in changes for dag_id in change.removed)
    if removed:
        conn.execute(_UPDATE, [{"key": dag_id, "is_active": False, "updated_at": now} for dag_id in removed])
    if new := [one for one in dags if one.before is None]:
        rows = [{"dag_id": one.dag.dag_id, **one.values, "version_id": ids[one.dag.dag_id]} for one in new]
        conn.execute(dag.insert(), rows)
    if known := [one for one in dags if one.before is not None]:
        conn.execute(_UPDATE, [_updated(one, ids) for one in known])
        drop_watchers(conn, [one.dag.dag_id for one in known if one.before.has_watchers])
    for one in dags:
        if one.before is not None and one.before.partitions != one.values["partitions"]:
            drop_partitions(conn, one.dag.dag_id)
        store_references(conn, one.dag, now, is_new=one.before is None)
        store_watchers(conn, one.dag, now)
    files.put_files(conn, [change.row for change in changes if change.row is not None])
    files.delete_files(conn, [change.path for change in changes if change.row is None])
    files.replace_errors(
        conn, [change.path for change in changes], [row for change in changes for row in change.errors]
    )
    _call_listeners(conn, [change.told for change in changes if change.told is not None], now)
    contested = [tuple(row) for row in select_in(conn, _CONTESTED, import_error.c.dag_id, removed)]
    return [_stored(change, contested) for change in changes]


def _call_listeners(conn: Connection, told: Sequence[tuple[ImportErrorEvent, dict[str, Any]]], now: datetime) -> None:
    calls = [
        as_new(ListenerCall(event=event, subjects=some, created_at=now))
        for event in get_args(ImportErrorEvent)
        for some in portions([subject for one, subject in told if one == event], FILES_OF_A_CALL)
    ]
    if calls:
        conn.execute(listener_call.insert(), calls)


def _updated(change: DagChange, ids: dict[str, int]) -> dict[str, Any]:
    values = {name: value for name, value in change.values.items() if name != "is_paused"}
    return {"key": change.dag.dag_id, "version_id": ids.get(change.dag.dag_id, change.before.version_id), **values}


def _stored(change: FileChange, contested: Sequence[tuple[str, str]]) -> StoredFile:
    new = tuple(one.dag.dag_id for one in change.dags if one.before is None)
    changed = tuple(one.dag.dag_id for one in change.dags if one.before is not None)
    others = sorted({path for dag_id, path in contested if dag_id in change.removed and path != change.path})
    return StoredFile(
        change.path, StoredReport(new, changed, change.removed, tuple(others)), change.row, tuple(change.errors)
    )
