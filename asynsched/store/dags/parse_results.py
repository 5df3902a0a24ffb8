"""What a parse found, stored: versions only where something has changed, and DAGs leave only on proof.

A DAG leaves when its file is gone, or parsed well without it. A file that could not be used keeps all its DAGs as they
were; an error of one DAG keeps that DAG. Of two files that define the same dag_id, the first keeps it.

Files that nobody knows yet are stored many at once, for the number of statements bounds a first start on a large
folder. Files with more to store than DAGs are stored one after the other: those with errors or warnings, with DAGs
that are known, or that two files define, and those that are too large for one statement.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.protocol.messages import SourceRef
from asynsched.serialization.schema import FileError, ParsedDag, ParseReport
from asynsched.store.assets.references import store_references
from asynsched.store.dags.files import (
    DagFileRow,
    LocalModule,
    delete_file,
    get_file,
    known_paths,
    put_file,
    put_new_files,
    replace_errors,
)
from asynsched.store.dags.versions import NewVersion, add_first_versions, add_version, put_sources
from asynsched.store.rows import LARGEST_INTEGER, portions, storable, to_json
from asynsched.store.schema import dag, dag_file, dag_version, import_error


class FileStamp(NamedTuple):
    """A file as it was when it was parsed. `runtime` names what parsed it: a change of that parses all files anew."""

    content_hash: str
    modified_ns: int
    size: int
    runtime: str


class DagDefaults(NamedTuple):
    """What holds for a DAG that does not say it itself."""

    max_active_runs: int
    paused: bool


class StoredReport(NamedTuple):
    """What storing a report has changed.

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


class _Refused(Exception):
    """Says why one DAG is left out. Always caught here."""


REFUSED = "dag"
"""The kind of error of a file that does not get a DAG which it defines."""
_KNOWN = (
    sa.select(dag, dag_version.c.version_hash, dag_file.c.path.label("existing_path"))
    .join(dag_version, dag_version.c.id == dag.c.version_id, isouter=True)
    .join(dag_file, dag_file.c.path == dag.c.file_path, isouter=True)
    .order_by(dag.c.dag_id)
    .with_for_update(of=dag)
)
_KNOWN_BY_ID = _KNOWN.where(dag.c.dag_id.in_(sa.bindparam("dag_ids", expanding=True)))
_ACTIVE_OF_FILE = (
    sa.select(dag.c.dag_id).where(dag.c.file_path == sa.bindparam("path"), dag.c.is_active).order_by(dag.c.dag_id)
)
_UPDATE = (
    sa.update(dag)
    .where(dag.c.dag_id == sa.bindparam("key"))
    .values({name: sa.bindparam(f"new_{name}") for name in (
        "file_path", "is_active", "version_id", "schedule_summary", "tags", "max_active_runs", "deadlines",
        "timetable_plan",
        "updated_at",
    )})
)  # fmt: skip
_LEAVE = (
    sa.update(dag).where(dag.c.dag_id == sa.bindparam("key")).values(is_active=False, updated_at=sa.bindparam("now"))
)
_CONTESTED = (
    sa.select(import_error.c.file_path)
    .distinct()
    .where(
        import_error.c.dag_id.in_(sa.bindparam("dag_ids", expanding=True)),
        import_error.c.file_path != sa.bindparam("path"),
    )
    .order_by(import_error.c.file_path)
)
_REFUSED_FOR_NOBODY = (
    sa.select(import_error.c.file_path)
    .distinct()
    .where(
        import_error.c.kind == REFUSED,
        ~sa.exists().where(dag.c.dag_id == import_error.c.dag_id, dag.c.is_active),
        import_error.c.dag_id.is_not(None),
    )
    .order_by(import_error.c.file_path)
)
_NUL = rb"\u0000"


