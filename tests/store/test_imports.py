"""A plan of values from Airflow is stored whole or not at all, and carried out again it changes nothing."""

import multiprocessing
import os
import pickle
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from asynsched.errors import AsynschedError
from asynsched.fernet_keys import keys_of
from asynsched.migrating.airflow_database import AirflowDag, AirflowPool, _conf, read_metadata
from asynsched.migrating.importing import carry_out, pools_plan
from asynsched.settings import Settings
from asynsched.store.engines.opening import open_direct
from tests.support.airflow_metadata import Metadata

POOLS = [AirflowPool(name, 3) for name in ("a", "b", "c")]


def import_and_die(url: str, home: str) -> None:
    plan = pools_plan(POOLS)

    def write(conn, name, pool):
        if name == "c":
            os.kill(os.getpid(), signal.SIGKILL)
        plan.write(conn, name, pool)

    with open_direct(url, keys=keys_of(Settings(home=home))) as database:
        database.write(carry_out, plan._replace(write=write), replace=False)


def test_a_killed_import_stores_nothing_and_the_next_one_all(new_url, tmp_path):
    url, plan = new_url(), pools_plan(POOLS)
    with open_direct(url) as database:
        victim = multiprocessing.get_context("spawn").Process(target=import_and_die, args=(url, str(tmp_path)))
        victim.start()
        victim.join()
        assert victim.exitcode == -signal.SIGKILL
        assert set(database.read(plan.read)) == {"default_pool"}
        assert [item.verdict for item in database.write(carry_out, plan, replace=False)] == ["new"] * 3
        assert [item.verdict for item in database.write(carry_out, plan, replace=True)] == ["same"] * 3


def test_the_conf_of_a_run_of_airflow_2_is_read_without_running_anything(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (Path(tmp_path / "done").touch, ())

    assert _conf(pickle.dumps({"a": [1, "b", None]})) == {"a": [1, "b", None]}
    assert _conf(pickle.dumps({"a": Hostile()})) == _conf(b"\x80broken") == _conf(None) == {}
    assert not Path(tmp_path / "done").exists()


@pytest.mark.parametrize("generation", [2, 3])
def test_airflow_2_and_3_are_read_alike_from_both_kinds_of_databases(new_url, generation):
    metadata = Metadata(new_url(), generation)
    metadata.add("variable", key="plain", val="1", is_encrypted=False)
    metadata.add("connection", conn_id="web", conn_type="http", port=80, is_encrypted=False, is_extra_encrypted=False)
    metadata.add("slot_pool", pool="small", slots=-1, description="", include_deferred=True)
    metadata.add_dag("a", "sub/a.py", is_paused=True)
    metadata.add_run("a", "one", "2025-01-01T00:00:00", run_type="scheduled", end="2025-01-02T00:00:00")
    metadata.add_run("a", "two", "2025-03-01T12:30:00", run_type="manual", state="failed")
    metadata.add_run("a", "three", "2025-03-02T00:00:00", run_type="manual", state="queued", conf={"n": [1, None]})
    metadata.add_run("a", "four", "2025-03-03T00:00:00", run_type="manual", state="running")
    before = metadata.contents()

    found = read_metadata(metadata.url, n_runs=3)

    assert (found.generation, found.running) == (generation, [("a", "four")])
    assert [(one.key, one.value.text, one.value.is_encrypted) for one in found.variables] == [("plain", "1", False)]
    assert [(one.conn_id, one.parts["port"], one.password) for one in found.connections] == [("web", 80, None)]
    assert found.pools == [AirflowPool("small", -1, "", include_deferred=True)]
    assert found.dags == [AirflowDag("a", "sub/a.py" if generation == 3 else "/airflow/dags/sub/a.py", is_paused=True)]
    one, two, three = (imported.run for imported in found.runs)
    start = datetime(2025, 1, 1, tzinfo=UTC)
    assert (one.logical_date, one.data_interval_end, one.run_after) == (start, *[start + timedelta(days=1)] * 2)
    assert (one.state, two.state, three.state, three.conf) == ("success", "failed", "queued", {"n": [1, None]})
    assert two.ended_at == datetime(2025, 3, 1, 12, 30, tzinfo=UTC)
    assert [[task.task_id for task in imported.tasks] for imported in found.runs] == [["work"], ["work"], []]
    assert metadata.contents() == before


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2", "2.6", "2.7"])
def test_the_tables_of_older_airflows_2_are_read_as_well(new_url, version):
    metadata = Metadata(new_url(), 2, version)
    metadata.add("variable", key="plain", val="1", description="of 2.1", is_encrypted=False)
    metadata.add("slot_pool", pool="small", slots=3, description="", include_deferred=True)
    metadata.add("connection", conn_id="web", conn_type="http", is_encrypted=False, is_extra_encrypted=False)
    metadata.add_dag("a", "a.py")
    metadata.add_dag("b", "b.py")
    metadata.add_run("a", "one", "2021-01-01T00:00:00", run_type="scheduled", end="2021-01-02T00:00:00")
    metadata.add_run("a", "two", "2021-01-02T00:00:00", run_type="manual", state="failed", conf={"n": 1})
    metadata.add_run("b", "one", "2021-01-01T00:00:00", run_type="manual", state="running")

    found = read_metadata(metadata.url, n_runs=5)

    assert found.generation == 2
    assert [one.description for one in found.variables] == ["" if version == "2.0" else "of 2.1"]
    assert found.pools == [AirflowPool("small", 3, "", include_deferred=version == "2.7")]
    assert [one.conn_id for one in found.connections] == ["web"]
    assert [(one.run.run_id, one.run.state, one.run.conf) for one in found.runs] == [
        ("one", "success", {}), ("two", "failed", {"n": 1}),
    ]  # fmt: skip
    tasks = [[(task.task_id, task.map_index, task.state) for task in one.tasks] for one in found.runs]
    assert tasks == [[("work", -1, "success")], [("work", -1, "failed")]]
    assert found.running == [("b", "one")]
    day = datetime(2021, 1, 1, tzinfo=UTC)
    assert found.runs[0].run.data_interval_start == day
    # Before Airflow 2.2 a run did not know the end of its interval; the schedule goes on after its date.
    assert found.runs[0].run.data_interval_end == day + timedelta(days=version >= "2.2")


def test_the_database_of_an_airflow_1_is_refused_with_its_version(new_url):
    metadata = Metadata(new_url(), 2, "1.10")
    with pytest.raises(AsynschedError, match=r"of Airflow 1 \(migration \w+\)"):
        read_metadata(metadata.url)
