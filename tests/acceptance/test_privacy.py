"""What a task cannot learn of the processes that schedule it, though they are of the same user."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.up import Site
from tests.support.users import ORDINARY_UID, become_ordinary

LOOKS = """
    import os
    from asynsched import DAG, get_current_context, task

    def look(process):
        try:
            with open(f"/proc/{process}/environ", "rb") as environment, open(f"/proc/{process}/mem", "rb"):
                return "read" if environment.read() else "empty"
        except PermissionError:
            return "refused"

    with DAG("looks"):

        @task
        def around():
            asked = get_current_context()["dag_run"].conf
            return {"user": os.getuid(), "self": look("self"), **{name: look(asked[name]) for name in asked}}

        around()
"""


@pytest.fixture
def site() -> Iterator[Site]:
    """Yield a site of an ordinary user, in a folder that this user can reach."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        site.write("looks.py", LOOKS)
        if os.getuid() == 0:
            site.become = become_ordinary
            for path in (site.root, site.dags):
                os.chown(path, ORDINARY_UID, ORDINARY_UID)
        yield site
        site.end_everything()


def test_a_task_cannot_read_the_memory_or_the_environment_of_scheduler_and_keeper(site):
    with site.up() as up:
        site.wait_for_dag("looks")
        [keeper] = [process.pid for process in site.processes() if "sandbox.keeper" in process.cmdline()]
        asked = json.dumps({"scheduler": up.process.pid, "keeper": keeper})
        site.run("dags", "trigger", "looks", "--conf", asked, "--run-id", "one", "--wait")
        [found] = site.json("tasks", "xcom", "looks", "one", "around")
    assert found["value"] == {
        "user": os.getuid() or ORDINARY_UID,
        "self": "read",
        "scheduler": "refused",
        "keeper": "refused",
    }
