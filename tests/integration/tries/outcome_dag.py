"""A DAG whose tasks end in every possible way, and show their context."""

DAG_FILE = """
import logging, os, random, signal, sys, threading, time
from datetime import datetime, timedelta, timezone
from asynsched import (
    DAG, AsynschedFailException, AsynschedRescheduleException, AsynschedSkipException, BashOperator, Variable,
    Connection, get_current_context, task,
)

COUNTER = []
told_at_import = {name: text for name, text in os.environ.items() if name.startswith("AIRFLOW_CTX_")}

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
    def pushes_huge(ti=None):
        ti.xcom_push(key="rows", value="x" * (17 * 1024 * 1024))

    @task
    def nested():
        sys.setrecursionlimit(10_000)
        value = "bottom"
        for _ in range(590):
            value = [value]
        return value

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
            "at_import": told_at_import,
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
        returns, counts, gives_up, waits, not_json, huge, pushes_huge, nested, exits, exits_hard, killed, crashes,
        leaves_a_thread, sleeps_on_a_loop, environment, secrets, chatters, loop_raises, mutely_raises, told,
        prints_environment,
    ):
        function()
"""
