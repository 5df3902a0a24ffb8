"""Loading DAG versions, and the task instances of runs."""

import asyncio
import threading

import msgspec
import pytest
from msgspec.structs import asdict
from structlog.testing import capture_logs

from asynsched.errors import NotFound, SerializationError
from asynsched.protocol.messages import Deferral, SourceRef, TriggerOutcome
from asynsched.scheduling import loading
from asynsched.scheduling.evaluation.changes import StoredDeferral
from asynsched.scheduling.evaluation.structure import DagStructure, compile_structure
from asynsched.scheduling.loading import VersionCache, active_tasks
from asynsched.serialization.schema import SerializedDag, SerializedRoute
from asynsched.states import COUNTED_TASK_STATES, DagRunState
from asynsched.store.dags.dags import add_versions, put_sources
from asynsched.store.engines.opening import open_inline
from asynsched.store.schema import DagVersionRow, TaskInstanceRow
from tests.support.flaky_database import FlakyDatabase
from tests.support.runs import NOON, evaluation, granted, run_of, task


@pytest.fixture
async def database():
    database = open_inline()
    await database.write(put_sources, {"0" * 64: "x = 1"})
    yield database
    await database.close()


def dag_of(*tasks, dag_id="dag") -> bytes:
    return msgspec.json.encode(SerializedDag(dag_id=dag_id, timetable={"kind": "null"}, tasks=tasks))


async def stored(database, code: bytes, dag_id="dag") -> int:
    """Store a version of a DAG, and return its id."""
    new = DagVersionRow(dag_id, 1, "1" * 64, "dag.py", code, (SourceRef("dag.py", "dag", "0" * 64),), NOON)
    return (await database.write(add_versions, [new]))[dag_id]


async def test_the_event_loop_goes_on_while_a_version_is_prepared(database, tmp_path, monkeypatch):
    loop = asyncio.get_running_loop()

    def compile_while_the_loop_turns(dag: SerializedDag) -> DagStructure:
        has_turned = threading.Event()
        loop.call_soon_threadsafe(has_turned.set)
        assert has_turned.wait(10)
        return compile_structure(dag)

    monkeypatch.setattr(loading, "compile_structure", compile_while_the_loop_turns)
    version_id = await stored(database, dag_of(task("first", "second"), task("second")))
    cache = VersionCache(database, tmp_path, tmp_path / "dags")
    loaded = await cache.get(version_id)
    assert [route.priority_weight for [route] in loaded.structure.routes.values()] == [2, 1]
    assert loaded.code.is_plain, "told from the text of its sources"
    assert (tmp_path / f"{'0' * 64}.py").read_text() == "x = 1"
    assert await cache.get(version_id) is loaded


async def test_a_version_is_usable_though_its_sources_cannot_be_written(database, tmp_path):
    version_id = await stored(database, dag_of(task("first")))
    (tmp_path / "sources").write_text("a file, where a full or read-only disk has no folder either")
    with capture_logs() as logs:
        loaded = await VersionCache(database, tmp_path / "sources", tmp_path / "dags").get(version_id)
    assert [ref.path for ref in loaded.code.sources] == ["dag.py"]
    assert [entry["event"] for entry in logs] == ["sources.not_written"]


async def test_many_versions_are_read_together_and_a_bad_one_fails_only_on_use(database, tmp_path):
    codes = [dag_of(task("first"), dag_id=f"dag{number}") for number in range(5)]
    codes[3] = b'{"from": "tomorrow"}'
    ids = [await stored(database, code, f"dag{number}") for number, code in enumerate(codes)]
    counting = FlakyDatabase(database)
    counting.arm()
    cache = VersionCache(counting, tmp_path, tmp_path / "dags")
    await cache.prepare([*ids, 77])
    assert counting.n_calls == 1
    good = ids[:3] + ids[4:]
    found = [(await cache.get(version_id)).structure.dag.dag_id for version_id in good]
    assert found == ["dag0", "dag1", "dag2", "dag4"]
    assert counting.n_calls == 1, "they were known by then"
    with pytest.raises(SerializationError):
        await cache.get(ids[3])
    with pytest.raises(NotFound):
        await cache.get(77)


@pytest.mark.parametrize("left", [b"", b"x = ", b"\0\0\0\0\0", b"x = 2", None])
async def test_a_scheduler_writes_sources_again_that_a_power_cut_has_spoilt(database, tmp_path, left):
    version_id = await stored(database, dag_of(task("first")))
    source = tmp_path / f"{'0' * 64}.py"
    await VersionCache(database, tmp_path, tmp_path / "dags").get(version_id)
    assert source.read_text() == "x = 1"
    if left is None:
        source.unlink()
    else:
        source.write_bytes(left)
    await VersionCache(database, tmp_path, tmp_path / "dags").get(version_id)
    assert source.read_text() == "x = 1"
    assert source.stat().st_mode & 0o777 == 0o600


OWN = {"pool": "before", "pool_slots": 2, "queue": "slow", "executor": "other", "priority_weight": 40}
"""The route of a try that the run's version before gave it."""


def loaded(state, try_number=1, **fields):
    """Return a task instance as a run on another version loads it."""
    config = {"mem": "1G"}
    routes = (SerializedRoute(pool="first", executor_config=config), SerializedRoute(pool="again"))
    run = run_of([task("routed", pool="own", routes=routes)])
    row = TaskInstanceRow(
        dag_run_id=run.id, task_id="routed", state=state, try_number=try_number, token="token", **OWN, **fields
    )
    [found] = active_tasks(run, [row])
    return found


@pytest.mark.parametrize("state", sorted(COUNTED_TASK_STATES))
def test_a_loaded_try_holds_the_slots_of_its_row_whatever_its_version_says_now(state):
    route = loaded(state, 1 if state in ("queued", "running", "restarting") else 0).route
    assert asdict(route) == {**OWN, "executor_config": {"mem": "1G"}}, "which rows do not have"


@pytest.mark.parametrize(
    ("state", "try_number", "pool"),
    [(None, 0, "first"), (None, 1, "again"), ("scheduled", 0, "first"), ("up_for_reschedule", 0, "first")],
)
def test_a_loaded_task_instance_that_holds_no_slots_is_routed_by_its_version(state, try_number, pool):
    assert loaded(state, try_number).route.pool == pool


def test_a_loaded_deferred_try_goes_on_where_it_was_and_gives_its_slots_back_there():
    deferral = msgspec.json.encode(StoredDeferral(Deferral("module.Trigger", {}, "go_on"))).decode()
    found = loaded("deferred", 0, deferral=deferral)
    run, engine = found.run, evaluation(pools={"before": 2, "first": 1}, executors={"local": 9, "other": 1})
    run.state = run.stored_state = DagRunState.RUNNING
    engine.resume_run(run, [found], NOON)
    pools = engine.ready.pools
    assert (pools["before"].deferred, pools["before"].used) == (2, 0)
    engine.trigger_fired(TriggerOutcome("token", "event"), NOON)
    assert [one.route.pool for one in granted(engine)] == ["before"]
    assert {name: (pool.deferred, pool.used) for name, pool in pools.items()} == {"before": (0, 2), "first": (0, 0)}
