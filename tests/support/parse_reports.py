"""The reports of parses, with the parts that a test gives, and the time of their storage."""

from datetime import UTC, datetime, timedelta

from asynsched.serialization.schema import (
    SCHEMA_VERSION,
    ParsedDag,
    ParseReport,
    SerializedDag,
    SerializedTask,
    SourceFile,
)
from asynsched.store.dags.parse_results import DagDefaults, FileStamp

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
STAMP = FileStamp("0" * 64, 1, 2, "3.11")
DEFAULTS = DagDefaults(max_active_runs=16, paused=False)


def parsed(dag_id: str, version: str = "1", **fields: object) -> ParsedDag:
    fields.setdefault("timetable", {"kind": "null"})
    return ParsedDag(SerializedDag(dag_id=dag_id, tasks=(SerializedTask("t", "EmptyOperator"),), **fields), version)


def report(path: str, *dags: ParsedDag, **fields: object) -> ParseReport:
    fields.setdefault("sources", (SourceFile(path, "unusual_prefix_x", "a" * 64, "main"),))
    return ParseReport(SCHEMA_VERSION, path, dags, **fields)
