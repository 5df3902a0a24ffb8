"""Data files of the DAG folder reach tries on other machines, as they are when the try begins."""

import os

import pytest

from tests.integration.remote.machines import FAR, Site

DAG_FILE = """
    import os, pathlib
    from asynsched import DAG, BashOperator, task

    FOLDER = pathlib.Path(__file__).parent
    TABLES = (FOLDER / "config" / "tables.txt").read_text().split()

    with DAG("reads"):

        @task(retries=0)
        def read():
            files = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file())
            return {"folder": str(FOLDER), "tables": TABLES, "files": files}

        run = BashOperator(task_id="run", bash_command=f"{FOLDER}/run.sh ", retries=0)
        greet = BashOperator(task_id="greet", bash_command="greet.sh", retries=0)
        read() >> [run, greet]
"""


@pytest.fixture
def site(tmp_path):
    """A site with one machine, on which `config/` and scripts of the DAG folder are wanted."""
    found = Site(tmp_path, None, FAR)
    found.files = ("config/", "*.sh", "linked.txt")
    folder = found.program.dags
    found.program.write(DAG_FILE)
    (folder / "config").mkdir()
    (folder / "config" / "tables.txt").write_text("orders\n")
    (folder / "greet.sh").write_text("echo hello from {{ ti.task_id }}")
    (folder / "run.sh").write_text("#!/bin/sh\necho it has run")
    (folder / "run.sh").chmod(0o755)
    (folder / "secret.txt").write_text("nobody has asked for this")
    (tmp_path / "elsewhere.txt").write_text("not of the folder")
    (folder / "linked.txt").symlink_to(tmp_path / "elsewhere.txt")
    found.machine()
    yield found
    found.close()


async def test_tries_read_data_files_and_templates_below_the_folder_of_their_file(site: Site):
    async with site.serving() as scheduler:
        run = await scheduler.run("reads")
        (site.program.dags / "config" / "tables.txt").write_text("orders\ncustomers\n")
        again = await scheduler.run("reads")
    first, second = ({task.task_id: task.result for task in one.tasks} for one in (run, again))
    assert [run.state, again.state] == ["success", "success"], [task.reason for task in (*run.tasks, *again.tasks)]
    assert first["read"]["folder"].startswith(str(site.machines[0].home))
    assert first["read"]["files"] == ["config/tables.txt", "greet.sh", "run.sh"]
    assert (first["run"], first["greet"]) == ("it has run", "hello from greet")
    assert (first["read"]["tables"], second["read"]["tables"]) == (["orders"], ["orders", "customers"])


async def test_files_that_cannot_be_sent_fail_a_try_with_the_reason(site: Site):
    (site.program.dags / "config" / "large.bin").write_bytes(os.urandom(100_001))
    async with site.serving() as scheduler:
        run = await scheduler.run("reads")
    assert run.state == "failed"
    assert "workers.files names more than 100,000 bytes" in run.tasks[0].reason
