"""Tasks that wait without a process, over the death of their scheduler: deferred ones, and rescheduled sensors."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.up import Site

DATABASES = ("postgresql",)

WAITING = """
    import asyncio, os
    from pathlib import Path
    from asynsched import DAG, BaseOperator, BaseTrigger, DateTimeSensorAsync, FileSensor, TriggerEvent, task

    GATE = Path("@gate@")
    VERSION = 1

    def mark(line):
        with Path(os.environ["MARKS"]).open("a") as marks:
            marks.write(f"{line} {os.getpid()}\\n")

    class Opened(BaseTrigger):
        def serialize(self):
            return f"{__name__}.Opened", {}

        async def run(self):
            mark("trigger")
            while not GATE.exists():
                await asyncio.sleep(0.01)
            yield TriggerEvent({"version": VERSION})

    class Waits(BaseOperator):
        def execute(self, context):
            mark("begin")
            self.defer(trigger=Opened(), method_name="go_on")

        def go_on(self, context, event):
            mark("go_on")
            return [event["version"], VERSION, context["ti"].try_number]

    with DAG("waiting", max_active_tasks=1):
        Waits(task_id="deferred", retries=1, retry_delay=0)
        FileSensor(task_id="sensor", filepath=str(GATE), mode="reschedule", poke_interval=0.2)
        FileSensor(task_id="file", filepath=str(GATE), deferrable=True, poke_interval=0.05)
        DateTimeSensorAsync(task_id="date", target_time="{{ dag_run.run_after.isoformat() }}", end_from_trigger=True)
"""


def waiting(site: Site, version: int = 1) -> str:
    # A parse is not given the environment of a test.
    return WAITING.replace("@gate@", site.env["GATE"]).replace("VERSION = 1", f"VERSION = {version}")


@pytest.fixture
def site(new_site) -> Site:
    """Return a site with a DAG whose tasks wait until its gate exists."""
    site = new_site()
    site.env |= {"MARKS": str(site.root / "marks"), "GATE": str(site.root / "gate")}
    site.write("waiting.py", waiting(site))
    return site


def marks(site: Site, what: str) -> list[int]:
    path = Path(site.env["MARKS"])
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [int(pid) for name, pid in lines if name == what]


def start_waiting(site: Site) -> None:
    """Trigger a run, and wait until all of its tasks wait, though only one of them may run at once."""
    site.wait_for_dag("waiting")
    site.run("dags", "trigger", "waiting", "--run-id", "r1")
    waiting = {"deferred": "deferred", "sensor": "up_for_reschedule", "file": "deferred", "date": "success"}
    site.until(lambda: site.task_states("waiting", "r1") == waiting, "every task waits")
    site.until(lambda: marks(site, "trigger"), "the trigger runs")


def assert_all_went_on(site: Site, *, tries: int = 1) -> None:
    site.until(lambda: site.json("runs", "show", "waiting", "r1")["state"] == "success", "the run has succeeded")
    shown = {task["task_id"]: task["try_number"] for task in site.json("tasks", "list", "waiting", "r1")}
    assert shown == {"deferred": tries, "sensor": 1, "file": 1, "date": 1}
    [returned] = site.json("tasks", "xcom", "waiting", "r1", "deferred")
    assert returned["value"] == [1, 1, tries]


WAITS_ALWAYS = """
    from datetime import datetime, timezone
    from asynsched import DAG, DateTimeSensorAsync, task

    with DAG("waits", schedule=None):

        @task.sensor(mode="reschedule", poke_interval=3600)
        def looks():
            print("it looks")
            return False

        looks()
        DateTimeSensorAsync(task_id="defers", target_time=datetime(2999, 1, 1, tzinfo=timezone.utc))
"""


JOBS = """
    import asyncio, os
    from pathlib import Path
    from asynsched import DAG, BaseOperator, BaseTrigger, TriggerEvent

    GATE = Path("@gate@")

    class JobEnded(BaseTrigger):
        def serialize(self):
            return f"{__name__}.JobEnded", {}

        def mark(self, what):
            with Path(os.environ["MARKS"]).open("a") as marks:
                marks.write(f"{what}-{self.task_instance.run_id} {os.getpid()}\\n")

        async def run(self):
            self.mark("waits")
            while not GATE.exists():
                await asyncio.sleep(0.01)
            yield TriggerEvent()

        async def on_kill(self):
            await asyncio.to_thread(self.mark, "kill")

        async def cleanup(self):
            self.mark("clean")

    class RunJob(BaseOperator):
        def execute(self, context):
            self.defer(trigger=JobEnded(), method_name="finish")

        def finish(self, context, event):
            return "finished"

    with DAG("jobs", max_active_runs=10):
        RunJob(task_id="job")
