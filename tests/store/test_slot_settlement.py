"""Slots that schedulers share: one that settles alone counts once, and again as soon as another one has settled."""

from collections.abc import Sequence

import pytest
import sqlalchemy as sa

from asynsched.states import DagRunState
from asynsched.store.runs.dag_runs import get_run, insert_run
from asynsched.store.runs.pools import UNLIMITED, OwnUse, SlotGrant, set_pool, settle_slots
from asynsched.store.runs.task_instances import load_task_instances
from asynsched.store.runs.transitions import Batch, RunWrite, Stale, apply, apply_at_once
from asynsched.store.schema import dag_run, task_instance
from tests.store.test_runs import NOW, new_run, task

ONE, OTHER = 7, 8
"""Lease epochs."""


class Slots:
    """A pool of three slots, and two schedulers' shares of it."""

    def __init__(self, database, run_row_id: int) -> None:
        self._database = database
        self._run = run_row_id
        self._taken = {ONE: 0, OTHER: 0}

    async def take(self, epoch: int, counted: dict[str, int] | None) -> tuple[bool, int, int]:
        """Queue a task instance if allowed; return whether it was, the others' slots, and the number of statements."""
        settled, n_statements = await self._database.write(self._settle, epoch, counted)
        self._taken[epoch] += not settled.refused
        return not settled.refused, settled.pools["narrow"], n_statements

    def _settle(self, conn: sa.Connection, epoch: int, counted: dict[str, int] | None):
        statements: list[str] = []

        def note(_conn, _cursor, statement, *_):
            statements.append(statement)

        name = f"t{sum(self._taken.values())}"
        own = OwnUse({"narrow": self._taken[epoch]})
        sa.event.listen(conn, "before_cursor_execute", note)
        settled = settle_slots(conn, [SlotGrant((self._run, name, -1), "narrow")], own, epoch, counted)
        sa.event.remove(conn, "before_cursor_execute", note)
        if not settled.refused:
            row = {"dag_run_id": self._run, "task_id": name, "state": "queued", "pool": "narrow", "lease_epoch": epoch}
            conn.execute(sa.insert(task_instance), row)
        return settled, len(statements)


async def test_a_lone_scheduler_counts_slots_once_until_another_one_comes(database):
    await database.write(set_pool, "narrow", 3)
    slots = Slots(database, await database.write(insert_run, new_run()))
    nothing = {"narrow": 0}
    assert await slots.take(ONE, nothing) == (True, 0, 3), "the row is locked and signed, the others' slots are counted"
    assert await slots.take(ONE, nothing) == (True, 0, 1), "the row is locked"
    assert await slots.take(OTHER, None) == (True, 2, 3), "the signature is taken away"
    assert await slots.take(ONE, nothing) == (False, 1, 3), "its knowledge is outdated"
    assert await slots.take(OTHER, None) == (False, 2, 3)
    assert await slots.take(OTHER, None) == (False, 2, 2), "who is not alone signs nothing"


async def test_slots_are_counted_again_after_doubt_or_an_edit_of_the_pool(database):
    await database.write(set_pool, "narrow", 3)
    slots = Slots(database, await database.write(insert_run, new_run()))
    await slots.take(OTHER, None)
    assert await slots.take(ONE, {}) == (True, 1, 3)
    assert await slots.take(ONE, {}) == (True, 1, 2)
    await database.write(set_pool, "narrow", 4)
    assert await slots.take(ONE, {"narrow": 0}) == (True, 1, 3)
    assert await slots.take(ONE, {"narrow": 1}) == (False, 1, 1)


async def test_a_settlement_tells_of_pools_that_have_changed(database):
    await database.write(set_pool, "narrow", 3)
    await database.write(set_pool, "wide", UNLIMITED)
    grants = [SlotGrant((1, name, -1), name) for name in ("narrow", "wide", "gone")]
    settled = await database.write(settle_slots, grants, OwnUse({"narrow": 2}), ONE)
    assert settled.refused == {(1, "gone", -1)}
    assert settled.capacities == {"narrow": 3, "wide": UNLIMITED, "gone": 0}


