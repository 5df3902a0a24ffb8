"""Files that nobody knows yet, stored many at once: a first start on a large folder is bound by its statements.

What anything else than storing hangs on is left to `parse_results.py`, one file after the other: errors, warnings,
DAGs that are known, or that two files define; and what would be too much for one statement.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.serialization.schema import ParsedDag, ParseReport
from asynsched.store.asset_references import store_references
from asynsched.store.dag_files import DagFileRow, known_paths, put_new_files
from asynsched.store.dag_versions import NewVersion, add_first_versions
from asynsched.store.parse_results import (
    DagDefaults,
    FileStamp,
    file_row,
    has_nul,
    is_paused_at_first,
    source_refs,
    values_of,
)
from asynsched.store.rows import portions, storable, to_json
from asynsched.store.schema.tables import dag
from asynsched.store.sources import put_sources

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
