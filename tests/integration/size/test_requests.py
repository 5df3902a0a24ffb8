"""The load of a try's requests on the scheduler and the keeper: counted in requests, tasks and bytes."""

import anyio
import pytest

from asynsched.protocol.messages import Reply
from sandbox.supervision.tries import MAX_REQUESTS, MAX_UNREAD_BYTES
from tests.integration.tries.bench import Bench
from tests.support.waiting import eventually

FLOODS = """
import time
from pathlib import Path
from asynsched import DAG, get_current_context, task
from asynsched.authoring.supervisor import current_supervisor
from asynsched.protocol.messages import Request

def send(numbers, answered=None):
    link = current_supervisor()
    for n_sent, number in enumerate(numbers):
        while answered is not None and len(answered.read_bytes()) < n_sent:
            time.sleep(0.001)
        link.send(Request("", number, "variable_get", {"key": "x"}))
    time.sleep(600)

with DAG("d"):
    @task
    def repeats():
        send([7] * 1000)

    @task
    def counts_on():
        send(range(1000))

    @task
    def reads_nothing():
        send(range(1, 1000), answered=Path(get_current_context()["dag_run"].conf["answered"]))

    @task
    def asks():
        return current_supervisor().request("variable_get", key="x")

    repeats(); counts_on(); reads_nothing(); asks()
"""


@pytest.mark.parametrize(
    ("task_id", "n_asked", "reason"),
    [
        ("repeats", 1, "the task's process sent request 7 again before it was answered"),
        ("counts_on", MAX_REQUESTS, f"the task's process sent more than {MAX_REQUESTS} requests without waiting"),
    ],
)
async def test_a_try_that_sends_requests_without_waiting_is_ended_and_has_few_open(
    bench: Bench, task_id, n_asked, reason
):
    bench.answer_later["variable_get"] = lambda _: anyio.sleep_forever()
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(bench.code(FLOODS), task_id))
        n_tasks = len(executor._tasks)
    assert (ended.state, ended.cause) == ("failed", "task")
    assert ended.reason.startswith(reason)
    # Each is a task, and none may have run yet: the end may come in the same read as the requests.
    assert n_tasks == n_asked


async def test_a_try_that_reads_no_answer_is_ended_before_many_wait_for_it(bench: Bench):
    size, answered = 200_000, bench.home / "answered"
    answered.touch()

    def answer(request):
        answered.write_text("x" * len(bench.requests))
        return Reply(request.token, request.request_id, "x" * size)

    bench.answers["variable_get"] = answer
    async with bench.running() as executor:
        launch = bench.launch(bench.code(FLOODS), "reads_nothing", conf={"answered": str(answered)})
        ended = await bench.run(executor, launch)
    assert ended.reason.startswith("the task's process sent requests and left more than")
    assert MAX_UNREAD_BYTES // size <= len(bench.requests) <= MAX_UNREAD_BYTES // size + MAX_REQUESTS


async def test_a_request_is_answered_once_however_often_the_connection_is_lost(bench: Bench):
    """The keeper repeats open requests over each new connection."""
    may_answer = anyio.Event()

    async def answer(request):
        await may_answer.wait()
        return Reply(request.token, request.request_id, "green")

    bench.answer_later["variable_get"] = answer
    async with bench.running() as executor:
        launch = bench.launch(bench.code(FLOODS), "asks")
        await executor.launch([launch])
        await bench.until(lambda: bench.requests, "the request")
        for _ in range(5):
            lost = executor._connection
            lost.close()
            await eventually(lambda lost=lost: executor._connection is not lost, "another connection")
            await eventually(lambda: executor._connection._greeted.done(), "the keeper's requests")
        may_answer.set()
        ended = await bench.end_of(launch)
    assert (ended.state, bytes(ended.return_value)) == ("success", b'"green"')
    assert len(bench.requests) == 1