"""
ENDS = {
    "marked": ("tasks", "mark", "jobs", "marked", "job", "success"),
    "cleared": ("tasks", "clear", "jobs", "cleared", "job"),
    "cancelled": ("runs", "cancel", "jobs", "cancelled"),
    "ended": ("runs", "mark", "jobs", "ended", "success"),
}


def test_a_trigger_cancels_its_job_if_its_task_is_ended_or_cleared_and_not_otherwise(site):
    def marked(*lines: str) -> bool:
        return all(marks(site, line) for line in lines)

    site.write("jobs.py", JOBS.replace("@gate@", site.env["GATE"]))
    with site.up() as up:
        site.wait_for_dag("jobs")
        for run_id in (*ENDS, "kept", "cleared-meanwhile"):
            site.run("dags", "trigger", "jobs", "--run-id", run_id)
        site.until(lambda: marked(*(f"waits-{name}" for name in (*ENDS, "kept", "cleared-meanwhile"))), "all wait")
        for end in ENDS.values():
            site.run(*end, "--yes")
        site.until(lambda: marked(*(f"clean-{run_id}" for run_id in ENDS)), "the triggers have ended")
        assert all(len(marks(site, f"kill-{run_id}")) == 1 for run_id in ENDS)
        site.until(lambda: len(marks(site, "waits-cleared")) == 2, "the cleared task waits for another job")
        up.kill()
        site.run("tasks", "clear", "jobs", "cleared-meanwhile", "job", "--yes")
        with site.up():
            site.until(lambda: marked("kill-cleared-meanwhile"), "the next scheduler has the trigger killed")
        # That scheduler has stopped, and its triggers with it.
        with site.up():
            site.until(lambda: len(marks(site, "waits-kept")) == 2, "the trigger goes on in another process")
            Path(site.env["GATE"]).touch()
            site.until(lambda: site.task_states("jobs", "kept") == {"job": "success"}, "its job ends")
    assert not marks(site, "kill-kept")
    assert len(marks(site, "kill-cleared-meanwhile")) == 1


@pytest.mark.parametrize(
    "end", [("runs", "cancel", "waits", "r1"), ("tasks", "mark", "waits", "r1", "looks", "skipped")], ids=str
)
def test_a_try_that_is_ended_while_it_waits_is_counted_and_keeps_its_log(site, end):
    site.write("waits.py", WAITS_ALWAYS)
    with site.up():
        site.wait_for_dag("waits")
        site.run("dags", "trigger", "waits", "--run-id", "r1")
        waiting = {"looks": "up_for_reschedule", "defers": "deferred"}
        site.until(lambda: site.task_states("waits", "r1") == waiting, "both wait")
        assert "it looks" in site.run("tasks", "logs", "waits", "r1", "looks").stdout
        site.run(*end, "--yes")
        site.until(lambda: site.task_states("waits", "r1")["looks"] in ("failed", "skipped"), "it has ended")
    assert {task["task_id"]: task["try_number"] for task in site.json("tasks", "list", "waits", "r1")} == {
        "looks": 1, "defers": 1
    }  # fmt: skip
    assert "it looks" in site.run("tasks", "logs", "waits", "r1", "looks").stdout


def test_deferred_tasks_outlive_their_scheduler_and_keep_their_code(site):
    with site.up() as up:
        start_waiting(site)
        [host] = marks(site, "trigger")
        assert "Deferred: waits for <Opened>" in site.run("tasks", "logs", "waiting", "r1", "deferred").stdout
        assert "deferred: waits for the trigger Opened" in site.run("why", "waiting", "r1", "deferred").stdout
        up.kill()
        site.write("waiting.py", waiting(site, version=2))
        Path(site.env["GATE"]).touch()
        with site.up():
            assert_all_went_on(site)
    assert marks(site, "trigger") == [host]
    assert len(marks(site, "begin")) == len(marks(site, "go_on")) == 1
    assert not psutil.pid_exists(host)
    assert (site.home / "attempts" / "journal").read_bytes() == b"", "a clean stop leaves no record of stored ends"


def test_a_trigger_is_begun_again_when_its_process_is_killed(site):
    with site.up():
        start_waiting(site)
        os.kill(marks(site, "trigger")[0], signal.SIGKILL)
        site.until(lambda: len(marks(site, "trigger")) == 2, "the trigger runs again")
        Path(site.env["GATE"]).touch()
        assert_all_went_on(site)
    assert len(marks(site, "begin")) == 1
