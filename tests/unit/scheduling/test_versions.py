"""Loading DAG versions."""

import asyncio
import threading

import msgspec

from asynsched.scheduling import versions
from asynsched.scheduling.evaluation.structure import DagStructure, compile_structure
from asynsched.scheduling.versions import VersionCache
from asynsched.serialization.schema import SerializedDag
from asynsched.store.dag_versions import NewVersion, add_version
from asynsched.store.engines.direct_database import open_inline
from asynsched.store.sources import put_sources
from sandbox.protocol import SourceRef
from tests.support.runs import NOON, task


async def test_the_event_loop_goes_on_while_a_version_is_prepared(tmp_path, monkeypatch):
    loop = asyncio.get_running_loop()

    def compile_while_the_loop_turns(dag: SerializedDag) -> DagStructure:
        has_turned = threading.Event()
        loop.call_soon_threadsafe(has_turned.set)
        assert has_turned.wait(10)
        return compile_structure(dag)

    monkeypatch.setattr(versions, "compile_structure", compile_while_the_loop_turns)
    database = open_inline()
    dag = SerializedDag(dag_id="dag", timetable={"kind": "null"}, tasks=(task("first", "second"), task("second")))
    await database.write(put_sources, {"0" * 64: "x = 1"})
    version_id = await database.write(
        add_version,
        NewVersion("dag", "1" * 64, "dag.py", msgspec.json.encode(dag), (SourceRef("dag.py", "dag", "0" * 64),), NOON),
    )
    cache = VersionCache(database, tmp_path, tmp_path / "dags")
    loaded = await cache.get(version_id)
    assert loaded.structure.weights == {"first": 2, "second": 1}
    assert (tmp_path / f"{'0' * 64}.py").read_text() == "x = 1"
    assert await cache.get(version_id) is loaded
    await database.close()