async def test_instances_are_written_at_once_only_while_signed_pools_have_room(database):
    """A batch that is not written so is written by `apply`, once the slots are settled."""
    await database.write(set_pool, "narrow", 3)
    run = await database.write(insert_run, new_run())
    slots = Slots(database, run)
    await slots.take(OTHER, None)
    await slots.take(ONE, {})
    await slots.take(OTHER, None)

    async def at_once(before: str, state: str, epoch: int = ONE, runs: Sequence[RunWrite] = (), **needed: int) -> bool:
        row = task(run, "t1", state, before_state=before, pool="narrow")
        batch = Batch(lease_epoch=epoch, tasks=[row], runs=list(runs))
        is_written = await database.write_at_once(apply_at_once, batch, needed)
        stored = {row.task_id: row.state for row in await database.read(load_task_instances, run)}
        assert stored["t1"] == (state if is_written else before)
        return is_written

    assert not await at_once("queued", "running", narrow=3), "another scheduler has settled since"
    await slots.take(ONE, {"narrow": 1})
    assert not await at_once("queued", "running", narrow=4)
    assert not await at_once("queued", "running", epoch=OTHER, narrow=3)
    assert not await at_once("queued", "running", narrow=3, missing=1)
    end = RunWrite(run, "queued", 0, "success", "", NOW, NOW, None, "me", ONE, NOW)
    assert not await at_once("queued", "running", narrow=4, runs=[end])
    assert (await database.read(get_run, "d", "r1")).state == "queued", "with its tasks, a run is left as it is"
    assert await at_once("queued", "running", narrow=3)
    assert not await at_once("running", "success", epoch=OTHER), "the task instance is another scheduler's"
    assert await at_once("running", "success"), "which takes slots of no pool"


@pytest.mark.parametrize(
    ("meanwhile", "written", "stale"),
    [
        ("SELECT 1", {"a", "b"}, ((), ())),
        ("UPDATE task_instance SET state = 'failed' WHERE task_id = 'b'", {"a"}, ((1,), ("b",))),
        ("UPDATE dag_run SET lease_epoch = 8", {"a", "b"}, ((1,), ())),
        ("UPDATE dag_run SET state = 'failed'", {"a", "b"}, ((1,), ())),
    ],
    ids=["as-known", "task-changed", "run-taken-over", "run-ended"],
)
async def test_a_run_ends_with_its_last_tasks_only_if_all_are_as_expected(database, meanwhile, written, stale):
    run = await database.write(insert_run, new_run(state=DagRunState.RUNNING))
    await database.write(lambda conn: conn.execute(sa.update(dag_run).values(lease_epoch=ONE)))
    await database.write(apply, Batch(ONE, new_tasks=[task(run, name, "running") for name in "ab"]))
    await database.write(lambda conn: conn.execute(sa.text(meanwhile)))
    before = await database.read(get_run, "d", "r1")
    batch = Batch(
        ONE, tasks=[task(run, name, "success", before_state="running") for name in "ab"],
        runs=[RunWrite(run, "running", ONE, "success", "", NOW, NOW, None, "me", ONE, NOW)],
    )  # fmt: skip
    is_written = await database.write_at_once(apply_at_once, batch, {})
    assert is_written == (database.is_shared and meanwhile == "SELECT 1")
    stored = await database.read(get_run, "d", "r1")
    assert stored.state == "success" if is_written else stored == before
    left = await database.write(apply, batch)
    assert left == Stale(frozenset(stale[0]), frozenset((run, name, -1) for name in stale[1]))
    states = {row.task_id: row.state for row in await database.read(load_task_instances, run)}
    assert {name for name, state in states.items() if state == "success"} == written


async def test_a_batch_written_in_part_leaves_only_stale_rows(database):
    run = await database.write(insert_run, new_run())
    await database.write(lambda conn: conn.execute(sa.update(dag_run).values(lease_epoch=ONE)))
    await database.write(apply, Batch(ONE, new_tasks=[task(run, "t0", "running"), task(run, "t1", "success")]))
    batch = Batch(ONE, tasks=[task(run, name, "failed", before_state="running") for name in ("t0", "t1")])
    assert not await database.write_at_once(apply_at_once, batch, {})
    stored = {row.task_id: row.state for row in await database.read(load_task_instances, run)}
    assert stored == {"t0": "failed", "t1": "success"}
    assert await database.write(apply, batch) == Stale(frozenset(), frozenset({(run, "t1", -1)}))
