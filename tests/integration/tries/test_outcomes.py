"""What a try comes to, and what its log and its environment are."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from sandbox.protocol import BranchDecision, ShortCircuitDecision
from tests.integration.tries.bench import Bench, replies, value

DAG_FILE = """
import logging, os, random, signal, sys, threading, time
from datetime import datetime, timedelta, timezone
from asynsched import (
    DAG, AsynschedFailException, AsynschedRescheduleException, AsynschedSkipException, BashOperator, Variable,
    Connection, get_current_context, task,
)

COUNTER = []

def note(context):
    print("called back:", context["ti"].task_id, context.get("reason"), context.get("exception"))

with DAG("d", on_failure_callback=note):
    @task
    def returns():
        print("to stdout")
        print("to stderr", file=sys.stderr)
        logging.getLogger("mine").warning("from logging")
        return {"rows": [1, 2.5, None, "é"]}

    @task
    def silent():
        pass

    @task
    def counts():
        COUNTER.append(1)
        return [len(COUNTER), random.random()]

    @task
    def raises():
        raise ValueError("no luck\\nsecond line")

    @task
    def skips():
        raise AsynschedSkipException("not today")

    @task
    def gives_up():
        raise AsynschedFailException("never again")

    @task
    def waits():
        raise AsynschedRescheduleException(datetime(2030, 1, 1, tzinfo=timezone.utc))

    @task
    def not_json():
        return {"when": [object()]}

    @task
    def huge():
        return "x" * (17 * 1024 * 1024)

    @task
    def exits():
        sys.exit(3)

    @task
    def exits_hard():
        print("last words", flush=True)
        os._exit(7)

    @task
    def killed():
        os.kill(os.getpid(), signal.SIGKILL)

    @task
    def crashes():
        os.kill(os.getpid(), signal.SIGSEGV)

    @task
    def leaves_a_thread():
        threading.Thread(target=time.sleep, args=(600,)).start()
        return "done"

    @task.branch
    def branches():
        return ["raises", "skips"]

    @task.short_circuit
    def stops():
        return False

    @task
    async def sleeps_on_a_loop():
        import asyncio
        await asyncio.sleep(0)
        return "awaited"

    @task
    def environment():
        context = get_current_context()
        return {
            "secrets": [name for name in os.environ if name.startswith("ASYNSCHED")],
            "given": os.environ.get("GIVEN"), "cwd": os.getcwd(), "stdin": sys.stdin.read(),
            "leads": os.getpgrp() == os.getpid() == os.getsid(0), "try": context["ti"].try_number,
            "conf": context["dag_run"].conf, "file": __file__,
        }

    @task
    def secrets():
        token, plain = Variable.get("api_token"), Variable.get("colour")
        password = Connection.get("db").password
        print("half of " + token[:4], end="", flush=True)
        print(token[4:], plain, password)
        raise ValueError(f"cannot log in with {password}")

    @task
    def chatters():
        for number in range(30_000):
            print("line", number)
        return "said"

    @task
    def mutely_raises():
        class Mute(Exception):
            def __str__(self):
                raise RuntimeError("no text")

        raise Mute

    @task
    async def loop_raises():
        raise ValueError("within a loop \\udc80")

    @task
    def told():
        context = get_current_context()
        return {
            "env": {name: text for name, text in os.environ.items() if name.startswith("AIRFLOW_CTX_")},
            "later": context["data_interval_start"].subtract(days=1).in_timezone("Europe/Berlin").format("D MMM HH:mm"),
            "run": context["dag_run"].run_after.add(hours=1).isoformat(),
        }

    @task
    def prints_environment():
        for name, text in os.environ.items():
            if name.startswith(("AIRFLOW_VAR_", "AIRFLOW_CONN_")):
                print(f"{name}={text}")

    bash_fails = BashOperator(task_id="bash_fails", bash_command="exit 3")
    bash = BashOperator(task_id="bash", bash_command="echo from $0; echo result")
    branches() >> [raises(), skips()]
    stops() >> silent()
    for function in (
        returns, counts, gives_up, waits, not_json, huge, exits, exits_hard, killed, crashes, leaves_a_thread,
        sleeps_on_a_loop, environment, secrets, chatters, loop_raises, mutely_raises, told,
        prints_environment,
    ):
        function()
