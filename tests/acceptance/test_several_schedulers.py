"""Two `asynsched up`, each with a home of its own, on one PostgreSQL database."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from asynsched import __version__
from asynsched.store.engines.opening import HEAD
from tests.integration.remote.machines import free_port
from tests.support.newer import make_newer
from tests.support.up import Site, Up

COLD = True

LEASE = {
    "ASYNSCHED_LEASE__DURATION": "3",
    "ASYNSCHED_LEASE__RENEW_INTERVAL": "1",
    "ASYNSCHED_LEASE__GRACE": "1",
    "ASYNSCHED_LEASE__KILL_TIME": "1",
    "ASYNSCHED_LEASE__OUTAGE": "0",
    "ASYNSCHED_LEASE__SHARED_OUTAGE": "0",
    "ASYNSCHED_SHUTDOWN_GRACE": "1",
}
WAITER = """
    import os, time
    from pathlib import Path
    from asynsched import DAG, task, get_current_context

    def mark(*words):
        line = " ".join([*words, str(os.getpid())]) + "\\n"
        with open(os.environ["MARKS"], "a") as marks:
            marks.write(line)

    def is_alive(pid):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    with DAG("waiter", schedule=None, on_success_callback=lambda context: mark("callback", context["run_id"])):

        @task
        def waits():
            run_id = get_current_context()["run_id"]
            lines = [line.split() for line in Path(os.environ["MARKS"]).read_text().splitlines()]
            before = [words for words in lines if words[:2] == ["begin", run_id]]
            mark("overlap" if any(is_alive(int(words[2])) for words in before) else "begin", run_id)
            while not Path(os.environ["GATE"]).exists():
                time.sleep(0.01)
            mark("end", run_id)

        waits()
"""


class Pair:
    """Two sites that share a database and their DAGs."""

    def __init__(self, root: Path, database: str) -> None:
        self.sites = [Site(root / name, database) for name in ("one", "other")]
        self.gate, self.marks_path = root / "gate", root / "marks"
        self.marks_path.touch()
        for site in self.sites:
            site.env |= LEASE | {"GATE": str(self.gate), "MARKS": str(self.marks_path)}
            site.write("waiter.py", WAITER)

    def marks(self, kind: str) -> list[str]:
        """Return the runs of the marks of a kind, in their order."""
        lines = [line.split() for line in self.marks_path.read_text().splitlines()]
        return [words[1] for words in lines if words[0] == kind]

    def schedulers(self) -> dict[str, dict]:
        """Return the command line's view of each serving scheduler, by the name of its site."""
        rows = self.sites[0].json("schedulers", "list")
        return {Path(row["home"]).parent.name: row for row in rows if row["state"] == "serving"}

    def states(self) -> set[str]:
        return {run["state"] for run in self.sites[0].runs("waiter")}

    def trigger(self, *run_ids: str) -> None:
        for run_id in run_ids:
            self.sites[0].run("dags", "trigger", "waiter", "--run-id", run_id)


@pytest.fixture
def pair(tmp_path, new_postgres_database):
    made = Pair(tmp_path, new_postgres_database())
    yield made
    for site in made.sites:
        site.end_everything()


def start_both(pair: Pair, stack: ExitStack, *flags: str) -> list[Up]:
    served: list[Up] = []
    for site in pair.sites:
        served.append(stack.enter_context(site.up(*flags)))
    return served


def meet(pair: Pair, one: Up, other: Up) -> None:
    """Wait until each of the two knows of the other, and so leaves it the runs for which it has no room itself."""
    pair.sites[0].until(lambda: len(pair.schedulers()) == 2, "both are registered")
    ids = {name: row["id"] for name, row in pair.schedulers().items()}
    for site, served, peer in ((pair.sites[0], one, "other"), (pair.sites[1], other, "one")):
        site.until(lambda: f"found={ids[peer]}" in served.log, "it has found its peer")  # noqa: B023 - called at once


def spread(pair: Pair, one: Up, other: Up) -> None:
    """Start two waiting tasks on each of the two."""
    pair.sites[0].wait_for_dag("waiter")
    meet(pair, one, other)
    pair.trigger("r0", "r1", "r2", "r3")
    first = pair.sites[0]
    first.until(lambda: [row["n_tasks"] for row in pair.schedulers().values()] == [2, 2], "each runs two tasks")
    first.until(lambda: len(set(pair.marks("begin"))) == 4, "all tasks wait")


def test_tasks_of_a_killed_scheduler_move_to_the_other_and_never_run_twice(pair):
    with ExitStack() as stack:
        one, other = start_both(pair, stack, "--parallelism", "2")
        spread(pair, one, other)
        one.kill()
        pair.sites[1].until(lambda: "runs.taken_over" in other.log, "the other has its runs", seconds=60)
        assert "scheduler.gone" in other.log
        assert list(pair.schedulers()) == ["other"]
        assert pair.states() == {"running"}
        pair.gate.touch()
        pair.sites[1].until(lambda: pair.states() == {"success"}, "the other ends all runs", seconds=60)
        assert pair.marks("overlap") == []
        assert sorted(pair.marks("end")) == ["r0", "r1", "r2", "r3"]
        pair.sites[1].until(lambda: len(pair.marks("callback")) == 4, "each run has called back")


