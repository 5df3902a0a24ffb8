"""The outcomes of tries."""

from datetime import UTC, datetime, timedelta

import pytest

from asynsched.protocol.messages import BranchDecision, ShortCircuitDecision
from tests.integration.tries.bench import Bench, value
from tests.integration.tries.outcome_dag import DAG_FILE


@pytest.fixture
def code(bench: Bench):
    return bench.code(DAG_FILE)


LINE_THAT_RAISES = DAG_FILE[: DAG_FILE.index("raise ValueError")].count("\n") + 1
OUTCOMES = {
    "silent": ("success", ""),
    "skips": ("skipped", "not today"),
    "raises": ("failed", "ValueError: no luck"),
    "mutely_raises": ("failed", "Mute"),
    "loop_raises": ("failed", "ValueError: within a loop"),
    "bash_fails": ("failed", "exit code 3"),
    "gives_up": ("failed", "never again"),
    "waits": ("up_for_reschedule", "2030-01-01"),
    "not_json": ("failed", "type object"),
    "huge": (
        "failed",
        "XCom 'return_value' of task 'huge' is too large: 17.0 MiB of JSON; the limit is 15.0 MiB. Write",
    ),
    "pushes_huge": ("failed", "XCom 'rows' of task 'pushes_huge' is too large: 17.0 MiB of JSON; the limit is 15.0"),
    "nested": ("failed", "nested 591 deep"),
    "exits": ("failed", "sys.exit(3) was called"),
    "exits_hard": ("failed", "exit code 7"),
    "killed": ("failed", "killed by SIGKILL, possibly out of memory"),
    "crashes": ("failed", "killed by SIGSEGV"),
    "leaves_a_thread": ("success", ""),
    "branches": ("success", ""),
    "stops": ("success", ""),
    "sleeps_on_a_loop": ("success", ""),
    "bash": ("success", ""),
    "no_such_task": ("failed", "no_such_task"),
}


async def test_every_way_to_end_is_told_with_its_reason(bench: Bench, code):
    async with bench.running() as executor:
        launches = {name: bench.launch(code, name) for name in OUTCOMES}
        await executor.launch(list(launches.values()))
        ends = {name: await bench.end_of(launch) for name, launch in launches.items()}
    for name, (state, words) in OUTCOMES.items():
        assert (ends[name].state, words in ends[name].reason) == (state, True), (name, ends[name])
    assert {name for name, end in ends.items() if end.cause == "machine"} == {"killed"}
    assert {name for name, end in ends.items() if not end.retry} == {"gives_up"}
    assert ends["waits"].reschedule_at == datetime.fromisoformat("2030-01-01T00:00:00+00:00")
    assert ends["branches"].decision == BranchDecision(("raises", "skips"))
    assert ends["stops"].decision == ShortCircuitDecision(ignore_downstream_trigger_rules=True)
    assert (value(ends["sleeps_on_a_loop"]), value(ends["bash"])) == ("awaited", "result")
    said = bench.said("raises")
    assert said.startswith('Traceback (most recent call last):\n  File "', said.index("\n") + 1)
    assert said.splitlines()[2].endswith(f'dag_file.py", line {LINE_THAT_RAISES}, in raises')
    assert said.endswith("ValueError: no luck\nsecond line\n")
    assert bench.said("loop_raises").splitlines()[2].endswith("in loop_raises")
    failed = [line for line in bench.said("bash_fails").splitlines() if line.startswith("{")]
    assert [line.split(" - ")[1] for line in failed][-2:] == ["Command exited with return code 3", "Task failed"]
    assert "Traceback" not in bench.said("bash_fails")
    assert "raise ValueError" in bench.log("raises")
    assert "sandbox/run.py" not in bench.log("raises")
    assert "last words\n" in bench.log("exits_hard")
    assert "exit code 7" in bench.log("exits_hard")
    assert "killed by SIGKILL" in bench.log("killed")
    assert "killed by SIGSEGV" in bench.log("crashes")
    assert bench.log("silent") == ""
    assert bench.processes() == []


