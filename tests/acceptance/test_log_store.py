"""Logs in a shared folder as `log.store`: copied once their tries have ended, and read from there by everybody."""

import json
import shutil
import socket
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
import pytest

from tests.acceptance.test_web import link_of
from tests.support.message_servers import serving_http
from tests.support.up import Site
from tests.support.waiting import DEADLINE_SECONDS

SAYS = """
    import os, time
    from asynsched import DAG, task

    with DAG("logged", schedule=None):

        @task(on_success_callback=lambda context: print("called back"))
        def says():
            print("first")
            while "GATE" in os.environ and not os.path.exists(os.environ["GATE"]):
                time.sleep(0.01)
            print("last")

        says()
"""
RUN = "dag_id=logged/run_id=r"
PATHS = [f"{RUN}/task_id=says/attempt=1.log", f"{RUN}/task_id=says/attempt=1.on_success.log"]


class Store:
    """A folder that is the store of logs of some sites."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "mount" / "logs"
        self.folder.mkdir(parents=True)

    @property
    def env(self) -> dict[str, str]:
        return {"ASYNSCHED_LOG__STORE": self.folder.as_uri()}

    def logs(self) -> dict[str, str]:
        return {str(file.relative_to(self.folder)): file.read_text() for file in sorted(self.folder.rglob("*.log"))}

    def has_all(self) -> bool:
        return sorted(self.logs()) == PATHS


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def site(tmp_path, store):
    made = Site(tmp_path / "site")
    made.env |= store.env
    made.write("logged.py", SAYS)
    yield made
    made.end_everything()


def local_logs(site: Site) -> list[str]:
    return sorted(str(file.relative_to(site.home / "logs")) for file in (site.home / "logs").rglob("dag_id=*/**/*.log"))


def test_a_stopping_scheduler_stores_every_log_and_commands_read_them_there(site, store):
    assert "log store" in site.run("check", code=None).stdout
    site.run("dags", "trigger", "logged", "--run-id", "r")
    site.up_until_idle()
    assert (local_logs(site), sorted(store.logs())) == (PATHS, PATHS)
    shutil.rmtree(site.home / "logs" / RUN)

    shown = site.run("tasks", "logs", "logged", "r", "says").stdout
    assert [
        word for word in ("first", "last", "on_success_callback: success", "called back") if word not in shown
    ] == []
    assert "last" in site.run("tasks", "logs", "logged", "r", "says", "--follow").stdout
    [of_try] = site.json("runs", "logs", "logged", "r")["tries"]
    assert of_try["log"] == store.logs()[PATHS[0]]
    assert of_try["callbacks"][0]["log"] == store.logs()[PATHS[1]]

    site.run("runs", "delete", "logged", "r", "--yes")
    assert store.logs() == {}
    assert list((site.home / "logs" / ".unwanted").iterdir()) == []


def test_a_scheduler_killed_before_it_removes_a_log_neither_loses_nor_repeats_it(site, store):
    with site.up() as up:
        site.wait_for_dag("logged")
        site.run("dags", "trigger", "logged", "--run-id", "r")
        site.until(store.has_all, "the logs are stored")
        up.kill()
    before = store.logs()
    assert {path: (site.home / "logs" / path).read_text() for path in PATHS} == before
    # As if it had been killed before it noted this.
    (site.home / "logs" / RUN / ".stored").unlink(missing_ok=True)
    with (site.home / "logs" / PATHS[1]).open("a") as late:
        late.write("late\n")

    site.up_until_idle()
    assert store.logs() == before | {PATHS[1]: f"{before[PATHS[1]]}late\n"}


def test_the_log_of_a_try_that_a_stop_interrupts_is_stored_and_whole_in_the_end(site, store, tmp_path):
    site.env |= {"GATE": str(tmp_path / "gate"), "ASYNSCHED_SHUTDOWN_GRACE": "0.1"}
    with site.up():
        site.wait_for_dag("logged")
        site.run("dags", "trigger", "logged", "--run-id", "r")
        file = site.home / "logs" / PATHS[0]
        site.until(lambda: file.exists() and "first" in file.read_text(), "the task has begun")
    interrupted = store.logs()[PATHS[0]]
    assert interrupted == file.read_text(), "it stays here, too: this home may go on with it"

    (tmp_path / "gate").touch()
    site.up_until_idle()
    whole = store.logs()[PATHS[0]]
    assert (whole.startswith(interrupted), whole.count("first"), "last" in whole) == (True, 2, True)


def test_logs_wait_for_a_store_that_is_away_and_this_is_said_once(site, store, tmp_path):
    store.folder.rmdir()  # a mount that is missing
    site.env["GATE"] = str(tmp_path / "gate")
    with site.up() as up:
        site.wait_for_dag("logged")
        site.run("dags", "trigger", "logged", "--run-id", "r")
        follower = subprocess.Popen(
            site.command("tasks", "logs", "logged", "r", "says", "--follow"), cwd=site.root, env=site.environment,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        site.until(lambda: local_logs(site), "the task has begun")
        (tmp_path / "gate").touch()
        shown, _ = follower.communicate(timeout=DEADLINE_SECONDS)
        assert ("first" in shown, "last" in shown) == (True, True)
        site.until(lambda: "logs.not_stored" in up.log, "it is said")
        assert site.task_states("logged", "r") == {"says": "success"}
        assert "logs wait for the store of logs" in site.run("check", "--live").stderr
        assert ": cannot write, read and remove an object" in site.run("check", code=1).stdout
        assert "last" in site.run("tasks", "logs", "logged", "r", "says").stdout

        assert not store.folder.exists(), "nobody has made it"
        store.folder.mkdir()
        site.until(store.has_all, "the logs are stored")
        site.until(lambda: "logs.stored_again" in up.log, "it is said that the store is back")
        assert up.log.count("logs.not_stored") == 1


def test_a_scheduler_ends_although_its_store_hangs(site):
    pytest.importorskip("requests")  # of webhdfs
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(DEADLINE_SECONDS)
        port = mute.getsockname()[1]
        site.env["ASYNSCHED_LOG__STORE"] = "webhdfs://logs"
        site.env["ASYNSCHED_LOG__STORE_OPTIONS"] = json.dumps({"host": "127.0.0.1", "port": port})
        with site.up() as up:
            site.wait_for_dag("logged")
            site.run("dags", "trigger", "logged", "--run-id", "r")
            hanging, _ = mute.accept()
            with hanging:
                up.interrupt()
                site.until(lambda: "scheduler.stopping" in up.log, "it stops")
                up.interrupt()
                assert up.wait() == 1, up.log


def test_a_command_looks_for_each_log_once_in_the_store(site):
    pytest.importorskip("requests")  # of webhdfs
    site.env |= {"ASYNSCHED_LOG__STORE": ""}
    site.run("dags", "trigger", "logged", "--run-id", "r")
    site.up_until_idle()
    shutil.rmtree(site.home / "logs" / RUN)
    with serving_http() as store:
        store.status = 404
        missing = {"exception": "FileNotFoundException", "message": "not there"}
        store.answer = json.dumps({"RemoteException": missing}).encode()
        site.env["ASYNSCHED_LOG__STORE"] = "webhdfs://logs"
        site.env["ASYNSCHED_LOG__STORE_OPTIONS"] = json.dumps({"host": "127.0.0.1", "port": store.port})
        for command in (["runs", "logs", "logged", "r"], ["tasks", "logs", "logged", "r", "says"]):
            store.requests.clear()
            site.run(*command)
            asked = [unquote(urlsplit(request.path).path) for request in store.requests]
            assert sorted(path.partition("dag_id=")[2] for path in asked) == [
                path.removeprefix("dag_id=") for path in PATHS
            ]


def test_another_scheduler_shows_the_logs_of_one_whose_home_is_gone(tmp_path, store, new_postgres_database):
    database = new_postgres_database()
    one, other = (Site(tmp_path / name, database) for name in ("one", "other"))
    for site in (one, other):
        site.env |= store.env | {"ASYNSCHED_WEB__LISTEN": "127.0.0.1:0"}
        site.write("logged.py", SAYS)
    try:
        one.run("dags", "trigger", "logged", "--run-id", "r")
        one.up_until_idle()
        shutil.rmtree(one.home)
        with other.up():
            url, key = link_of(other)
            with httpx.Client(base_url=url, timeout=DEADLINE_SECONDS) as browser:
                browser.get("/login", params={"key": key})
                task = "/api/v2/dags/logged/dagRuns/r/taskInstances/says"
                lines = [line["event"] for line in browser.get(f"{task}/logs/1").json()["content"]]
                page = browser.get("/dags/logged/runs/r/tasks/says", headers={"accept": "text/html"}).text
                found = browser.get("/api/asynsched/v1/dags/logged/runs/r/tasks/says/logs/lines?text=LAST").json()
                shutil.rmtree(store.folder)
                store.folder.parent.joinpath("logs").touch()
                away = browser.get(f"{task}/logs/1")
            assert [line for line in lines if line.endswith(("first", "last"))] == lines
            assert ("first" in page, len(found)) == (True, 1)
            assert (away.status_code, "log.store" in away.text) == (503, True)
    finally:
        one.end_everything()
        other.end_everything()
