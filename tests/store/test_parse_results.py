"""The storage of a parse's results: versions only after changes, and DAGs leave only on proof."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from asynsched.errors import NotFound
from asynsched.serialization.schema import (
    FileError,
    ParseReport,
    SourceFile,
)
from asynsched.store.dags.dags import (
    find_dag,
    get_dag,
    get_source,
    get_sources,
    get_version,
    latest_version,
    list_dags,
    near_dag_ids,
    scheduled_dag_ids,
    set_next_dagruns,
    set_paused,
)
from asynsched.store.dags.files import get_file, known_files, list_errors, list_errors_of
from asynsched.store.dags.parse_results import DagDefaults, Outcome, StoredReport, store_outcomes, store_report
from asynsched.store.engines.opening import bring_to_head, connect_direct
from asynsched.store.engines.urls import parse_url
from asynsched.timetables.base import DagRunInfo
from tests.support.parse_reports import DEFAULTS, LATER, NOW, STAMP, parsed, report
from tests.support.stored import list_versions


async def store(database, found: ParseReport, now: datetime = NOW, defaults: DagDefaults = DEFAULTS) -> StoredReport:
    return await database.write(store_report, found, STAMP, now=now, defaults=defaults)


async def test_a_new_file_brings_its_dags_their_versions_and_its_sources(database):
    helper = SourceFile("helper.py", "helper", "b" * 64, "import this")
    found = report(
        "a.py", parsed("two", tags=("x", "y"), schedule_summary="@daily", max_active_runs=3), parsed("one"),
        sources=(SourceFile("a.py", "unusual_prefix_a", "a" * 64, "text €\n"), helper), duration=0.5,
    )  # fmt: skip
    assert await store(database, found) == StoredReport(new=("one", "two"))
    one, two = await database.read(list_dags)
    assert (one.dag_id, one.file_path, one.is_active, one.is_paused, one.max_active_runs) == (
        "one",
        "a.py",
        True,
        False,
        16,
    )
    assert (two.tags, two.schedule_summary, two.max_active_runs) == (["x", "y"], "@daily", 3)
    version = await database.read(get_version, two.version_id)
    assert (version.number, version.version_hash, version.created_at) == (1, "1", NOW)
    assert [ref.path for ref in version.sources] == ["a.py", "helper.py"]
    assert await database.read(get_sources, ["a" * 64, "f" * 64]) == {"a" * 64: "text €\n"}
    assert await database.read(get_source, "b" * 64) == "import this"
    (file,) = await database.read(known_files)
    assert (file.path, file.n_dags, file.n_errors, file.parse_seconds, file.runtime) == ("a.py", 2, 0, 0.5, "3.11")
    assert [(module.path, module.content_hash) for module in file.local_modules] == [("helper.py", "b" * 64)]


async def test_an_unchanged_dag_keeps_its_version_and_a_changed_one_gets_the_next(database):
    await store(database, report("a.py", parsed("one"), parsed("two")))
    assert await store(database, report("a.py", parsed("one"), parsed("two")), LATER) == StoredReport()
    assert (await database.read(get_dag, "one")).updated_at == NOW
    assert await store(database, report("a.py", parsed("one", "2"), parsed("two"))) == StoredReport(changed=("one",))
    assert [version.number for version in await database.read(list_versions, "one")] == [2, 1]
    assert (await database.read(latest_version, "two")).number == 1


@pytest.mark.parametrize(
    ("said", "default", "paused"), [(None, False, False), (None, True, True), (False, True, False), (True, False, True)]
)
async def test_a_new_dag_is_paused_as_it_says_or_else_as_the_settings_say(database, said, default, paused):
    defaults = DagDefaults(16, default)
    await store(database, report("a.py", parsed("one", is_paused_upon_creation=said)), defaults=defaults)
    assert (await database.read(get_dag, "one")).is_paused is paused
    await database.write(set_paused, "one", not paused, LATER)
    await store(database, report("a.py", parsed("one", "2", is_paused_upon_creation=said)), defaults=defaults)
    assert (await database.read(get_dag, "one")).is_paused is not paused


async def test_a_dag_leaves_with_its_last_definition_and_comes_back_paused(database):
    await store(database, report("a.py", parsed("one"), parsed("two")))
    await database.write(set_paused, "two", True, NOW)
    assert await store(database, report("a.py", parsed("one"))) == StoredReport(removed=("two",))
    assert [dag.dag_id for dag in await database.read(list_dags)] == ["one"]
    assert await store(database, report("b.py", parsed("two"))) == StoredReport(changed=("two",))
    two = await database.read(get_dag, "two")
    assert (two.is_active, two.file_path, two.is_paused) == (True, "b.py", True)


async def test_a_file_that_stops_parsing_keeps_its_last_good_version(database):
    helper = SourceFile("helper.py", "helper", "b" * 64, "")
    found = report("a.py", parsed("one"))
    await store(database, report("a.py", parsed("one"), sources=(*found.sources, helper)))
    error = FileError("crash", "it was killed\0\ud800", traceback="t\0", line=3)
    warning = FileError("dag", "look out")
    broken = report("a.py", errors=(error,), warnings=(warning,), sources=(), output="printed\0")
    assert await store(database, broken) == StoredReport()
    one = await database.read(get_dag, "one")
    assert (one.is_active, one.has_errors) == (True, True)
    first, second = await database.read(list_errors)
    assert (first.kind, first.message, first.line, first.is_warning) == ("crash", "it was killed\ufffd\ufffd", 3, False)
    assert (first.output, second.message, second.is_warning) == ("printed\ufffd", "look out", True)
    assert [module.path for module in (await database.read(get_file, "a.py")).local_modules] == ["helper.py"]
    await store(database, report("a.py", parsed("one")))
    assert await database.read(list_errors) == []
    assert not (await database.read(get_dag, "one")).has_errors


async def test_an_error_of_one_dag_keeps_that_dag_and_nothing_else(database):
    await store(database, report("a.py", parsed("one"), parsed("two"), parsed("three")))
    cycle = FileError("dag", "a cycle", dag_id="two")
    assert await store(database, report("a.py", parsed("one"), errors=(cycle,))) == StoredReport(removed=("three",))
    assert {dag.dag_id: dag.has_errors for dag in await database.read(list_dags)} == {"one": False, "two": True}


async def test_of_two_files_with_one_dag_id_the_first_keeps_it_until_it_goes(database):
    await store(database, report("a.py", parsed("same")))
    assert await store(database, report("b.py", parsed("same", "2"), parsed("other"))) == StoredReport(new=("other",))
    assert (await database.read(get_dag, "same")).file_path == "a.py"
    (error,) = await database.read(list_errors_of, ["b.py"])
    assert (error.kind, error.dag_id) == ("dag", "same")
    assert "a.py" in error.message
    assert "b.py" in error.message
    [gone] = await database.write(store_outcomes, [Outcome("a.py")], now=LATER, defaults=DEFAULTS)
    assert gone.changes == StoredReport(removed=("same",), contested=("b.py",))
    assert [file.path for file in await database.read(known_files)] == ["b.py"]
    assert await store(database, report("b.py", parsed("same", "2"), parsed("other"))) == StoredReport(
        changed=("same",)
    )
    assert await database.read(list_errors) == []


async def test_a_text_that_no_database_can_keep_is_that_dag_s_error(database):
    stored = await store(database, report("a.py", parsed("good"), parsed("bad", doc_md="\0")))
    assert stored == StoredReport(new=("good",))
    assert "NUL character" in (await database.read(list_errors))[0].message
    await store(database, report("b.py", parsed("odd", max_active_runs=2**40)))
    assert (await database.read(get_dag, "odd")).max_active_runs == 2**31 - 1


async def test_a_file_whose_name_is_no_text_is_stored_and_removed_all_the_same(database):
    await store(
        database, report("name \udcff.py", errors=(FileError("unreadable", "its name is no text"),), sources=())
    )
    assert [error.file_path for error in await database.read(list_errors)] == ["name \ufffd.py"]
    await database.write(store_outcomes, [Outcome("name \udcff.py")], now=NOW, defaults=DEFAULTS)
    assert await database.read(list_errors) == await database.read(known_files) == []


async def test_a_changed_dag_is_due_first_then_what_has_a_next_run(database):
    await store(database, report("a.py", parsed("new"), parsed("paused", is_paused_upon_creation=True)))
    assert await database.read(scheduled_dag_ids) == [("new", None)]
    info = DagRunInfo.interval(NOW, LATER)
    seen = {"new": await database.read(get_dag, "new")}
    await database.write(set_next_dagruns, {"new": info}, seen)
    assert await database.read(scheduled_dag_ids) == [("new", LATER)]
    assert await database.read(scheduled_dag_ids, LATER) == [("new", LATER)]
    assert await database.read(scheduled_dag_ids, LATER - timedelta(microseconds=1)) == []
    dag = await database.read(get_dag, "new")
    assert (dag.next_dagrun_logical_date, dag.next_dagrun_data_interval_end, dag.next_dagrun_create_after) == (
        NOW,
        LATER,
        LATER,
    )
    await database.write(set_next_dagruns, {"new": None}, seen)
    assert await database.read(scheduled_dag_ids) == []
    for is_paused in (True, False):
        await database.write(set_paused, "new", is_paused, LATER)
    await database.write(set_next_dagruns, {"new": None}, seen)
    assert await database.read(scheduled_dag_ids) == [("new", None)], "it was changed since it was seen"
    await database.write(set_next_dagruns, {"new": None}, {"new": await database.read(get_dag, "new")})
    assert await database.read(scheduled_dag_ids, NOW) == []
    for is_paused in (True, False):
        await database.write(set_paused, "new", is_paused, NOW)
    assert await database.read(scheduled_dag_ids, NOW) == [("new", None)], "it was changed after the clock was set back"
    await database.write(set_paused, "new", True, LATER)
    await database.write(set_paused, "paused", False, LATER)
    assert await database.read(scheduled_dag_ids) == [("paused", None)]


async def test_a_wrong_dag_id_is_answered_with_near_ones(database):
    await store(database, report("a.py", parsed("daily_sales"), parsed("weekly_sales"), parsed("unlike")))
    assert (await database.read(near_dag_ids, "dayly_sales"))[0] == "daily_sales"
    for query, args in ((find_dag, ()), (set_paused, (True, NOW))):
        with pytest.raises(NotFound) as raised:
            await database.write(query, "dayly_sales", *args)
        assert raised.value.near[0] == "daily_sales"


FILES = ("a.py", "b.py", "c.py")
DAGS = st.frozensets(st.sampled_from(("one", "two", "three")))
STEPS = st.lists(
    st.tuples(st.sampled_from(FILES), st.one_of(DAGS, st.sampled_from(("broken", "removed")))), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_after_any_history_exactly_the_defined_dags_are_active(steps):
    files: dict[str, frozenset[str]] = {}
    with connect_direct(parse_url("sqlite://")) as database:
        database.write(bring_to_head, "memory")

        def settle(stored: StoredReport) -> None:
            for path in stored.contested:
                settle(save(path))

        def save(path: str) -> StoredReport:
            found = report(path, *(parsed(dag_id, path) for dag_id in sorted(files[path])))
            return database.write(store_report, found, STAMP, now=NOW, defaults=DEFAULTS)

        for path, content in steps:
            if content == "removed":
                files.pop(path, None)
                [gone] = database.write(store_outcomes, [Outcome(path)], now=NOW, defaults=DEFAULTS)
                settle(gone.changes)
            elif content != "broken":
                files[path] = content
                settle(save(path))
            elif path in files:
                error = report(path, errors=(FileError("syntax", "no"),))
                settle(database.write(store_report, error, STAMP, now=NOW, defaults=DEFAULTS))
                # It keeps the DAGs that it had; one that another file had before it is forgotten until it parses again.
                files[path] = frozenset(dag.dag_id for dag in database.read(list_dags) if dag.file_path == path)
        active = {dag.dag_id: dag.file_path for dag in database.read(list_dags)}
    defined = {(dag_id, path) for path, dag_ids in files.items() for dag_id in dag_ids}
    assert set(active) == {dag_id for dag_id, _ in defined}
    assert set(active.items()) <= defined


@pytest.mark.parametrize("first", ["maker", "importer"])
async def test_a_dag_belongs_to_the_file_that_makes_it_and_others_may_import_it(database, first):
    maker = report("maker.py", parsed("made"))
    importer = report("importer.py", replace(parsed("made"), imported_from="maker.py"), parsed("own"))
    order = (maker, importer) if first == "maker" else (importer, maker, importer)
    for found in order:
        await store(database, found)
    made, own = await database.read(list_dags)
    assert (made.dag_id, made.file_path, made.is_active) == ("made", "maker.py", True)
    assert (own.dag_id, own.file_path, own.is_active) == ("own", "importer.py", True)
    assert await database.read(list_errors) == []


async def test_a_file_that_imports_a_dag_and_defines_another_of_its_dag_id_is_refused(database):
    await store(database, report("maker.py", parsed("made")))
    await store(database, report("importer.py", parsed("made")))
    (error,) = await database.read(list_errors)
    assert "the DAG 'made' is defined in maker.py already" in error.message
