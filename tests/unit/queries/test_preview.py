"""A preview names what a new state of the DAG folder changes, and nothing else."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asynsched.protocol.messages import SourceRef
from asynsched.queries.changed_graph import MOST_NODES, as_dot, as_mermaid, changed_graph
from asynsched.queries.preview import (
    MOST_DUE,
    ActiveRun,
    FailingFile,
    FolderState,
    LiveState,
    LostAsset,
    MissingPool,
    NextRuns,
    Preview,
    RunVersion,
    preview,
    state_of,
)
from asynsched.queries.version_changes import DagState, FieldChange
from asynsched.serialization.schema import FileError, ParseReport, SerializedDag, SerializedTask, SerializedWatcher
from asynsched.store.dags.dags import list_dags
from asynsched.store.dags.files import list_errors
from asynsched.store.dags.parse_results import Outcome, store_outcomes
from asynsched.store.engines.opening import open_inline
from asynsched.timetables import CronTriggerTimetable, DataInterval, PlannedInterval, TimetablePlan
from asynsched.timetables.asset_condition import AliasForm, AssetCondition, AssetForm, RefForm
from asynsched.timetables.decoding import CustomTimetable, PlannedRun
from tests.support.parse_reports import DEFAULTS, STAMP, parsed, report

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOURLY = CronTriggerTimetable("0 * * * *", timezone="UTC").serialize()
TASKS = (SerializedTask("a", "EmptyOperator", downstream_task_ids=("b",)), SerializedTask("b", "EmptyOperator"))


def dag(dag_id: str = "d", **fields) -> SerializedDag:
    return SerializedDag(dag_id, **{"timetable": {"kind": "null"}, "tasks": TASKS, **fields})


def state(*dags: SerializedDag, code: str = "x = 1", version: str = "", file: str = "d.py", **more) -> FolderState:
    """Return the state of a folder whose DAGs are in one file; equal DAGs of equal code have one version."""
    content_hash = sha256(code.encode()).hexdigest()
    sources = (SourceRef(file, "unusual_prefix_d", content_hash),)
    states = {
        one.dag_id: DagState(file, one, version or f"{hash(msgspec.json.encode(one))} {code}", sources) for one in dags
    }
    return FolderState("a folder", states, texts={content_hash: code}, **more)


def compared(before: FolderState, after: FolderState, live: LiveState | None = None, **more) -> Preview:
    return preview(before, after, live or LiveState(), now=NOW, **more)


def change(before: SerializedDag, after: SerializedDag):
    [found] = compared(state(before), state(after)).changed
    return found


@pytest.mark.parametrize(
    ("after", "reasons"),
    [
        (state(dag(timetable=HOURLY, schedule_summary="0 * * * *")), ("schedule",)),
        (state(dag(catchup=True, tags=("x",))), ("tags", "catchup")),
        (state(dag(tasks=(*TASKS, SerializedTask("c", "EmptyOperator")))), ("tasks",)),
        (state(dag(tasks=(msgspec.structs.replace(TASKS[0], retries=2), TASKS[1]))), ("tasks",)),
        (state(dag(tasks=(msgspec.structs.replace(TASKS[0], downstream_task_ids=()), TASKS[1]))), ("edges",)),
        (state(dag(tasks=(msgspec.structs.replace(TASKS[0], edge_labels={"b": "!"}), TASKS[1]))), ("edges",)),
        (state(dag(installation="other")), ("plugins, policies or include",)),
        (state(dag(), code="x = 2"), ("code of d.py",)),
        (state(dag(), file="e.py"), ("file", "e.py is imported", "d.py is no longer imported")),
        (state(dag(), code="x = 1  # one", version="of a newer Python"), ("another version of Python or asynsched",)),
    ],
)
def test_each_part_that_makes_a_new_version_is_a_reason_for_it(after, reasons):
    [found] = compared(state(dag()), after).changed
    assert found.reasons == reasons
    assert compared(after, after).changed == ()


def test_a_changed_dag_names_its_tasks_fields_and_edges():
    tasks = (
        msgspec.structs.replace(TASKS[0], retries=2, pool="big", downstream_task_ids=("c",)),
        SerializedTask("c", "EmptyOperator"),
    )
    found = change(dag(), dag(tasks=tasks, schedule_summary="@daily", timetable=HOURLY, tags=("x",)))
    assert (found.tasks_added, found.tasks_removed) == (("c",), ("b",))
    [task] = found.tasks_changed
    assert task.fields == (FieldChange("retries", 0, 2), FieldChange("pool", "default_pool", "big"))
    assert found.fields == (FieldChange("schedule", None, "@daily"), FieldChange("tags", (), ("x",)))
    edges = {(edge.source_id, edge.target_id): edge.change for edge in found.graph.changed_edges}
    assert edges == {("a", "c"): "added", ("a", "b"): "removed"}
    assert change(dag(), dag(tags=("x",))).graph is None, "a picture is for changed tasks and edges"


def chained(n: int, **of_first) -> SerializedDag:
    names = [f"t{number}" for number in range(n)]
    followers = [*((name,) for name in names[1:]), ()]
    tasks = [
        SerializedTask(*pair, downstream_task_ids=after) for *pair, after in zip(names, names, followers, strict=True)
    ]
    return dag(tasks=(msgspec.structs.replace(tasks[0], **of_first), *tasks[1:]))


def test_a_picture_has_the_changed_tasks_their_neighbours_and_no_more():
    found = changed_graph(chained(500), chained(500, retries=1), frozenset({"t0"}))
    assert [(node.task_id, node.change) for node in found.nodes] == [("t0", "changed"), ("t1", "same")]
    large = changed_graph(chained(1), chained(500), frozenset())
    assert (len(large.nodes), large.n_left_out) == (MOST_NODES, 500 - MOST_NODES)
    assert "and 400 more tasks" in as_mermaid(large)
    assert "and 400 more tasks" in as_dot("d", large)


def test_no_text_of_a_dag_leaves_its_place_in_a_picture():
    hostile = 'x"]; click n0 "javascript:0"\n%%{init}%% <b> #quot;'
    before = dag(tasks=(TASKS[0], TASKS[1]))
    labelled = dag(tasks=(msgspec.structs.replace(TASKS[0], edge_labels={"b": hostile}), TASKS[1]))
    found = changed_graph(before, labelled, frozenset())
    [line] = [line for line in as_mermaid(found).splitlines() if "-->" in line]
    assert line.count('"') == 2
    assert not set(line.partition('"')[2].rpartition('"')[0]) & set('"<>[]()%:\n')
    assert as_dot('d"', found).count("\n") == 7
    assert '\\"javascript:0\\"' in as_dot("d", found)


ERROR = FileError("syntax", "d.py:3: SyntaxError", line=3)


def test_a_file_that_fails_keeps_its_dags_and_another_dag_of_a_good_file_leaves():
    before = state_of("now", [report("d.py", parsed("one"), parsed("two")), report("e.py", parsed("three"))])
    failing = state_of("new", [report("d.py", errors=(ERROR,)), report("e.py")], before)
    found = compared(before, failing)
    assert found.failing == (FailingFile("d.py", "syntax", ERROR.message, 3, None, True, ("one", "two")),)
    assert ([one.dag_id for one in found.removed], found.n_unchanged) == (["three"], 2)

    of_one = FileError("dag", "no", dag_id="one")
    found = compared(before, state_of("new", [report("d.py", parsed("two", "2"), errors=(of_one,))], before))
    assert [(one.dag_id, one.keeps) for one in found.failing] == [("one", ("one",))]
    assert [one.dag_id for one in found.changed] == ["two"]

    again = compared(failing, state_of("new", [report("d.py", errors=(ERROR,)), report("e.py")], failing))
    assert [one.is_new for one in again.failing] == [False]
    assert compared(failing, before).mended == ("d.py",)


def reports(paths: str):
    """Return a strategy of folders: for each file, perhaps, its DAGs and an error of it or of one of its DAGs."""
    dags = st.lists(st.sampled_from("XYZ"), unique=True, max_size=3)
    of_file = st.one_of(st.none(), st.tuples(dags, st.sampled_from([None, "", "X", "Y"])))
    return st.fixed_dictionaries({f"{path}.py": of_file for path in paths}).map(as_reports)


def as_reports(files) -> list[ParseReport]:
    found = []
    for path, given_of in files.items():
        if given_of is None:
            continue
        names, wrong = given_of
        errors = () if wrong is None else (FileError("dag", "wrong", dag_id=wrong or None),)
        dags = [parsed(name, path) for name in names if wrong != name]  # an archive may have DAGs and a file that fails
        found.append(report(path, *dags, errors=errors))
    return found


@settings(max_examples=50)
@given(reports("abc"), reports("abcd"))
@example(as_reports({"b.py": (["X"], None)}), as_reports({"a.py": (["X"], None), "b.py": (["X"], None)}))
@example(as_reports({"b.py": (["X"], None)}), as_reports({"a.py": (["X"], None), "b.py": ([], "")}))
def test_a_state_is_the_one_that_a_scheduler_would_store(database, before, after):
    stored = []

    def serve_and_undo(conn) -> None:
        stored[:] = [serve(conn, before, ()), serve(conn, after, [one.path for one in before])]
        raise Undone

    with suppress(Undone):
        database.connection.write(serve_and_undo)
    now = state_of("now", before)
    assert [shape(now), shape(state_of("new", after, now))] == stored


class Undone(Exception):
    """Rolls a transaction back."""


@pytest.fixture(scope="module")
def database():
    opened = open_inline()
    yield opened
    opened.connection.close()


def serve(conn, found: list[ParseReport], known: Iterable[str]):
    """Store a folder as a scheduler does, files by path, and at once those that may get a DAG now; return its shape.

    A scheduler may parse them in another order: then of two files with a new DAG the other one may get it.
    """
    by_path = {one.path: one for one in found}
    outcomes = [Outcome(path) for path in known if path not in by_path]
    outcomes += [Outcome(path, one, STAMP) for path, one in sorted(by_path.items())]
    while outcomes:
        [done] = store_outcomes(conn, [outcomes.pop(0)], now=NOW, defaults=DEFAULTS)
        contested = [path for path in done.changes.contested if path in by_path]
        outcomes = [*(Outcome(path, by_path[path], STAMP) for path in contested), *outcomes]
    dags = {row.dag_id: row.file_path for row in list_dags(conn)}
    return dags, {(error.file_path, error.message) for error in list_errors(conn)}


def shape(found: FolderState):
    errors = {(path, error.message) for path, of_file in found.errors.items() for error in of_file}
    return {dag_id: one.file for dag_id, one in found.dags.items()}, errors


def scheduled(dag_id: str, expression: str, **fields) -> SerializedDag:
    timetable = CronTriggerTimetable(expression, timezone="UTC").serialize()
    return dag(dag_id, timetable=timetable, schedule_summary=expression, **fields)


def test_a_changed_schedule_has_its_next_runs_before_and_after_and_the_due_ones():
    old = datetime(2020, 1, 1, tzinfo=UTC)
    last = DataInterval.exact(NOW - timedelta(hours=3))
    before = state(scheduled("changed", "0 * * * *"), scheduled("same", "@daily"), scheduled("gone", "0 1 * * *"))
    after = state(
        scheduled("changed", "30 * * * *", catchup=True), scheduled("same", "@daily", tags=("x",)),
        scheduled("new", "0 0 * * *", catchup=True, start_date=old, is_paused_upon_creation=True),
    )  # fmt: skip
    found = compared(before, after, LiveState(last={"changed": last}, paused={"gone": True}))
    changed, gone, new = found.schedules
    assert (changed.dag_id, gone.dag_id, new.dag_id) == ("changed", "gone", "new")
    assert changed.before.run_after[0] == NOW + timedelta(hours=1)
    assert changed.after.n_due == 3
    assert changed.after.run_after == tuple(NOW + timedelta(minutes=30 + 60 * n) for n in range(3))
    assert (new.before, new.after.n_due, new.is_paused) == (None, MOST_DUE, True)
    assert (gone.after, gone.is_paused) == (None, True)


def test_a_custom_timetable_is_shown_by_its_plan_and_a_wrong_one_by_its_error():
    interval = PlannedInterval(NOW, NOW)
    plan = TimetablePlan(NOW, runs=tuple(PlannedRun(NOW + timedelta(hours=n), interval) for n in range(-1, 5)))
    own = dag(timetable=CustomTimetable("Own", fields={}, summary="mine").serialize(), schedule_summary="mine")
    after = FolderState("new", {"d": DagState("d.py", own, "1", plan=plan)})
    [found] = compared(FolderState("now"), after).schedules
    assert found.after == NextRuns("mine", 2, tuple(NOW + timedelta(hours=n) for n in (1, 2, 3)))
    impossible = dag(timetable=HOURLY | {"expression": "0 0 30 2 *"}, schedule_summary="never")
    never = compared(FolderState("now"), state(impossible)).schedules[0].after
    assert (never.run_after, "0 0 30 2 *" in never.error) == ((), True)


def test_active_runs_of_changed_and_removed_dags_are_told_with_their_version():
    runs = tuple(
        ActiveRun(dag_id, f"{dag_id} {version}", "running" if version else "queued", version)
        for dag_id in ("changed", "gone", "same")
        for version in (3, None)
    )
    before, after = state(dag("changed"), dag("gone"), dag("same")), state(dag("changed", tags=("x",)), dag("same"))
    assert compared(before, after, LiveState(runs)).active_runs == (
        RunVersion("changed", "changed 3", "running", 3, is_removed=False),
        RunVersion("changed", "changed None", "queued", None, is_removed=False),
        RunVersion("gone", "gone 3", "running", 3, is_removed=True),
        RunVersion("gone", "gone None", "queued", None, is_removed=True),
    )


def asset(name: str) -> AssetCondition:
    return AssetCondition(asset=AssetForm(name, f"s3://{name}"))


def producer(dag_id: str, *outlets: AssetCondition, **fields) -> SerializedDag:
    return dag(dag_id, tasks=(SerializedTask("t", "EmptyOperator", outlets=outlets),), **fields)


def test_an_asset_is_lost_with_its_last_producer_whatever_names_it():
    consumer = dag("consumer", asset_condition=AssetCondition(any=(asset("x"), asset("y"))))
    by_name, by_uri = (AssetCondition(asset_ref=ref) for ref in (RefForm(name="x"), RefForm(uri="s3://x")))
    watched = dag("watched", watchers=(SerializedWatcher("x", "s3://x", "w", "m.T"),))
    lost = [LostAsset("x", "s3://x", ("p.t",), ("consumer",))]
    for outlet in (asset("x"), by_name, by_uri):
        before = state(consumer, producer("p", outlet))
        assert list(compared(before, state(consumer, producer("p"))).lost_assets) == lost
        assert list(compared(before, state(consumer, producer("q", outlet))).lost_assets) == []
        assert list(compared(before, state(consumer, watched)).lost_assets) == []
    of_alias = AssetCondition(alias=AliasForm("x"))
    assert compared(state(consumer, producer("p", of_alias)), state(consumer)).lost_assets == ()
    assert compared(state(watched, consumer), state(consumer)).lost_assets[0].producers == ("watched, watcher w",)


def test_pools_are_missing_only_where_the_existing_ones_are_known():
    after = state(dag("d", tasks=(SerializedTask("t", "E", pool="p"), SerializedTask("u", "E"))))
    pools = frozenset({"default_pool"})
    assert compared(after, after, LiveState(pools=pools)).missing_pools == (MissingPool("p", ("d.t",)),)
    assert compared(after, after, LiveState(pools=pools | {"p"})).missing_pools == ()
    assert compared(after, after).missing_pools == ()