"""


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
    "huge": ("failed", "too large"),
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


async def test_a_value_and_all_output_come_back(bench: Bench, code):
    async with bench.running() as executor:
        ended = await bench.run(executor, launch := bench.launch(code, "returns"))
    started = bench.started[launch.token]
    assert value(ended) == {"rows": [1, 2.5, None, "é"]}
    assert started.started_at == ended.started_at <= ended.ended_at
    lines = bench.said("returns").splitlines()
    assert lines[:3] == ["to stdout", "to stderr", "{dag_file.py:19} WARNING - from logging"]
    stamps = [datetime.fromisoformat(line[1:].split("]")[0]) for line in bench.log("returns").splitlines()]
    assert started.started_at - timedelta(milliseconds=1) <= stamps[0] <= stamps[1] <= stamps[2]
    log = next((bench.home / "logs").glob("**/attempt=1.log"))
    assert (log.stat().st_mode & 0o777, log.parent.stat().st_mode & 0o777) == (0o600, 0o700)


async def test_each_try_gets_a_fresh_copy_of_the_module(bench: Bench, code):
    async with bench.running() as executor:
        ends = [await bench.run(executor, bench.launch(code, "counts")) for _ in range(3)]
    assert [value(end)[0] for end in ends] == [1, 1, 1]
    assert len({value(end)[1] for end in ends}) == 3, "each try draws other random numbers"


async def test_a_try_is_told_what_it_may_know_and_nothing_of_the_scheduler(bench: Bench, code, monkeypatch):
    monkeypatch.setenv("ASYNSCHED_DATABASE", "postgresql://secret@host/db")
    monkeypatch.setenv("GIVEN", "yes")
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(code, "environment", try_number=2, conf={"n": 1}))
    assert value(ended) == {
        "secrets": [], "given": "yes", "cwd": str(Path.cwd()), "stdin": "", "leads": True, "try": 2, "conf": {"n": 1},
        "file": str(bench.dags / "dag_file.py"),
    }  # fmt: skip


async def test_python_code_finds_its_task_in_the_environment_and_dates_that_can_be_reckoned_with(bench: Bench, code):
    start = datetime.fromisoformat("2024-05-01T12:00:00+00:00")
    launch = bench.launch(code, "told")
    run = msgspec.structs.replace(
        launch.run, run_after=start, logical_date=start, data_interval_start=start, data_interval_end=start
    )
    async with bench.running() as executor:
        ended = await bench.run(executor, msgspec.structs.replace(launch, run=run))
    assert value(ended) == {
        "env": {
            "AIRFLOW_CTX_DAG_ID": "d",
            "AIRFLOW_CTX_TASK_ID": "told",
            "AIRFLOW_CTX_DAG_RUN_ID": "r",
            "AIRFLOW_CTX_TRY_NUMBER": "1",
            "AIRFLOW_CTX_DAG_OWNER": "airflow",
            "AIRFLOW_CTX_LOGICAL_DATE": "2024-05-01T12:00:00+00:00",
        },
        "later": "30 Apr 14:00",
        "run": "2024-05-01T13:00:00+00:00",
    }


async def test_secrets_of_the_environment_are_masked_though_nobody_asked_for_them(bench: Bench, code, monkeypatch):
    monkeypatch.setenv("AIRFLOW_VAR_API_TOKEN", "s3cr3t-token")
    monkeypatch.setenv("AIRFLOW_VAR_COLOUR", "green")
    monkeypatch.setenv("AIRFLOW_CONN_DB", "postgres://me:hunter%2F22@db.example/shop")
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", "no-connection-at-all")
    async with bench.running() as executor:
        await bench.run(executor, bench.launch(code, "prints_environment"))
    shown = set(bench.said("prints_environment").splitlines())
    assert shown == {
        "AIRFLOW_VAR_API_TOKEN=***", "AIRFLOW_VAR_COLOUR=green", "AIRFLOW_CONN_DB=postgres://me:***@db.example/shop",
        "AIRFLOW_CONN_BROKEN=***",
    }  # fmt: skip


async def test_secrets_that_a_try_asked_for_are_masked_in_its_log_and_its_reason(bench: Bench, code):
    variables = {"api_token": "s3cr3t-token", "colour": "green"}
    bench.answers["variable_get"] = lambda request: replies(variables[request.arguments["key"]])(request)
    bench.answers["connection_get"] = replies({"conn_id": "db", "conn_type": "x", "password": "hunter22"})
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(code, "secrets"))
    assert ended.reason == "ValueError: cannot log in with ***"
    assert bench.said("secrets").startswith("half of *** green ***\n")
    assert not [secret for secret in ("s3cr3t", "hunter22") if secret in bench.log("secrets")]


async def test_a_log_ends_at_its_limit_and_says_so(bench: Bench, code):
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(code, "chatters"))
    assert value(ended) == "said"
    assert len(bench.log("chatters")) < bench.settings.log.task_bytes + 200
    assert "log.task_bytes" in bench.log("chatters").splitlines()[-1]


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
        ended = await bench.run(executor, bench.launch(code, "sleeps", execution_timeout=0.1))
    assert (ended.state, ended.retry, ended.retry_delay) == ("failed", True, 3600.0)


FORGER = """
import os
from datetime import UTC, datetime
from asynsched import DAG, task
from asynsched.authoring.supervisor import current_supervisor
from sandbox.protocol import Ended
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
async def test_instants_that_a_task_has_forged_are_brought_within_bounds_or_refused(bench: Bench, task_id):
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
