"""Users' edits of runs, in virtual time: they take effect at once, also on waiting runs and on later ones."""

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from asynsched import DAG, BashOperator, task_group
from asynsched.channels import RunCreated, RunEdited
from asynsched.errors import AsynschedError
from asynsched.keys import DagRunKey
from asynsched.protocol.messages import BranchDecision
from asynsched.queries.runs import list_callbacks
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.requests.run_requests import submit_request
from asynsched.simulation.script import Outcome
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.requests import CancelRun, ClearTasks, ForceTask, MarkRun, MarkTasks
from asynsched.store.runs.task_instances import load_task_instances
from tests.support.simulated import Simulated

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Scene(Simulated):
    """Runs of one DAG, and a user who edits them; no sweep finds changes without a message."""

    def __init__(self, home, dag, script=lambda launch: Outcome(duration=HOUR)):
        super().__init__(home, [dag], script, START)
        self.settings = msgspec.structs.replace(self.settings, sweep_interval=86_400.0)

    async def play(self, act):
        async def acting(channels):
            self.channels = channels
            await act()

        self.act = acting
        await asyncio.to_thread(self.run_for, timedelta(hours=20))

    async def play_one(self, request, *, after) -> DagRunKey:
        """Trigger a run, and submit a request about it after a while."""
        keys = []

        async def act():
            keys.append(await self.trigger("r"))
            await self.clock.sleep(after)
            await self.submit(keys[0], request)

        await self.play(act)
        return keys[0]

    async def trigger(self, run_id, **options) -> DagRunKey:
        key = await self.database.write(
            create_manual_run, "dag", Trigger(run_id=run_id, **options), now=self.clock.now()
        )
        await self.channels.runs.put(RunCreated(key))
        await self.clock.sleep(timedelta(seconds=1))
        return key

    async def submit(self, key, request):
        await self.database.write(submit_request, key, request, actor="somebody", now=self.clock.now())
        await self.channels.runs.put(RunEdited(key))
        await self.clock.sleep(timedelta(seconds=1))

    async def run(self, key):
        return await self.database.read(get_run, *key)

    async def states(self, key):
        rows = await self.database.read(load_task_instances, (await self.run(key)).id)
        return {row.task_id: row.state for row in rows}

    def launched(self, task_id):
        return [launch for launch in self.executor.launched if launch.task_id == task_id]


def operator(task_id, **options):
    return BashOperator(task_id=task_id, bash_command="true", **options)


async def test_a_cancelled_queued_run_never_starts_and_frees_its_place(tmp_path):
    with DAG("dag", max_active_runs=1) as dag:
        operator("a")
    scene = Scene(tmp_path, dag)
    keys = []

    async def act():
        keys.extend([await scene.trigger(name) for name in ("first", "second", "third")])
        await scene.submit(keys[1], CancelRun())

    await scene.play(act)
    runs = [await scene.run(key) for key in keys]
    assert [run.state for run in runs] == ["success", "failed", "success"]
    assert runs[1].reason == "somebody cancelled the run"
    assert [launch.run.run_id for launch in scene.executor.launched] == ["first", "third"]
    assert runs[2].started_at - runs[0].ended_at < timedelta(minutes=1)


async def test_marking_a_task_of_an_ended_run_lets_the_next_run_go_on_at_once(tmp_path):
    with DAG("dag") as dag:
        operator("a", depends_on_past=True)
    scene = Scene(tmp_path, dag, lambda launch: Outcome("failed" if launch.run.run_id == "first" else "success"))
    keys = []

    async def act():
        keys.append(await scene.trigger("first"))
        await scene.clock.sleep(HOUR)
        keys.append(await scene.trigger("second"))
        await scene.clock.sleep(HOUR)
        assert (await scene.states(keys[1])) == {"a": None}
        await scene.submit(keys[0], MarkTasks(("a",), "success"))

    await scene.play(act)
    second = await scene.run(keys[1])
    assert second.state == "success"
    assert second.ended_at - START < 3 * HOUR


@pytest.mark.parametrize(("cleared", "after"), [("left", "skipped"), ("branch", "success")])
async def test_skipped_tasks_stay_skipped_until_their_branch_itself_is_cleared(tmp_path, cleared, after):
    from asynsched import BranchPythonOperator

    with DAG("dag") as dag:
        branch = BranchPythonOperator(task_id="branch", python_callable=str)
        branch >> [operator("left"), operator("right")]

    def script(launch):
        follow = "right" if launch.try_number == 1 else "left"
        return Outcome(decision=BranchDecision((follow,)) if launch.task_id == "branch" else None)

    scene = Scene(tmp_path, dag, script)
    keys = []

    async def act():
        keys.append(await scene.trigger("r"))
        await scene.clock.sleep(HOUR)
        assert await scene.states(keys[0]) == {"branch": "success", "left": "skipped", "right": "success"}
        await scene.submit(keys[0], ClearTasks((cleared,), downstream=True))

    await scene.play(act)
    assert (await scene.states(keys[0]))["left"] == after
    assert (await scene.run(keys[0])).state == "success"


async def test_a_run_that_is_marked_as_failed_is_killed_but_torn_down(tmp_path):
    with DAG("dag") as dag:
        setup, teardown = operator("su").as_setup(), operator("td")
        setup >> operator("work", retries=3) >> operator("more") >> teardown.as_teardown(setups=setup)
    scene = Scene(tmp_path, dag)
    key = await scene.play_one(MarkRun("failed"), after=1.5 * HOUR)
    assert await scene.states(key) == {"su": "success", "work": "failed", "more": "skipped", "td": "success"}
    run = await scene.run(key)
    assert (run.state, run.reason) == ("failed", "somebody marked the run as failed")
    assert run.ended_at - START < 3 * HOUR


