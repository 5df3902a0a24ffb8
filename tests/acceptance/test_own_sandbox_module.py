"""A DAG folder may have a package `sandbox` of its own, in every process that runs its code: asynsched's gives way."""

import subprocess
import sys

import pytest

from tests.support.up import Site

COLD = True

DAG_FILE = """
    import os
    from datetime import datetime
    from pathlib import Path

    import sandbox.processes
    from sandbox.supervision import WHOSE
    from asynsched import DAG, BaseOperator, BaseTrigger, TriggerEvent, Variable, task
    from asynsched.timetables import DataInterval, Timetable

    class Never(Timetable):
        def next_dagrun_info(self, *, last_automated_data_interval, restriction):
            import sandbox.later
            assert sandbox.later.WHOSE == "mine"
            return None

        def infer_manual_data_interval(self, *, run_after):
            return DataInterval(run_after, run_after)

    class Fires(BaseTrigger):
        def serialize(self):
            return f"{__name__}.Fires", {}

        async def run(self):
            from sandbox.trigger_host import WHOSE
            yield TriggerEvent(WHOSE)

    class Waits(BaseOperator):
        def execute(self, context):
            self.defer(trigger=Fires(), method_name="go_on")

        def go_on(self, context, event):
            return event

    def called_back(context):
        from sandbox.later import WHOSE
        Path(os.environ["MARK"]).write_text(WHOSE)

    with DAG("own", schedule=Never(), start_date=datetime(2025, 1, 1), on_success_callback=called_back) as dag:

        @task
        def imports():
            import sandbox.later
            return [WHOSE, sandbox.processes.WHOSE, sandbox.later.WHOSE, Variable.get("stored")]

        imports() >> Waits(task_id="waits")

    if __name__ == "__main__":
        run = dag.test()
        import sandbox.later
        print(run.state, sandbox.later.WHOSE, [task.result for task in run.tasks])
"""
BROKEN = """
    from asynsched import DAG
    import sandbox
    with open("/nowhere") as file:
        pass
"""
ALL_MINE = [["mine", "mine", "mine", "its value"], "mine"]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Site:
    root = tmp_path_factory.mktemp("site")
    site = Site(root, env={"MARK": str(root / "mark")})
    site.write("own.py", DAG_FILE)
    site.write("broken.py", BROKEN)
    for name in ("__init__", "later", "processes", "supervision", "trigger_host"):
        site.write(f"sandbox/{name}.py", 'WHOSE = "mine"\n')
    site.run("variables", "set", "stored", "its value")
    return site


def test_tasks_triggers_callbacks_and_timetables_import_it(site):
    with site.up():
        site.wait_for_dag("own")
        [error] = site.until(lambda: site.json("dags", "errors"), "the broken file is read")
        assert error["message"].startswith("broken.py:4: FileNotFoundError"), error
        site.run("dags", "trigger", "own", "--run-id", "r", "--wait")
        xcoms = [site.json("tasks", "xcom", "own", "r", task_id) for task_id in ("imports", "waits")]
        assert [entry["value"] for entries in xcoms for entry in entries] == ALL_MINE
        site.until((site.root / "mark").exists, "the callback was run")
        assert (site.root / "mark").read_text() == "mine"


def test_runs_in_the_foreground_import_it(site):
    assert "success" in site.run("dags", "test", "own").stdout
    command = [sys.executable, str(site.dags / "own.py")]
    program = subprocess.run(command, env=site.environment, capture_output=True, text=True, check=False)
    assert f"success mine {ALL_MINE}" in program.stdout, program.stderr