def store_report(
    conn: Connection, report: ParseReport, stamp: FileStamp, *, now: datetime, defaults: DagDefaults
) -> StoredReport:
    """Store all that one parse of a file found. Several reports may be stored in one transaction.

    Args:
        stamp: The file as it was when it was parsed.
        defaults: The settings that hold for DAGs that do not say them.
    """
    path = storable(report.path)
    if report.dags:
        put_sources(conn, {source.content_hash: source.text for source in report.sources})
    sources = source_refs(report)
    known = _known_dags(conn, [parsed.dag.dag_id for parsed in report.dags])
    errors, new, changed = list(report.errors), [], []
    for parsed in sorted(report.dags, key=lambda parsed: parsed.dag.dag_id):
        dag_id, before = parsed.dag.dag_id, known.get(parsed.dag.dag_id)
        try:
            values = _values(conn, path, parsed, before, sources, now, defaults)
        except _Refused as exc:
            errors.append(FileError(REFUSED, str(exc), dag_id=dag_id))
            continue
        if before is None:
            conn.execute(dag.insert(), {"dag_id": dag_id, **values, "is_paused": is_paused_at_first(parsed, defaults)})
            new.append(dag_id)
            store_references(conn, parsed.dag, now, is_new=True)
        elif any(getattr(before, name) != value for name, value in values.items() if name != "updated_at"):
            conn.execute(_UPDATE, {"key": dag_id, **{f"new_{name}": value for name, value in values.items()}})
            changed.append(dag_id)
            store_references(conn, parsed.dag, now)
    _note_file(conn, path, report, stamp, n_errors=len(errors), now=now)
    replace_errors(conn, path, errors, warnings=report.warnings, output=report.output, now=now)
    removed = _remove_missing(conn, path, report, now)
    return StoredReport(tuple(new), tuple(changed), removed, _contested(conn, path, removed))


def refused_for_nobody(conn: Connection) -> tuple[str, ...]:
    """Return the files that were refused a DAG which no file has now: parsed again, the first of them gets it.

    Whoever stored that it left has said so, or has died before, or has lost the database's answer.
    """
    return tuple(conn.scalars(_REFUSED_FOR_NOBODY))


def remove_file(conn: Connection, path: str, *, now: datetime) -> StoredReport:
    """Let a file that is gone leave, and its DAGs with it. Their runs and versions stay."""
    path = storable(path)
    removed = _leave(conn, conn.scalars(_ACTIVE_OF_FILE, {"path": path}).all(), now)
    delete_file(conn, path)
    replace_errors(conn, path, (), now=now)
    return StoredReport(removed=removed, contested=_contested(conn, path, removed))


def _values(
    conn: Connection,
    path: str,
    parsed: ParsedDag,
    before: Any,
    sources: list[SourceRef],
    now: datetime,
    defaults: DagDefaults,
) -> dict[str, Any]:
    """Return what the DAG's row is to hold, its version stored. Raises _Refused when this file does not get the DAG."""
    found = parsed.dag
    if before is not None and before.is_active and before.file_path != path and before.existing_path is not None:
        raise _Refused(
            f"the DAG {found.dag_id!r} is defined in {before.file_path} already, which keeps it; {path} must choose"
            " another dag_id"
        )
    serialized = to_json(found)
    if has_nul(serialized):
        raise _Refused(f"the DAG {found.dag_id!r} has a text with a NUL character, which cannot be stored; remove it")
    is_same = before is not None and (before.version_hash, before.file_path) == (parsed.version_hash, path)
    new = NewVersion(found.dag_id, parsed.version_hash, path, serialized, sources, now)
    version_id = before.version_id if is_same else add_version(conn, new, is_first=before is None)
    return values_of(path, parsed, version_id, now, defaults)


def values_of(path: str, parsed: ParsedDag, version_id: int, now: datetime, defaults: DagDefaults) -> dict[str, Any]:
    """Return what a DAG's row is to hold of a parse."""
    found = parsed.dag
    limit = defaults.max_active_runs if found.max_active_runs is None else found.max_active_runs
    return {
        "file_path": path,
        "is_active": True,
        "version_id": version_id,
        "schedule_summary": found.schedule_summary,
        "tags": to_json(found.tags),
        "max_active_runs": min(limit, LARGEST_INTEGER) or LARGEST_INTEGER,  # 0 is no limit, as in Airflow
        "deadlines": to_json(found.deadlines),
        # Asked anew by each parse, so a DAG that has a plan counts as changed by each.
        "timetable_plan": None if parsed.plan is None else to_json(parsed.plan),
        "updated_at": now,
    }


