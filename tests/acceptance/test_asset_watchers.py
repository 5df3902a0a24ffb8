"""Triggers that watch assets, in real processes: what they report makes runs, once, over every kind of restart."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.acceptance.test_several_schedulers import LEASE, start_both
from tests.support.up import Site, Up

DATABASES = ("postgresql",)

WATCHED = """
    import asyncio, os
    from pathlib import Path
    from airflow.sdk import DAG, Asset, AssetWatcher, task
    from airflow.triggers.base import BaseEventTrigger, TriggerEvent

    INBOX = Path("@inbox@")

    def mark(line):
        with Path(os.environ["MARKS"]).open("a") as marks:
            marks.write(f"{line} {os.getpid()}\\n")

    class Arrivals(BaseEventTrigger):
        def __init__(self, folder):
            super().__init__()
            self.folder = folder

        def serialize(self):
            return f"{__name__}.Arrivals", {"folder": self.folder}

        async def run(self):
            mark("begin")
            while True:
                for path in sorted(Path(self.folder).iterdir()):
                    path.unlink()
                    if path.name == "poison":
                        raise ValueError("poisoned")
                    for asset in (mail, post):
                        store = self.asset_state_store[asset]
                        await store.aset("seen", [*await store.aget("seen", default=[]), path.name])
                    yield TriggerEvent({"name": path.name})
                await asyncio.sleep(0.02)

        async def cleanup(self):
            mark("cleanup")

    mail = Asset("mail", watchers=[AssetWatcher(name="inbox", trigger=Arrivals(str(INBOX)))])
    post = Asset("post", watchers=[AssetWatcher(name="same inbox", trigger=Arrivals(str(INBOX)))])

    with DAG("reads_mail", schedule=[mail]):

        @task
        def read(*, triggering_asset_events):
            return [event.extra for event in triggering_asset_events[Asset("mail")]]

        read()

    with DAG("reads_post", schedule=[post]):

        @task
        def read_post():
            pass

        read_post()
"""


class Watched:
    """A site whose DAG file has a watcher of its inbox."""

    def __init__(self, site: Site, root: Path) -> None:
        self.site = site
        self.inbox, self.marks_path = root / "inbox", root / "marks"
        self.inbox.mkdir(exist_ok=True)
        self.marks_path.touch()
        site.env |= {"MARKS": str(self.marks_path), "ASYNSCHED_SWEEP_INTERVAL": "1"}
        site.write("watched.py", WATCHED.replace("@inbox@", str(self.inbox)))

    @contextmanager
    def up(self) -> Iterator[Up]:
        """Run a scheduler, first until it watches."""
        with self.site.up() as up:
            self.site.wait_for_dag("reads_mail")
            self.until_it_is("running")
            yield up

    def marks(self, what: str) -> list[int]:
        lines = [line.split() for line in self.marks_path.read_text().splitlines()]
        return [int(pid) for name, pid in lines if name == what]

    def states(self, asset: str = "mail") -> list[str]:
        return [watcher["state"] for watcher in self.site.json("assets", "show", asset)["watchers"]]

    def until_it_is(self, *states: str) -> None:
        self.site.until(lambda: self.states() == list(states), f"the watcher is {states}")

    def drop(self, name: str) -> None:
        (self.inbox / name).touch()

    def names(self, dag_id: str = "reads_mail") -> list[str]:
        """Return what arrived, as the successful runs of a DAG saw it, oldest first."""
        runs = [run for run in self.site.runs(dag_id) if run["state"] == "success"]
        shown = [self.site.json("runs", "show", dag_id, run["run_id"]) for run in reversed(runs)]
        return [event["extra"]["payload"]["name"] for run in shown for event in run["asset_events"]]

    def until_read(self, *names: str, dag_id: str = "reads_mail") -> None:
        self.site.until(lambda: self.names(dag_id) == list(names), f"{dag_id} has read {names}")


@pytest.fixture
def watched(new_site) -> Watched:
    site = new_site()
    return Watched(site, site.root)


def test_each_event_of_a_watcher_makes_one_run_over_restarts(watched):
    site = watched.site
    with watched.up() as up:
        watched.drop("a")
        watched.until_read("a")
        [run] = site.runs("reads_mail")
        [returned] = site.json("tasks", "xcom", "reads_mail", run["run_id"], "read")
        assert returned["value"] == [{"from_trigger": True, "payload": {"name": "a"}}]
        watched.until_read("a", dag_id="reads_post")
        [host] = watched.marks("begin")
        up.kill()
        watched.drop("b")
        site.until(lambda: not any(watched.inbox.iterdir()), "the trigger has fired without a scheduler")
        with site.up():
            watched.until_read("a", "b")
            assert watched.marks("begin") == [host], "the two watchers' trigger runs on in its host"
            os.kill(host, signal.SIGKILL)
            site.until(lambda: len(watched.marks("begin")) == 2, "the trigger runs again")
            watched.drop("c")
            watched.until_read("a", "b", "c")
    assert not psutil.pid_exists(host)
    watched.drop("d")
    with site.up():
        watched.until_read("a", "b", "c", "d")
    assert watched.names("reads_post") == ["a", "b", "c", "d"]
    for asset in ("mail", "post"):
        [kept] = site.json("assets", "show", asset)["state"]
        assert (kept["key"], kept["value"]) == ("seen", ["a", "b", "c", "d"])


SHARED = """
    import asyncio
    from pathlib import Path
    from airflow.sdk import DAG, Asset, AssetWatcher, task
    from airflow.triggers.base import BaseEventTrigger, TriggerEvent
    from airflow.triggers.shared_stream import SharedStreamProducer

    INBOX = Path("@inbox@")

    class Inbox(SharedStreamProducer):
        async def open_stream(self):
            with (INBOX.parent / "opened").open("a") as opened:
                opened.write("x")
            seen = set()
            while True:
                for path in sorted(set(INBOX.iterdir()) - seen):
                    seen.add(path)
                    yield path.name, path
                await asyncio.sleep(0.02)

        async def advance(self, batch):
            for path, outcome in batch:
                if outcome.is_clean:
                    path.unlink()

    class Named(BaseEventTrigger):
        def __init__(self, prefix):
            super().__init__()
            self.prefix = prefix

        def serialize(self):
            return f"{__name__}.Named", {"prefix": self.prefix}

        def shared_stream_key(self):
            return ("inbox", str(INBOX))

        @classmethod
        def create_shared_stream_producer(cls, kwargs):
            return Inbox()

        async def filter_shared_stream(self, shared_stream):
            async for name in shared_stream:
                if name.startswith(self.prefix):
                    yield TriggerEvent({"name": name})

    for prefix in ("bill", "card"):
        asset = Asset(prefix, watchers=[AssetWatcher(name="inbox", trigger=Named(prefix))])
        with DAG(f"reads_{prefix}", schedule=[asset]):
            task(task_id="read")(lambda: None)()
