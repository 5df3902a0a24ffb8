"""Answers to the questions of tasks: accepted while the try that asked waits for one, or goes on to wait for one."""

from datetime import timedelta

import pytest

from asynsched import DAG, BashOperator
from asynsched.channels import RunEdited, TryReported
from asynsched.errors import AsynschedError
from asynsched.keys import DagRunKey
from asynsched.protocol.messages import AwaitedInput, Deferral, Ended
from asynsched.scheduling.requests.run_requests import submit_answer, submit_request
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.hitl import Question, put_question
from asynsched.store.runs.requests import ClearTasks, open_requests
from asynsched.store.runs.task_instances import load_task_instances
from tests.support.lone_evaluator import run_on, serving
from tests.support.runs import NOON
from tests.support.stored import store_dag

RUN = DagRunKey("d", "r")
ASKED = Question(
    subject="Now?", body=None, options=["yes", "no"], defaults=["no"], multiple=False, params={}, assigned_users=[]
)  # fmt: skip


class Asking:
    """A scheduler with a run whose task asks; the executor is the test."""

    def __init__(self, database, scheduler):
        self.database, self.scheduler = database, scheduler

    async def ask(self, token):
        run = await self.database.read(get_run, *RUN)
        await self.database.write(put_question, (run.id, "t", -1), token, ASKED, self.scheduler.clock.now())

    def wait(self, token):
        """End the process of the try that asked: an answer, or a minute without one, resumes its task."""
        awaited = AwaitedInput("Now?", ("no",))
        deferral = Deferral("asynsched.Trigger", {}, "go_on", timeout=60, input=awaited)
        ended = Ended(token, "deferred", self.scheduler.clock.now(), NOON, "waits", deferral=deferral)
        self.scheduler.channels.reports.put_nowait(TryReported(ended))

    async def answer(self):
        given = {"actor": "ann", "user": {"id": "ann", "name": "ann"}, "now": self.scheduler.clock.now()}
        return await self.database.write(submit_answer, RUN, "t", -1, lambda _: (["yes"], {}), **given)

    async def event(self):
        """Return what the task was resumed with."""
        run = await self.database.read(get_run, *RUN)
        [row] = await self.database.read(load_task_instances, run.id)
        return row.deferral or ""


@pytest.fixture
async def asking(database, tmp_path):
    with DAG("d") as dag:
        BashOperator(task_id="t", bash_command="true", retries=1, retry_delay=timedelta(seconds=1))
    await database.write(store_dag, dag)
    return Asking(database, await serving(database, tmp_path, "one"))


@pytest.mark.parametrize("comes_early", [True, False])
async def test_an_answer_to_a_try_that_has_asked_resumes_its_task(database, asking, comes_early):
    [token] = await run_on(asking.scheduler, database, "r")
    await asking.ask(token)
    if comes_early:
        await asking.answer()
        await asking.scheduler.tick(RunEdited(RUN))
        asking.wait(token)
    else:
        asking.wait(token)
        await asking.scheduler.tick()
        await asking.answer()
    assert await asking.scheduler.tick(RunEdited(RUN)), "it goes on"
    assert '"yes"' in await asking.event()
    assert await database.read(open_requests, asking.scheduler.epoch) == []


@pytest.mark.parametrize("how", ["resumed", "retried", "cleared", "being cleared"])
async def test_an_answer_to_a_question_of_an_earlier_process_is_refused(database, asking, how):
    scheduler = asking.scheduler
    [token] = await run_on(scheduler, database, "r")
    await asking.ask(token)
    if how == "resumed":
        asking.wait(token)
        await scheduler.tick()
        scheduler.clock.leap(61)
        assert await scheduler.tick(), "the time was over, and the task goes on with the default"
    elif how == "retried":
        scheduler.channels.reports.put_nowait(TryReported(Ended(token, "failed", NOON, NOON, "by chance")))
        await scheduler.tick()
        scheduler.clock.leap(2)
        assert await scheduler.tick(), "it has begun again, and not asked yet"
    else:
        await database.write(submit_request, RUN, ClearTasks(("t",)), actor="ann", now=NOON)
        await scheduler.tick(RunEdited(RUN))
        if how == "cleared":
            scheduler.end(token)
            assert await scheduler.tick(), "it has begun again, and not asked yet"
    with pytest.raises(AsynschedError, match="waits for no answer"):
        await asking.answer()
    assert await database.read(open_requests, asking.scheduler.epoch) == []


async def test_an_early_answer_is_dropped_once_its_try_has_failed(database, asking):
    scheduler = asking.scheduler
    [token] = await run_on(scheduler, database, "r")
    await asking.ask(token)
    await asking.answer()
    scheduler.channels.reports.put_nowait(TryReported(Ended(token, "failed", NOON, NOON, "by chance")))
    await scheduler.tick()
    scheduler.clock.leap(2)
    assert await scheduler.tick(), "it has begun again"
    await scheduler.sweep()
    assert await database.read(open_requests, scheduler.epoch) == []