async def test_a_failed_run_that_is_marked_as_successful_keeps_the_record_of_what_failed(tmp_path):
    with DAG("dag") as dag:
        operator("fails") >> operator("after")
        operator("works")
    scene = Scene(tmp_path, dag, lambda launch: Outcome("failed" if launch.task_id == "fails" else "success"))
    key = await scene.play_one(MarkRun("success"), after=HOUR)
    assert (await scene.run(key)).state == "success"
    assert await scene.states(key) == {"fails": "failed", "after": "upstream_failed", "works": "success"}


async def test_a_running_run_marked_as_successful_skips_tasks_that_have_not_begun(tmp_path):
    with DAG("dag", on_success_callback=print, on_failure_callback=print) as dag:
        operator("first") >> operator("second") >> operator("third")
    scene = Scene(tmp_path, dag)
    key = await scene.play_one(MarkRun("success"), after=1.5 * HOUR)
    assert (await scene.run(key)).state == "success"
    assert await scene.states(key) == {"first": "success", "second": "success", "third": "skipped"}
    assert not (await scene.database.read(list_callbacks, key)).items


@pytest.mark.parametrize("end", ["success", "failed"])
async def test_a_retry_waits_for_an_upstream_task_that_was_cleared_meanwhile(tmp_path, end):
    with DAG("dag") as dag:
        operator("up") >> operator("down", retries=1, retry_delay=HOUR)

    def script(launch):
        is_again = launch.task_id == "up" and launch.try_number > 1
        fails = (launch.task_id, launch.try_number) == ("down", 1)
        return Outcome(end if is_again else "failed" if fails else "success", 3 * HOUR if is_again else HOUR / 2)

    scene = Scene(tmp_path, dag, script)
    keys = []

    async def act():
        keys.append(await scene.trigger("r"))
        await scene.clock.sleep(1.5 * HOUR)
        assert (await scene.states(keys[0]))["down"] == "up_for_retry"
        await scene.submit(keys[0], ClearTasks(("up",)))
        await scene.clock.sleep(2 * HOUR)
        assert (await scene.states(keys[0]))["up"] == "running"
        assert len(scene.launched("down")) == 1, "its retry is due, and its upstream runs"

    await scene.play(act)
    assert len(scene.launched("down")) == (2 if end == "success" else 1)
    assert (await scene.states(keys[0]))["down"] == ("success" if end == "success" else "upstream_failed")


async def test_one_instance_of_a_mapped_group_is_cleared_with_its_own_later_tasks_only(tmp_path):
    with DAG("dag") as dag:

        @task_group
        def group(x):
            operator("a", env={"x": x}) >> operator("b")

        group.expand(x=["1", "2", "3"]) >> operator("after")
    scene = Scene(tmp_path, dag, lambda launch: Outcome())
    await scene.play_one(ClearTasks(("group.a",), map_index=1, downstream=True), after=HOUR)
    launched = [(launch.task_id, launch.map_index) for launch in scene.executor.launched if launch.try_number == 2]
    assert sorted(launched) == [("after", -1), ("group.a", 1), ("group.b", 1)]


async def test_a_run_that_failed_fast_forgets_that_when_it_is_cleared(tmp_path):
    with DAG("dag", fail_fast=True) as dag:
        operator("fails")
        operator("tries", retries=1, retry_delay=timedelta())

    def script(launch):
        fails_now = {("fails", 1), ("tries", 2)}
        return Outcome("failed" if (launch.task_id, launch.try_number) in fails_now else "success", HOUR / 2)

    scene = Scene(tmp_path, dag, script)

    async def act():
        key = await scene.trigger("r")
        await scene.clock.sleep(HOUR)
        assert (await scene.run(key)).state == "failed"
        await scene.submit(key, ClearTasks())
        await scene.clock.sleep(HOUR * 2)
        assert (await scene.run(key)).state == "success"
        assert [launch.try_number for launch in scene.launched("tries")] == [1, 2, 3]

    await scene.play(act)


async def test_an_instance_that_a_run_does_not_have_is_refused_in_one_message(tmp_path):
    with DAG("dag") as dag:
        BashOperator.partial(task_id="mapped").expand(bash_command=["true"] * 3)
        operator("plain")
    scene = Scene(tmp_path, dag)
    refused = {}

    async def act():
        key = await scene.trigger("r")
        await scene.clock.sleep(2 * HOUR)
        for request in (
            ClearTasks(("mapped",), map_index=3), MarkTasks(("mapped",), "failed", map_index=7),
            ClearTasks(("plain",), map_index=0), ClearTasks((), map_index=1),
            ClearTasks(("mapped", "plain"), map_index=1),
            ForceTask("mapped", -1), ForceTask("mapped", 9),
        ):  # fmt: skip
            try:
                await scene.submit(key, request)
            except AsynschedError as exc:
                refused[request] = str(exc)
        await scene.submit(key, ClearTasks(("mapped",), map_index=2))

    await scene.play(act)
    assert list(refused.values()) == [
        "The task 'mapped' is mapped, but has no instance 3: say which by its map index, 0 to 2.",
        "The task 'mapped' is mapped, but has no instance 7: say which by its map index, 0 to 2.",
        "The task 'plain' has no instance 0, it has one only: leave the map index out.",
        "The map index 1 needs a task: name one.",
        "The task 'plain' has no instance 1, it has one only: leave the map index out.",
        "The task 'mapped' is mapped: say which by its map index, 0 to 2.",
        "The task 'mapped' is mapped, but has no instance 9: say which by its map index, 0 to 2.",
    ]
    assert [launch.map_index for launch in scene.launched("mapped")] == [0, 1, 2, 2]