async def test_each_try_gets_a_fresh_copy_of_the_module(bench: Bench, code):
    async with bench.running() as executor:
        ends = [await bench.run(executor, bench.launch(code, "counts")) for _ in range(3)]
    assert [value(end)[0] for end in ends] == [1, 1, 1]
    assert len({value(end)[1] for end in ends}) == 3, "each try draws other random numbers"


@pytest.mark.parametrize(
    ("event", "task_id", "line"),
    [
        ("on_success", "silent", "called back: silent  None"),
        ("on_failure", "", "silent it went wrong None"),
    ],
)
async def test_callbacks_of_tasks_and_dags_run_in_a_process_of_their_own(bench: Bench, event, task_id, line):
    code = bench.code(DAG_FILE.replace("@task\n    def silent", "@task(on_success_callback=note)\n    def silent"))
    reason = "it went wrong" if event == "on_failure" else ""
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(code, task_id, callback={"event": event, "reason": reason}))
    assert ended.state == "success"
    assert line in bench.log(task_id)


async def test_callbacks_that_take_too_long_are_ended(bench: Bench):
    code = bench.code(DAG_FILE.replace('print("called back:"', 'time.sleep(1000), print("called back:"'))
    launch = bench.launch(code, "", callback={"event": "on_failure", "reason": ""}, execution_timeout=0.1)
    async with bench.running() as executor:
        ended = await bench.run(executor, launch)
    assert (ended.state, ended.cause, ended.reason) == ("failed", "task", "callbacks.timeout of 0.1 s is over")


async def test_a_retry_policy_decides_about_a_task_that_took_too_long(bench: Bench):
    policy = "ExceptionRetryPolicy([RetryRule(AsynschedTaskTimeout, retry_delay=timedelta(hours=1))])"
    code = bench.code(f"""
import time
from datetime import timedelta
from asynsched import DAG, AsynschedTaskTimeout, ExceptionRetryPolicy, RetryRule, task
with DAG("d"):
    @task(retry_policy={policy})
    def sleeps():
        time.sleep(1000)
    sleeps()
""")
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(code, "sleeps", execution_timeout=1.0))
    assert (ended.state, ended.retry, ended.retry_delay) == ("failed", True, 3600.0)


IMPOSTOR = """
import os, time
from datetime import UTC, datetime
from pathlib import Path
from asynsched import DAG, get_current_context, task
from asynsched.authoring.supervisor import current_supervisor
from asynsched.protocol.messages import Ended, Request, Started
with DAG("d"):
    @task
    def holds():
        while not Path(get_current_context()["dag_run"].conf["gate"]).exists():
            time.sleep(0.01)
        return "its own"
    @task
    def poses():
        victim, now = get_current_context()["dag_run"].conf["token"], datetime.now(UTC)
        link = current_supervisor()
        link.send(Started(victim, now, os.getpid()))
        link.send(Request(victim, 7, "xcom_push", {"key": "return_value", "value": "forged", "task_id": "holds"}))
        link.send(Ended(victim, "failed", now, now, "posed"))
        os._exit(0)
    holds()
    poses()
"""


async def test_a_try_that_speaks_under_the_token_of_another_speaks_for_itself(bench: Bench, tmp_path):
    code = bench.code(IMPOSTOR)
    holds = bench.launch(code, "holds", conf={"gate": str(tmp_path / "gate")})
    async with bench.running() as executor:
        await executor.launch([holds])
        started = await bench.start_of(holds)
        poses = bench.launch(code, "poses", conf={"token": holds.token})
        posed = await bench.run(executor, poses)
        assert holds.token not in bench.ended
        (tmp_path / "gate").touch()
        ended = await bench.end_of(holds)
    assert (posed.token, posed.state, posed.reason) == (poses.token, "failed", "posed")
    assert [(request.token, request.request_id) for request in bench.requests] == [(poses.token, 7)]
    assert bench.started[holds.token] == started
    assert (ended.state, value(ended), len(bench.ended[holds.token])) == ("success", "its own", 1)


