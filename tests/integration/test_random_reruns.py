"""Users clear and mark any tasks at any time on random DAGs; in the end every state is correct."""

import asyncio
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from asynsched import DAG, BashOperator
from asynsched.channels import RunCreated, RunEdited
from asynsched.errors import AsynschedError
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.requests.run_requests import submit_request
from asynsched.serialization.encode import serialize_dag
from asynsched.simulation.script import Outcome
from asynsched.states import FINISHED_TASK_STATES
from asynsched.store.runs.requests import ClearTasks, MarkRun, MarkTasks
from asynsched.store.runs.task_instances import list_tries, load_task_instances
from tests.support.naive_evaluator import NaiveEvaluator
from tests.support.simulated import Simulated

START = datetime(2026, 1, 1, tzinfo=UTC)
RULES = [
    "all_success", "all_failed", "all_done", "all_done_min_one_success", "all_skipped", "one_success", "one_failed",
    "one_done", "none_failed", "none_failed_min_one_success", "none_skipped", "always",
]  # fmt: skip
MINUTES = st.integers(0, 40)


@st.composite
def dags(draw) -> DAG:
    n = draw(st.integers(1, 6))
    with DAG("dag") as dag:
        tasks = [
            BashOperator(
                task_id=f"t{number}",
                bash_command="true",
                trigger_rule=draw(st.sampled_from(RULES)),
                retries=draw(st.integers(0, 1)),
                retry_delay=timedelta(minutes=draw(st.integers(1, 5))),
            )
            for number in range(n)
        ]
        for number in range(n - 1):
            later = draw(st.lists(st.integers(number + 1, n - 1), unique=True))
            if later:
                tasks[number] >> [tasks[target] for target in later]
    return dag


@st.composite
def cases(draw):
    dag = draw(dags())
    names = st.sampled_from(sorted(dag.task_ids))
    clears = st.builds(
        ClearTasks, st.lists(names, max_size=2).map(tuple), upstream=st.booleans(), downstream=st.just(True)
    )
    marks = st.builds(MarkTasks, st.tuples(names), st.sampled_from(["success", "failed", "skipped"]))
    run_marks = st.builds(MarkRun, st.just("success"))
    actions = draw(st.lists(st.tuples(MINUTES, clears | marks | run_marks), min_size=1, max_size=6))
    outcomes = draw(
        st.dictionaries(
            st.tuples(names, st.integers(1, 3)),
            st.builds(
                Outcome, st.sampled_from(["failed", "skipped", "success"]), st.builds(timedelta, minutes=MINUTES)
            ),
        )
    )
    return dag, actions, outcomes


class Scene(Simulated):
    """One run, and people who do things to it."""

    def __init__(self, home: Path, dag: DAG, actions, outcomes) -> None:
        ten_minutes = Outcome(duration=timedelta(minutes=10))
        super().__init__(
            home, [dag], lambda launch: outcomes.get((launch.task_id, launch.try_number), ten_minutes), START
        )
        # Nothing is found by a sweep: it would only take time.
        self.settings = msgspec.structs.replace(self.settings, sweep_interval=86_400.0)
        self.act = self.people
        self.actions = actions

    async def people(self, channels) -> None:
        self.key = await self.database.write(create_manual_run, "dag", Trigger(run_id="r"), now=START)
        await channels.runs.put(RunCreated(self.key))
        await self.clock.sleep(timedelta(seconds=1))
        for minutes, request in self.actions:
            await self.clock.sleep(timedelta(minutes=minutes))
            await self.request(request, channels)
            if isinstance(request, MarkTasks):
                # The consequences of the old state must be replaced by those of the new one.
                below = tuple(sorted(self.below(request.task_ids[0])))
                if below:
                    await self.request(ClearTasks(below), channels)

    async def request(self, request, channels) -> None:
        try:
            await self.database.write(submit_request, self.key, request, actor="somebody", now=self.clock.now())
        except AsynschedError as exc:
            raise AssertionError(f"refused: {exc}") from exc
        await channels.runs.put(RunEdited(self.key))

    def below(self, task_id: str) -> set[str]:
        direct = {task.task_id: task.downstream_task_ids for task in self.tasks}
        found = set(direct[task_id])
        return found.union(*(self.below(other) for other in found))

    @property
    def tasks(self):
        [report] = self.reports
        return report.dags[0].dag.tasks


@settings(max_examples=25)
@given(cases())
def test_a_run_ends_as_its_rules_say_after_any_clears_and_marks(case):
    dag, actions, outcomes = case
    with tempfile.TemporaryDirectory() as home:
        scene = Scene(Path(home), dag, actions, outcomes)
        scene.run_for(timedelta(hours=20))
        [run] = asyncio.run(scene.runs("dag"))
        rows = asyncio.run(scene.database.read(load_task_instances, run.id))
        tries = asyncio.run(scene.database.read(list_tries, run.id))
    assert run.state in ("success", "failed")
    naive = NaiveEvaluator(serialize_dag(dag))
    ran = {
        (row.task_id, row.map_index): (row.state, row.result_length)
        for row in rows
        if row.token is not None or "marked" in row.reason
    }
    naive.take_up(ran)
    assert {(row.task_id, row.map_index): row.state for row in rows} == naive.finished()
    assert all(row.state in FINISHED_TASK_STATES for row in rows)
    # Each try that was launched is to be seen, the last in its row, every other in the history.
    launched = [(launch.task_id, launch.try_number) for launch in scene.executor.launched]
    assert len(set(launched)) == len(launched)
    kept = [(one.task_id, one.try_number) for one in tries]
    assert len(set(kept)) == len(kept)
    assert {*kept, *((row.task_id, row.try_number) for row in rows if row.token is not None)} == set(launched)
    assert not scene.executor.running
