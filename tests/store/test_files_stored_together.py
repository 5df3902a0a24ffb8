"""Files that are stored together: by few statements, and as if one had been stored after the other."""

from dataclasses import replace

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from asynsched.serialization.schema import FileError
from asynsched.store.dags.files import claim_unclaimed
from asynsched.store.dags.parse_results import Outcome, store_outcomes
from asynsched.store.engines.opening import bring_to_head, connect_direct
from asynsched.store.engines.urls import parse_url
from tests.support.parse_reports import DEFAULTS, NOW, STAMP, parsed, report


@pytest.mark.parametrize(("version", "most"), [("1", 5), ("2", 8)], ids=["same", "edited"])
async def test_a_file_costs_few_statements_however_many_are_known(database, version: str, most: int):
    def statements(conn: sa.Connection, *names: str, version: str = "1") -> int:
        found: list[str] = []
        note = lambda *args: found.append(args[2])  # noqa: E731 - it must be the same object to be removed
        sa.event.listen(conn, "before_cursor_execute", note)
        outcomes = [Outcome(f"{name}.py", report(f"{name}.py", parsed(name, version)), STAMP) for name in names]
        store_outcomes(conn, outcomes, now=NOW, defaults=DEFAULTS)
        sa.event.remove(conn, "before_cursor_execute", note)
        return len(found) - (conn.dialect.name == "postgresql")  # the lock, beside other schedulers

    assert await database.write(statements, "first") <= 7
    assert await database.write(statements, *(f"dag_{number}" for number in range(50))) <= 7
    assert await database.write(statements, "first", version=version) <= most


PATHS = ("a.py", "b.py", "c.py", "d.py")
REPORTS = st.builds(
    lambda path, dag_ids, is_faulty, paused: report(
        path,
        *(parsed(dag_id, path, is_paused_upon_creation=paused, tags=(path,)) for dag_id in dag_ids),
        errors=(FileError("dag", "no", dag_id="faulty"),) if is_faulty else (),
    ),
    st.sampled_from(PATHS), st.sampled_from(("", "u", "v", "uv")), st.booleans(), st.booleans(),
)  # fmt: skip
BATCHES = st.lists(
    st.lists(REPORTS, min_size=1, max_size=4, unique_by=lambda found: found.path), min_size=2, max_size=4
)
STORED = (
    """
    SELECT d.dag_id, d.file_path, d.is_active, d.is_paused, d.tags, d.max_active_runs, v.version_hash, v.number,
        v.sources, v.serialized
    FROM dag AS d JOIN dag_version AS v ON v.id = d.version_id ORDER BY 1
    """,
    "SELECT * FROM dag_file ORDER BY path",
    "SELECT file_path, message, dag_id FROM import_error ORDER BY 1, 2",
    "SELECT * FROM source ORDER BY 1",
)
REFUSED_FOR_NOBODY = """
    SELECT import_error.file_path FROM import_error JOIN dag ON dag.dag_id = import_error.dag_id WHERE NOT dag.is_active
"""


@settings(max_examples=60, deadline=None)
@given(BATCHES)
def test_files_that_are_stored_together_are_stored_as_one_after_the_other(batches):
    def stored(of_each: int) -> tuple[list[object], list[set[str]]]:
        with connect_direct(parse_url("sqlite://")) as database:
            database.write(bring_to_head, "memory")
            told = []
            for batch in batches:
                outcomes = [Outcome(found.path, found, STAMP) for found in batch]
                for start in range(0, len(outcomes), of_each):
                    some = outcomes[start : start + of_each]
                    told += database.write(store_outcomes, some, now=NOW, defaults=DEFAULTS)
            contested = [set(file.changes.contested) for file in told]
            refused = database.read(lambda conn: conn.scalars(sa.text(REFUSED_FOR_NOBODY)).all())
            assert set(refused) <= set().union(*contested), "a file that may now have a DAG is parsed again"
            told = [replace(file, changes=file.changes._replace(contested=())) for file in told]
            rows = [database.read(lambda conn, sql=sql: conn.execute(sa.text(sql)).all()) for sql in STORED]
            return [told, *rows], contested

    (together, contested), (in_turn, contested_in_turn) = stored(of_each=4), stored(of_each=1)
    assert together == in_turn
    # No file is parsed again for a DAG that a file stored later in the batch gets.
    assert all(some <= others for some, others in zip(contested, contested_in_turn, strict=True))


async def test_a_dag_may_change_files_among_those_stored_together(database):
    both = [report("a.py", parsed("one", tags=("a",))), report("b.py", parsed("one", tags=("b",)), parsed("two"))]
    first = [Outcome(found.path, found, STAMP) for found in both]
    a, b = await database.write(store_outcomes, first, now=NOW, defaults=DEFAULTS)
    assert (a.changes.new, b.changes.new, [error.dag_id for error in b.errors]) == (("one",), ("two",), ["one"])
    then = [Outcome("a.py"), Outcome("b.py", both[1], STAMP)]
    a, b = await database.write(store_outcomes, then, now=NOW, defaults=DEFAULTS)
    assert (a.changes.removed, a.changes.contested, b.changes.changed, b.errors) == (("one",), (), ("one",), ())
    then = [Outcome("a.py", both[0], STAMP), Outcome("b.py")]
    a, b = await database.write(store_outcomes, then, now=NOW, defaults=DEFAULTS)
    assert (a.changes.changed, b.changes.removed, b.changes.contested) == ((), ("one", "two"), ("a.py",))


async def test_claims_end_with_what_is_stored_of_new_files(database):
    for path in PATHS:
        await database.write(claim_unclaimed, [path], "me", NOW)
    outcomes = [Outcome(path, report(path, parsed(path)), STAMP, claimed_by="me") for path in PATHS[:3]]
    await database.write(store_outcomes, outcomes, now=NOW, defaults=DEFAULTS)
    left = await database.read(lambda conn: conn.scalars(sa.text("SELECT path FROM parse_claim")).all())
    assert left == [PATHS[3]]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["maker first", "importer first"])
async def test_a_dag_belongs_to_the_file_that_makes_it_whichever_is_stored_first(database, order):
    imported = msgspec.structs.replace(parsed("shared"), imported_from="maker.py")
    outcomes = [
        Outcome("maker.py", report("maker.py", parsed("shared")), STAMP),
        Outcome("importer.py", report("importer.py", imported, parsed("own")), STAMP),
    ]
    await database.write(store_outcomes, [outcomes[place] for place in order], now=NOW, defaults=DEFAULTS)
    found = await database.read(lambda conn: conn.execute(sa.text(STORED[0])).all())
    assert [row[:3] for row in found] == [("own", "importer.py", True), ("shared", "maker.py", True)]