FORGER = """
import os
from datetime import UTC, datetime
from asynsched import DAG, task
from asynsched.authoring.supervisor import current_supervisor
from asynsched.protocol.messages import Ended
with DAG("d"):
    @task
    def forges(at):
        current_supervisor().send(Ended("", "up_for_reschedule", at, at, "forged", reschedule_at=at))
        os._exit(0)
    forges.override(task_id="late")(datetime.max.replace(tzinfo=UTC))
    forges.override(task_id="early")(datetime.min.replace(tzinfo=UTC))
    forges.override(task_id="nowhere")(datetime(2026, 1, 1))
"""


@pytest.mark.parametrize("task_id", ["late", "early", "nowhere"])
async def test_forged_instants_are_brought_within_bounds_or_refused(bench: Bench, task_id):
    code = bench.code(FORGER)
    before = datetime.now(UTC)
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(code, task_id))
    now = datetime.now(UTC)
    if task_id == "nowhere":
        assert ended.state == "failed"
        return
    assert ended.state == "up_for_reschedule"
    assert ended.started_at <= ended.ended_at <= now
    assert ended.reschedule_at - now < timedelta(days=40_000)
    assert (ended.ended_at >= before) == (task_id == "late")


FORKS = """
import os, sys
from asynsched import DAG, task
with DAG("d"):
    @task
    def forks(how):
        child = os.fork()
        if child:
            print("the task goes on")
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if how == "raises":
            raise ValueError("the child could not go on")
        if how == "exits":
            sys.exit(3)
        if how == "is_done":
            sys.exit()
        return "of the child"
    for how in ("returns", "raises", "exits", "is_done"):
        forks.override(task_id=how)(how)
"""


@pytest.mark.parametrize(("task_id", "status"), [("returns", 0), ("raises", 1), ("exits", 3), ("is_done", 0)])
async def test_a_fork_that_comes_back_from_the_task_ends_alone(bench: Bench, task_id, status):
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(bench.code(FORKS), task_id))
    assert (ended.state, value(ended)) == ("success", status)
    assert "the task goes on" in bench.log(task_id)
    assert ("the child could not go on" in bench.log(task_id)) == (task_id == "raises")


async def test_a_file_may_replace_standard_output_by_less_than_a_file(bench: Bench):
    code = bench.code("""
import sys
from asynsched import DAG, task
class Tee:
    def write(self, text):
        return sys.__stdout__.write(text)
sys.stdout = Tee()
with DAG("d"):
    @task
    def prints():
        print("through the tee")
        return 1
    prints()
""")
    async with bench.running() as executor:
        ends = [await bench.run(executor, bench.launch(code, "prints", try_number=n)) for n in range(2)]
    assert [end.state for end in ends] == ["success", "success"]
    assert "through the tee" in bench.log("prints")


TOO_DEEP = """
import os, time
from datetime import UTC, datetime
from asynsched import DAG, task
from asynsched.authoring.supervisor import current_supervisor
from asynsched.protocol.frames import encode_frame
from asynsched.protocol.messages import Ended, RaisedException, Request
with DAG("d"):
    @task
    def takes_too_long():
        try:
            time.sleep(600)
        except BaseException:
            nested = ()
            for _ in range(600):
                nested = (nested,)
            now = datetime.now(UTC)
            said = Ended("", "failed", now, now, exception=RaisedException("m", "E", "", nested))
            current_supervisor().socket.sendall(encode_frame(said, 10_000, 2**24))
            os._exit(0)
    @task
    def asks_at_length():
        current_supervisor().socket.sendall(encode_frame(Request("", 7, "x" * 2**20), 10_000, 2**24))
        os._exit(0)
    @task
    def goes_on():
        return "all is well"
    takes_too_long()
    asks_at_length()
    goes_on()
"""


async def test_messages_beyond_the_limits_of_a_try_end_no_more_than_the_try(bench: Bench):
    code = bench.code(TOO_DEEP)
    async with bench.running() as executor:
        late = await bench.run(executor, bench.launch(code, "takes_too_long", execution_timeout=1.0))
        long = await bench.run(executor, bench.launch(code, "asks_at_length"))
        other = await bench.run(executor, bench.launch(code, "goes_on"))
    assert (late.state, late.reason, late.exception) == ("failed", "execution_timeout of 1 s is over", None)
    assert long.state == "failed"
    assert (other.state, value(other)) == ("success", "all is well")
