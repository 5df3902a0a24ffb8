"""What wakes a command that waits beside a scheduler."""

import threading
from contextlib import closing

import pytest

from asynsched.cli import changes
from asynsched.cli.changes import Changes
from asynsched.store.dags.dags import all_dag_ids
from asynsched.store.engines.opening import open_direct
from asynsched.store.runs.pools import set_pool

LONG = 60.0
SHORT = 0.02


@pytest.fixture(autouse=True)
def no_sweep(monkeypatch):
    monkeypatch.setattr(changes, "SWEEP_SECONDS", LONG)
    monkeypatch.setattr(changes, "AGAIN_SECONDS", LONG)


def test_a_commit_wakes_and_reads_and_other_files_do_not(tmp_path):
    url = f"sqlite:///{tmp_path}/asynsched.db"
    with open_direct(url) as other, open_direct(url) as own, closing(Changes(url)) as found:
        own.read(all_dag_ids)
        (tmp_path / "bell.sock").touch()
        assert not found.wait(SHORT)
        other.write(set_pool, "p", 1)
        assert found.wait(LONG)
        assert not found.wait(SHORT)


def test_a_log_that_grows_wakes_even_if_its_folder_is_new(tmp_path):
    log = tmp_path / "logs" / "run" / "attempt=1.log"
    with closing(Changes(f"sqlite:///{tmp_path}/asynsched.db")) as found:
        found.follow(log, tmp_path)
        log.parent.mkdir(parents=True)
        assert found.wait(LONG)
        found.follow(log, tmp_path)
        log.write_text("one\n")
        assert found.wait(LONG)
        (log.parent / "attempt=2.log").touch()
        assert not found.wait(SHORT)
        with log.open("a") as file:
            file.write("two\n")
        assert found.wait(LONG)


def test_a_log_in_the_folder_of_the_database_hides_no_commit(tmp_path):
    url = f"sqlite:///{tmp_path}/asynsched.db"
    with open_direct(url) as other, open_direct(url) as own, closing(Changes(url)) as found:
        own.read(all_dag_ids)
        found.follow(tmp_path / "logs" / "attempt=1.log", tmp_path)
        other.write(set_pool, "p", 1)
        assert found.wait(LONG)


def test_other_files_that_keep_changing_prolong_no_wait(tmp_path):
    with closing(Changes(f"sqlite:///{tmp_path}/asynsched.db")) as found:
        stopped = threading.Event()

        def write():
            while not stopped.wait(0.001):
                (tmp_path / "other").write_text("busy")

        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert not found.wait(SHORT)
        finally:
            stopped.set()
            writer.join()
