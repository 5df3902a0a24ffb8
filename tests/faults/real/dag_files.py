"""The text of the DAG files that run while processes die, and of the module that all of them import."""

MARKS = '''
"""What every task does first and last: it writes a line to the ledger, and holds locks while its body runs.

The kernel lets go of a lock at the moment a process ends, however it ends. So a lock that cannot be had is proof: the
task instance is running somewhere else, or its pool has more tasks in it than slots.
"""

import fcntl
import hashlib
import json
import os
import time
from contextlib import contextmanager

from asynsched import get_current_context

POOLS = {"narrow": 2}


def write(entry):
    line = json.dumps({"at": time.clock_gettime(time.CLOCK_BOOTTIME), "pid": os.getpid()} | entry) + "\\n"
    descriptor = os.open(os.environ["FAULTS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def lock(name, *, wait=False):
    path = os.path.join(os.environ["FAULTS_LOCKS"], name)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def take_slots(pool, wanted):
    """Nobody else takes slots meanwhile, so those that are needed are found if they are free."""
    guard = lock(f"{pool}.guard", wait=True)
    taken = [found for n in range(POOLS[pool]) if (found := lock(f"{pool}.{n}")) is not None]
    spare, taken = taken[wanted:], taken[:wanted]
    for descriptor in (*spare, guard):
        os.close(descriptor)
    return taken


@contextmanager
def recorded(part="body"):
    context = get_current_context()
    ti, task = context["ti"], context["task"]
    about = {"ti": [ti.dag_id, ti.run_id, ti.task_id, ti.map_index], "try": ti.try_number, "part": part}
    name = hashlib.sha256(json.dumps(about["ti"]).encode()).hexdigest()[:32]
    held = [lock(name)]
    if held[0] is None:
        held.pop()
        write(about | {"kind": "overlap"})
    if task.pool in POOLS:
        about |= {"pool": task.pool, "slots": task.pool_slots}
        slots = take_slots(task.pool, task.pool_slots)
        held += slots
        if len(slots) < task.pool_slots:
            write(about | {"kind": "overcommitted"})
    write(about | {"kind": "start"})
    how = "raised"
    try:
        yield ti
        how = "ok"
    finally:
        write(about | {"kind": "end", "how": how})
        for descriptor in held:
            os.close(descriptor)


def work(seconds):
    """Take that long, whatever it is interrupted by; so long that others take over meanwhile, where that is wanted."""
    lingers = os.path.exists(os.path.join(os.environ["FAULTS_LOCKS"], "linger-" + os.environ["FAULTS_HOME"]))
    time.sleep(9 if lingers else seconds)


def fails_first():
    """Whether this is the first time that this task instance gets here."""
    ti = get_current_context()["ti"]
    name = hashlib.sha256(f"{ti.dag_id} {ti.run_id} {ti.task_id}".encode()).hexdigest()[:32]
    try:
        os.close(os.open(os.path.join(os.environ["FAULTS_LOCKS"], "first-" + name), os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def called_back(context):
    ti = context["ti"]
    write({"kind": "callback", "ti": [ti.dag_id, ti.run_id, ti.task_id, ti.map_index], "try": ti.try_number})
'''

WAVE = '''
"""Wave {wave}."""

import asyncio
from datetime import datetime, timedelta

from asynsched import DAG, BaseOperator, BaseTrigger, PokeReturnValue, TriggerEvent, get_current_context, task
from marks import called_back, fails_first, recorded, work

HOURLY = dict(
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1),
    end_date=datetime(2026, 1, 1, {last_hour}),
    catchup=True,
)


class Soon(BaseTrigger):
    def serialize(self):
        return f"{{__name__}}.Soon", {{}}

    async def run(self):
        await asyncio.sleep(0.3)
        yield TriggerEvent({{"answer": 42}})


class Waits(BaseOperator):
    def execute(self, context):
        with recorded("asks"):
            self.defer(trigger=Soon(), method_name="finish")

    def finish(self, context, event):
        with recorded("goes on"):
            return event["answer"]


with DAG("chain_{wave}", **HOURLY):

    @task
    def extract():
        with recorded() as ti:
            work(0.1)
            return ti.run_id

    @task
    def transform(run_id):
        with recorded():
            work(0.2)
            return run_id + "!"

    @task
    def load(text):
        with recorded() as ti:
            work(0.1)
            assert text == ti.run_id + "!", text

    load(transform(extract()))


with DAG("fan_{wave}", **HOURLY):

    @task
    def numbers():
        with recorded():
            return list(range({n_mapped}))

    @task
    def square(number):
        with recorded():
            work(0.1 * number)
            return number * number

    @task
    def gather(squares):
        with recorded():
            assert sum(squares) == sum(n * n for n in range({n_mapped})), squares

    gather(square.expand(number=numbers()))


with DAG("sour_{wave}", **HOURLY):

    @task(retries=1, retry_delay=0.1, on_failure_callback=called_back)
    def breaks():
        with recorded():
            work(0.05)
            raise ValueError("as it must")

    @task(retries=1, retry_delay=0.1)
    def mends():
        with recorded():
            work(0.05)
            if fails_first():
                raise ValueError("as it must, once")

    @task
    def blocked():
        with recorded():
            raise AssertionError("its upstream task has failed")

    @task(trigger_rule="all_done")
    def cleans_up():
        with recorded():
            work(0.05)

    [breaks(), mends()] >> blocked() >> cleans_up()


with DAG("narrow_{wave}", **HOURLY):

    @task(pool="narrow")
    def thin(number):
        with recorded():
            work(0.05 * number)

    @task(pool="narrow", pool_slots=2)
    def wide():
        with recorded():
            work(0.1)

    thin.expand(number=list(range({n_mapped})))
    wide()


with DAG("waits_{wave}", **HOURLY):

    @task.sensor(mode="reschedule", poke_interval=0.2, timeout=3600)
    def looks():
        with recorded("pokes"):
            return PokeReturnValue(is_done=not fails_first())

    @task
    def after(answer):
        with recorded():
            assert answer == 42, answer

    done = Waits(task_id="defers")
    looks() >> done
    after(done.output)


with DAG("branch_{wave}", **HOURLY):

    @task.branch
    def decides():
        with recorded():
            work(0.05)
            return "taken"

    @task
    def taken():
        with recorded():
            work(0.1)

    @task
    def avoided():
        with recorded():
            raise AssertionError("the branch has not chosen it")

    @task(trigger_rule="none_failed_min_one_success")
    def joins():
        with recorded():
            work(0.05)

    decides() >> [taken(), avoided()] >> joins()
'''

EDITED = '''
"""A file that is edited all the time, and takes a while to import: for faults of parses."""

import time

from asynsched import DAG, EmptyOperator

time.sleep(0.25)
with DAG("edited_{number}", schedule=None, tags=["edit-{edit}"]):
    EmptyOperator(task_id="nothing")
'''