def test_a_scheduler_that_is_stopped_hands_its_runs_to_the_other_at_once(pair):
    for site in pair.sites:
        site.env["ASYNSCHED_LEASE__DURATION"] = "30"  # none is to lapse, however busy the machine is
    with ExitStack() as stack:
        one, other = start_both(pair, stack, "--parallelism", "2")
        spread(pair, one, other)
        one.terminate()
        assert one.wait() == 0
        # Without waiting for any lease: interrupted, not failed, and no try is used up.
        pair.gate.touch()
        pair.sites[1].until(lambda: pair.states() == {"success"}, "the other ends all runs", seconds=60)
        assert "scheduler.gone" not in other.log
        assert pair.marks("overlap") == []
        tries = [task["try_number"] for run in ("r0", "r1", "r2", "r3") for task in
                 pair.sites[1].json("tasks", "list", "waiter", run)]  # fmt: skip
        assert tries == [1, 1, 1, 1]


def test_two_schedulers_that_start_at_once_migrate_once_and_parse_once(tmp_path, postgres_server):
    pair = Pair(tmp_path, postgres_server.new_database(migrated=False))
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda site: stack.enter_context(site.up()), pair.sites)
        pair.sites[0].wait_for_dag("waiter")
        assert len(pair.schedulers()) == 2
        for site in pair.sites:
            site.write("second.py", WAITER.replace("waiter", "second"))
        pair.sites[0].wait_for_dag("second")
        pair.sites[0].run("dags", "reparse", "waiter.py")
        pair.sites[0].until(lambda: (one.log + other.log).count("file=waiter.py") == 2, "it is parsed once more")
        assert (one.log + other.log).count("file=second.py") == 1


def test_an_older_and_a_newer_version_serve_side_by_side_for_one_schema_step(pair, tmp_path):
    older, newer = pair.sites
    newer.env["PYTHONPATH"] = str(make_newer(tmp_path, 1))
    for site in pair.sites:
        site.env |= {"ASYNSCHED_LEASE__DURATION": "30", "ASYNSCHED_PARALLELISM": "1"}
    with ExitStack() as stack:
        # The newer one migrates while the older one has a task running.
        first = stack.enter_context(older.up())
        older.wait_for_dag("waiter")
        pair.trigger("r0")
        older.until(lambda: pair.marks("begin") == ["r0"], "the older one runs a task")
        second = stack.enter_context(newer.up())
        assert newer.run("db", "check").stdout.endswith(f"{int(HEAD) + 1:04}.\n")
        meet(pair, first, second)
        # They share the runs: the older one is full.
        pair.trigger("r1")
        newer.until(lambda: pair.marks("begin") == ["r0", "r1"], "the newer one runs the other")
        served = pair.schedulers()
        assert {name: (row["version"], row["n_tasks"]) for name, row in served.items()} == {
            "one": (__version__, 1), "other": ("99.1", 1),
        }  # fmt: skip
        pair.gate.touch()
        older.until(lambda: pair.states() == {"success"}, "both have ended their runs", seconds=60)
        pair.gate.unlink()
        first.terminate()
        assert first.wait() == 0, first.log
        # The older one starts beside the newer one, and is upgraded while it has a task running.
        again = stack.enter_context(older.up())
        meet(pair, again, second)
        pair.trigger("r2", "r3")
        older.until(lambda: len(set(pair.marks("begin"))) == 4, "each runs another one")
        again.kill()
        older.env |= {"PYTHONPATH": newer.env["PYTHONPATH"]}
        upgraded = stack.enter_context(older.up())
        pair.gate.touch()
        older.until(lambda: pair.states() == {"success"}, "all runs have ended", seconds=60)
        assert "store.unavailable" not in first.log + second.log + again.log + upgraded.log
    assert sorted(pair.marks("begin")) == sorted(pair.marks("end")) == ["r0", "r1", "r2", "r3"], "no try was lost"
    # Two steps are too many.
    newer.env["PYTHONPATH"] = str(make_newer(tmp_path, 2))
    newer.run("db", "upgrade")
    del older.env["PYTHONPATH"]
    told = older.run("up", str(older.dags), code=None)
    assert told.code == 1
    assert f"has schema version '{int(HEAD) + 2:04}'" in told.stderr
    assert f"asynsched {__version__} knows versions up to {HEAD}. Use the asynsched that made it" in told.stderr


def test_a_second_scheduler_on_a_sqlite_database_is_refused(tmp_path):
    first = Site(tmp_path / "one")
    first.env["ASYNSCHED_WEB__LISTEN"] = f"127.0.0.1:{free_port()}"  # which the first one takes
    with first.up():
        told = first.run("up", str(first.dags), code=None)
        assert told.code == 1
        assert f"is already serving the home {first.home} (process" in told.stderr
        second = Site(tmp_path / "other", f"sqlite:///{first.home / 'asynsched.db'}")
        told = second.run("up", str(second.dags), code=None)
        assert told.code == 1
        assert "A scheduler is serving this database already: process" in told.stderr
        assert f"with the home {first.home}. A SQLite database has one scheduler" in told.stderr
