"""A backup that was made while a scheduler served is enough for another one to go on."""

import shutil
import subprocess
import sys

from tests.acceptance.test_crash import marks, open_gate, site, start_waiting
from tests.support.up import Site

__all__ = ["site"]
COPY = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))"


def test_a_restored_backup_goes_on_from_its_moment(site: Site, request):
    copy, key = site.root / "copy", site.root / "key"
    site.run("variables", "set", "wanted", "something")
    with site.up() as up:
        start_waiting(site)
        site.until(lambda: site.task_states("waiter", "r1")["waits"] == "running", "the start is stored")
        if site.database is None:
            subprocess.run([sys.executable, "-c", COPY, site.home / "asynsched.db", copy], check=True)
        else:
            server = request.getfixturevalue("postgres_server")
            subprocess.run([server.tool("pg_dump"), "--format=custom", f"--file={copy}", site.database], check=True)
        shutil.copy2(site.home / "fernet.key", key)
        site.run("dags", "trigger", "waiter", "--run-id", "later")
        up.kill()
    site.end_everything()
    shutil.rmtree(site.home)
    site.home.mkdir(mode=0o700)
    shutil.copy2(key, site.home / "fernet.key")
    if site.database is None:
        shutil.copy2(copy, site.home / "asynsched.db")
    else:
        site.database = server.new_database(migrated=False)
        subprocess.run([server.tool("pg_restore"), f"--dbname={site.database}", copy], check=True)
    open_gate(site)
    site.up_until_idle()
    assert [run["run_id"] for run in site.runs("waiter")] == ["r1"]
    assert site.task_states("waiter", "r1") == {"waits": "success", "follows": "success"}
    begun = [mark[1] for mark in marks(site) if mark[0] == "begin" and mark[1]]
    assert begun[0] == "1"
    assert [mark[0] for mark in marks(site)][-2:] == ["end", "follow"]
    assert site.json("variables", "get", "wanted")["value"] == "something"