"""


def test_watchers_share_one_source_which_is_told_what_is_stored(new_site):
    site = new_site()
    inbox = site.root / "inbox"
    inbox.mkdir()
    site.write("shared.py", SHARED.replace("@inbox@", str(inbox)))

    def events(asset):
        return [event["extra"]["payload"]["name"] for event in site.json("assets", "events", asset)]

    with site.up() as up:
        site.wait_for_dag("reads_card")
        for name in ("bill 1", "card 1", "junk"):
            (inbox / name).touch()
        site.until(lambda: not any(inbox.iterdir()), "all are handled, and so confirmed")
        assert (events("bill"), events("card")) == (["bill 1"], ["card 1"])
        assert (site.root / "opened").read_text() == "x"
        up.kill()
        (inbox / "bill 2").touch()
    with site.up():
        site.until(lambda: not any(inbox.iterdir()), "what came meanwhile is confirmed once it is stored")
        assert sorted(events("bill")) == ["bill 1", "bill 2"]


def test_a_watcher_that_fails_is_shown_and_started_again(watched):
    site = watched.site
    with watched.up() as up:
        watched.drop("poison")
        watched.until_it_is("failed")
        why = site.run("why", "reads_mail").stdout
        assert "- assets: it waits for events of mail" in why
        assert "- watcher: the watcher 'inbox' of asset 'mail' failed at " in why
        assert "ValueError: poisoned" in why
        assert "inbox: failed (ValueError: poisoned)" in site.run("assets", "list").stdout
        assert "watcher.failed" in up.log
        watched.drop("a")
        watched.until_read("a")
        watched.until_it_is("running")


def test_a_watcher_runs_only_while_an_unpaused_dag_waits_for_its_asset(watched):
    site = watched.site
    with watched.up():
        site.run("dags", "pause", "reads_mail")
        assert (watched.states(), watched.states("post")) == (["stopped"], ["running"])
        site.run("dags", "pause", "reads_post")
        site.until(lambda: len(watched.marks("cleanup")) == 1, "the trigger is cleaned up")
        site.run("dags", "unpause", "reads_mail")
        watched.drop("a")
        watched.until_read("a")
        site.write("watched.py", WATCHED.replace("@inbox@", str(watched.inbox)).replace("watchers=[", "watchers=[1, "))
        site.until(lambda: "watchers is a list" in site.run("dags", "errors").stdout, "the file is wrong")
        watched.until_it_is("running")
        site.write("watched.py", 'from airflow.sdk import DAG, Asset\nDAG("reads_mail", schedule=[Asset("mail")])\n')
        watched.until_it_is()
        site.until(lambda: len(watched.marks("cleanup")) == 2, "the trigger of no watcher is stopped")
    assert site.runs("reads_post") == []


def test_the_watchers_of_a_scheduler_that_is_gone_move_to_the_other(tmp_path, new_postgres_database):
    database = new_postgres_database()
    pair = [Watched(Site(tmp_path / name, database), tmp_path) for name in ("one", "other")]
    for watched in pair:
        watched.site.env |= LEASE
    with ExitStack() as stack:
        served = start_both(type("Sites", (), {"sites": [watched.site for watched in pair]}), stack)
        pair[0].site.wait_for_dag("reads_mail")
        pair[0].until_it_is("running")
        rows = {row["id"]: Path(row["home"]).parent.name for row in pair[0].site.json("schedulers", "list")}
        [owner] = {watcher["scheduler_id"] for watcher in pair[0].site.json("assets", "show", "mail")["watchers"]}
        first = 0 if rows[owner] == "one" else 1
        left = pair[1 - first]
        served[first].kill()
        left.site.until(lambda: len(left.marks("begin")) == 2, "the other runs the trigger", seconds=60)
        left.drop("a")
        left.until_read("a")
        for watched in pair:
            watched.site.end_everything()
