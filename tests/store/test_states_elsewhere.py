"""Tasks' questions about runs of any DAG."""

import msgspec
import pytest

from asynsched import DAG, EmptyOperator, TaskGroup
from asynsched.errors import NotFound
from asynsched.serialization.encode import serialize_dag
from asynsched.store.dags.dags import add_versions
from asynsched.store.runs import states_elsewhere
from asynsched.store.runs.dag_runs import insert_run
from asynsched.store.runs.states_elsewhere import (
    RunFilter,
    TaskFilter,
    count_runs,
    count_task_instances,
    previous_task_instance,
    states_by_run,
)
from asynsched.store.schema import DagVersionRow, task_instance
from tests.store.test_runs import DAY, NOW, new_run, task

INSTANCES = {
    "r1": {("a", -1): "success", ("out.in.b", 0): "failed", ("out.in.b", 1): None},
    "r2": {("a", -1): "failed", ("out.c", -1): "success"},
    "r3": {("a", -1): "running"},
}


def fill(conn):
    """Store three runs, a day apart, of a DAG with nested groups."""
    with DAG("d") as dag:
        EmptyOperator(task_id="a")
        with TaskGroup("out"):
            EmptyOperator(task_id="c")
            with TaskGroup("in"):
                EmptyOperator(task_id="b")
    serialized = msgspec.json.encode(serialize_dag(dag))
    add_versions(conn, [DagVersionRow("d", 1, "1", "d.py", serialized, (), NOW)])
    for number, (run_id, instances) in enumerate(INSTANCES.items()):
        run = insert_run(conn, new_run(run_id, logical_date=NOW + number * DAY))
        for (task_id, map_index), state in instances.items():
            row = msgspec.structs.asdict(task(run, task_id, state, map_index=map_index, started_at=NOW))
            values = {name: value for name, value in row.items() if name in task_instance.c and value is not None}
            conn.execute(task_instance.insert(), values)
    insert_run(conn, new_run("other", dag_id="e"))


@pytest.mark.parametrize(
    ("wanted", "n"),
    [
        ({}, 6),
        ({"task_ids": ["a"]}, 3),
        ({"task_ids": []}, 6),
        ({"run_ids": ["r1"], "states": ["failed", "null"]}, 2),
        ({"states": ["success"]}, 2),
        ({"map_index": 1}, 1),
        ({"logical_dates": [NOW, NOW + DAY], "task_ids": ["a"]}, 2),
        ({"task_group_id": "out"}, 3),
        ({"task_group_id": "out.in"}, 2),
        ({"task_group_id": "out", "states": ["success"]}, 1),
    ],
)
async def test_task_instances_are_counted_as_they_are_asked_for(database, wanted, n):
    await database.write(fill)
    assert await database.read(count_task_instances, TaskFilter("d", **wanted)) == n


async def test_states_come_in_parts_that_follow_each_other(database, monkeypatch):
    await database.write(fill)
    monkeypatch.setattr(states_elsewhere, "MANY_ROWS", 2)
    parts, place = [], None
    while not parts or place is not None:
        part, place = await database.read(states_by_run, TaskFilter("d"), place)
        parts.append(part)
    assert parts == [
        {"r1": {"a": "success", "out.in.b_0": "failed"}},
        {"r1": {"out.in.b_1": None}, "r2": {"a": "failed"}},
        {"r2": {"out.c": "success"}, "r3": {"a": "running"}},
        {},
    ]


async def test_runs_are_counted_states_are_by_run_and_the_one_before_is_found(database):
    await database.write(fill)
    for wanted, n in (({}, 3), ({"run_ids": ["r1", "none"]}, 1), ({"states": ["queued"]}, 3), ({"states": ["x"]}, 0)):
        assert await database.read(count_runs, RunFilter("d", **wanted)) == n
    assert await database.read(count_runs, RunFilter("d", logical_dates=[NOW + 2 * DAY])) == 1
    states = await database.read(states_by_run, TaskFilter("d", run_ids=["r1", "r2"]))
    assert states == (
        {
            "r1": {"a": "success", "out.in.b_0": "failed", "out.in.b_1": None},
            "r2": {"a": "failed", "out.c": "success"},
        },
        None,
    )
    found = await database.read(previous_task_instance, "d", "a", before=NOW + 2 * DAY)
    assert (found.run_id, found.state, found.logical_date, found.started_at) == ("r2", "failed", NOW + DAY, NOW)
    found = await database.read(previous_task_instance, "d", "a", before=NOW + 2 * DAY, state="success")
    assert found.run_id == "r1"
    assert await database.read(previous_task_instance, "d", "a", before=NOW) is None
    assert (await database.read(previous_task_instance, "d", "out.in.b", before=NOW + DAY, map_index=1)).state is None
    with pytest.raises(NotFound, match="task group"):
        await database.read(count_task_instances, TaskFilter("d", task_group_id="in"))
