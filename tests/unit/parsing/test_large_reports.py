"""The reports of many files at once are stored in pieces, so that the event loop does other work in between."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from asynsched.serialization.schema import SCHEMA_VERSION, ParsedDag, ParseReport, SerializedDag, SourceFile
from asynsched.store.dags.parse_results import MOST_BYTES, DagDefaults, FileStamp, Outcome, store_outcomes
from asynsched.store.engines.opening import bring_to_head, connect_direct
from asynsched.store.engines.urls import parse_url

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
N_FILES = 30
SMALL, LARGE = 10, 2 * MOST_BYTES // N_FILES


def outcome(number: int, doc: int, text: int) -> Outcome:
    path = f"{number}.py"
    dag = ParsedDag(SerializedDag(f"d{number}", {"kind": "null"}, doc_md="x" * doc), "1")
    sources = (SourceFile(path, path, f"{number:064}", "y" * text), SourceFile("all.py", "all", "a" * 64, "z" * LARGE))
    return Outcome(path, ParseReport(SCHEMA_VERSION, path, (dag,), sources=sources), FileStamp("", 1, 2, "3.11"))


def sizes(parameters: Any) -> Iterator[int]:
    """Yield the length of each text among the parameters of a statement, which may have many rows."""
    if isinstance(parameters, str | bytes):
        yield len(parameters)
    elif isinstance(parameters, list | tuple):
        for parameter in parameters:
            yield from sizes(parameter)


@pytest.mark.parametrize(
    ("doc", "text", "n_portions"),
    [(SMALL, SMALL, 1), (LARGE, SMALL, 3), (SMALL, LARGE, 3)],
    ids=["small", "large DAGs", "large sources"],
)
def test_no_statement_gets_more_than_the_event_loop_has_time_for(doc, text, n_portions):
    given: list[int] = []
    with connect_direct(parse_url("sqlite://")) as database:
        database.write(bring_to_head, "memory")

        def store(conn: sa.Connection) -> list[Any]:
            sa.event.listen(conn, "before_cursor_execute", lambda *args: given.append(sum(sizes(args[3]))))
            outcomes = [outcome(number, doc, text) for number in range(N_FILES)]
            return store_outcomes(conn, outcomes, now=NOW, defaults=DagDefaults(16, paused=False))

        stored = database.write(store)
        versions = database.read(lambda conn: conn.execute(sa.text("SELECT dag_id, serialized FROM dag_version")).all())
    assert [file.changes.new for file in stored] == [(f"d{number}",) for number in range(N_FILES)]
    assert max(given) <= MOST_BYTES
    assert 7 * n_portions <= len(given) <= 9 * n_portions
    assert {row.dag_id for row in versions if b'"' + b"x" * doc + b'"' in row.serialized} == {
        f"d{number}" for number in range(N_FILES)
    }