def is_paused_at_first(parsed: ParsedDag, defaults: DagDefaults) -> bool:
    """Whether a DAG that was not known before is paused."""
    said = parsed.dag.is_paused_upon_creation
    return defaults.paused if said is None else said


def has_nul(serialized: bytes) -> bool:
    """Whether a DAG has a character that cannot be stored."""
    return _NUL in serialized


def source_refs(report: ParseReport) -> list[SourceRef]:
    """Return what a version says of its sources."""
    return [SourceRef(source.path, source.module, source.content_hash) for source in report.sources]


def _known_dags(conn: Connection, dag_ids: list[str]) -> dict[str, Any]:
    found = {}
    for some in portions(sorted(dag_ids)):
        found.update({row.dag_id: row for row in conn.execute(_KNOWN_BY_ID, {"dag_ids": some})})
    return found


def _note_file(
    conn: Connection, path: str, report: ParseReport, stamp: FileStamp, *, n_errors: int, now: datetime
) -> None:
    file = file_row(path, report, stamp, n_errors=n_errors, now=now)
    before = None if report.sources else get_file(conn, path)
    if before is not None:
        # The parse ended before it could say: what was used before still counts.
        file = msgspec.structs.replace(file, local_modules=before.local_modules)
    put_file(conn, file)


def file_row(path: str, report: ParseReport, stamp: FileStamp, *, n_errors: int, now: datetime) -> DagFileRow:
    """Return the row of a file that was parsed."""
    return DagFileRow(
        path=path,
        content_hash=stamp.content_hash,
        modified_ns=stamp.modified_ns,
        size=stamp.size,
        local_modules=[LocalModule(source.path, source.content_hash) for source in report.sources[1:]],
        parsed_at=now,
        parse_seconds=report.duration,
        n_dags=len(report.dags),
        n_errors=n_errors,
        runtime=stamp.runtime,
    )


def _remove_missing(conn: Connection, path: str, report: ParseReport, now: datetime) -> tuple[str, ...]:
    """Let those DAGs leave that the file, parsed well, no longer has."""
    if any(error.dag_id is None for error in report.errors):
        return ()
    kept = {parsed.dag.dag_id for parsed in report.dags} | {error.dag_id for error in report.errors}
    missing = [dag_id for dag_id in conn.scalars(_ACTIVE_OF_FILE, {"path": path}) if dag_id not in kept]
    return _leave(conn, missing, now)


def _leave(conn: Connection, dag_ids: Collection[str], now: datetime) -> tuple[str, ...]:
    if dag_ids:
        conn.execute(_LEAVE, [{"key": dag_id, "now": now} for dag_id in dag_ids])
    return tuple(dag_ids)


def _contested(conn: Connection, path: str, removed: Iterable[str]) -> tuple[str, ...]:
    paths: dict[str, None] = {}
    for some in portions(list(removed)):
        paths.update(dict.fromkeys(conn.scalars(_CONTESTED, {"dag_ids": some, "path": path})))
    return tuple(sorted(paths))


LEAST = 2
"""To find out whether a file is new takes statements, too: for one alone they would be more."""
MOST_BYTES = 1 << 20
"""Of DAGs as JSON and of sources that are stored together: on PostgreSQL the event loop makes statements of them."""
_KNOWN_IDS = sa.select(dag.c.dag_id).where(dag.c.dag_id.in_(sa.bindparam("dag_ids", expanding=True)))


class Parsed(NamedTuple):
    """What a parse found, and the file as it was then."""

    report: ParseReport
    stamp: FileStamp


class _Encoded(NamedTuple):
    """What a parse found, the file as it was then, and its DAGs as JSON, by dag_id."""

    report: ParseReport
    stamp: FileStamp
    serialized: dict[str, bytes]


def store_new_files(
    conn: Connection, files: Sequence[Parsed], *, now: datetime, defaults: DagDefaults
) -> dict[str, DagFileRow]:
    """Store those of the files that are new and plain, with a few statements for all of them.

    Args:
        files: All that the transaction stores, each path once.
        defaults: The settings that hold for DAGs that do not say them.

    Returns:
        The files that were stored, by path, with `MOST_BYTES` at most. All their DAGs are new. Nothing was done about
        any other.
    """
    plain = _encoded(_plain(conn, files))
    if not plain:
        return {}
    texts = {source.content_hash: source.text for file in plain for source in file.report.sources}
    put_sources(conn, texts)
    found = sorted(((file, parsed) for file in plain for parsed in file.report.dags), key=_dag_id)
    ids = add_first_versions(conn, [_version(file, parsed, now) for file, parsed in found])
    rows = [_row(file, parsed, ids, now, defaults) for file, parsed in found]
    conn.execute(dag.insert(), rows)
    for _, parsed in found:
        store_references(conn, parsed.dag, now, is_new=True)
    stored = [file_row(file.report.path, file.report, file.stamp, n_errors=0, now=now) for file in plain]
    put_new_files(conn, sorted(stored, key=lambda row: row.path))
    return {row.path: row for row in stored}


def _plain(conn: Connection, files: Sequence[Parsed]) -> list[Parsed]:
    found = [file for file in files if _is_clean(file.report)]
    if len(found) < LEAST:
        return []
    n_files = Counter(dag_id for file in files for dag_id in {parsed.dag.dag_id for parsed in file.report.dags})
    doubtful = {dag_id for dag_id, n in n_files.items() if n > 1}
    for some in portions(sorted({parsed.dag.dag_id for file in found for parsed in file.report.dags})):
        doubtful.update(conn.scalars(_KNOWN_IDS, {"dag_ids": some}))
    known = known_paths(conn, [file.report.path for file in found])
    return [
        file
        for file in found
        if file.report.path not in known and doubtful.isdisjoint(parsed.dag.dag_id for parsed in file.report.dags)
    ]


def _is_clean(report: ParseReport) -> bool:
    """Whether a report has DAGs and nothing that must be said of them."""
    dag_ids = {parsed.dag.dag_id for parsed in report.dags}
    is_clean = not (report.errors or report.warnings) and storable(report.path) == report.path
    is_clear = bool(dag_ids) and len(dag_ids) == len(report.dags)
    return is_clean and is_clear


def _encoded(files: Sequence[Parsed]) -> list[_Encoded]:
    """Return the files that can be stored, of the first that have `MOST_BYTES` together."""
    found: list[_Encoded] = []
    texts: set[str] = set()
    n_bytes = 0
    for report, stamp in files:
        serialized = {parsed.dag.dag_id: to_json(parsed.dag) for parsed in report.dags}
        n_bytes += sum(map(len, serialized.values()))
        n_bytes += sum(len(source.text) for source in report.sources if source.content_hash not in texts)
        if n_bytes > MOST_BYTES:
            break
        texts.update(source.content_hash for source in report.sources)
        if not any(map(has_nul, serialized.values())):
            found.append(_Encoded(report, stamp, serialized))
    return found


def _dag_id(found: tuple[_Encoded, ParsedDag]) -> str:
    return found[1].dag.dag_id


def _version(file: _Encoded, parsed: ParsedDag, now: datetime) -> NewVersion:
    path, refs = file.report.path, source_refs(file.report)
    dag_id = parsed.dag.dag_id
    return NewVersion(dag_id, parsed.version_hash, path, file.serialized[dag_id], refs, now)


def _row(
    file: _Encoded, parsed: ParsedDag, version_ids: dict[str, int], now: datetime, defaults: DagDefaults
) -> dict[str, Any]:
    dag_id = parsed.dag.dag_id
    values = values_of(file.report.path, parsed, version_ids[dag_id], now, defaults)
    return {"dag_id": dag_id, **values, "is_paused": is_paused_at_first(parsed, defaults)}
