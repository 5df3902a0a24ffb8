"""The results of parses that the dispatcher stores, and its messages."""

import os
from datetime import timedelta
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from asynsched.errors import ParseTimeout
from asynsched.parsing.dispatcher import BATCHING_DELAY
from asynsched.store.dags.parse_results import DagDefaults, Outcome, store_outcomes
from tests.support.flaky_database import FlakyDatabase
from tests.support.passing_database import PassingDatabase
from tests.unit.parsing.dispatching import LONG_AGO, START, Dispatching, in_virtual_time


class CountingDatabase(PassingDatabase):
    """A database that counts its transactions, each of which takes its time: files are parsed meanwhile."""

    n_writes = 0

    async def write(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        self.n_writes += 1
        await anyio.sleep(0.025)
        return await super().write(query, *args, **kwargs)


@in_virtual_time
async def test_a_start_stores_in_few_transactions_and_a_single_file_at_once(folder):
    database = CountingDatabase(folder.database)
    dispatching = folder.new(database=database)
    for number in range(60):
        dispatching.write(f"file_{number}.py", f"dag dag_{number}")
    async with dispatching.running():
        await dispatching.scan()
        assert len(await dispatching.idle()) == 60
        assert len(await dispatching.dags()) == 60
        assert database.n_writes <= 5
        dispatching.write("saved.py", "dag saved")
        before = folder.clock.now()
        await dispatching.tell("saved.py")
        assert await dispatching.idle() == ["saved.py"]
        assert folder.clock.now() - before < BATCHING_DELAY
        assert "saved" in await dispatching.dags()


@in_virtual_time
async def test_an_outcome_does_not_wait_long_for_a_parse_that_hangs(folder):
    dispatching = folder.dispatching
    for name in ("a", "b", "c", "d"):
        dispatching.write(f"{name}.py", f"dag {name}")
    dispatching.parser.gates = {"b.py": anyio.Event(), "c.py": anyio.Event()}
    async with dispatching.running():
        await dispatching.scan()
        await folder.clock.sleep(2 * BATCHING_DELAY)
        assert await dispatching.dags() == {"a": "a.py"}
        for gate in dispatching.parser.gates.values():
            gate.set()
        await dispatching.idle()
        assert len(await dispatching.dags()) == 4


@in_virtual_time
async def test_a_dag_leaves_only_on_proof(folder):
    site = folder.dispatching
    for name in ("deleted", "fails", "broken", "fleeting", "emptied", "ignored", "stays"):
        site.write(f"{name}.py", f"dag {name}")
    async with site.running():
        await site.scan()
        await site.idle()
        site.write("fails.py", "error syntax")
        # The rest of this one mentions no DAG; only a parse can tell whether it has one.
        (site.root / "broken.py").write_text("error syntax")
        os.utime(site.root / "broken.py", (LONG_AGO, LONG_AGO))
        site.parser.gates["fleeting.py"] = gate = anyio.Event()
        site.write("fleeting.py", "dag fleeting", "error exception")
        # This file is being written: it is empty now, and complete a second later.
        (site.root / "emptied.py").write_text("")
        os.utime(site.root / "emptied.py", (START.timestamp(), START.timestamp()))
        await site.tell("fails.py", "broken.py", "fleeting.py", "emptied.py", "stays.py")
        await site.tell("deleted.py", "stays.py", removed=True)
        await site.tell("ignored.py", is_ignored=True)
        (site.root / "deleted.py").unlink()
        await folder.clock.sleep(timedelta(seconds=0.5))
        assert set(await site.dags()) == {"fails", "broken", "fleeting", "emptied", "stays"}
        (site.root / "fleeting.py").unlink()
        gate.set()
        await site.idle()
        assert set(await site.dags()) == {"fails", "broken", "stays"}
        assert await site.errors() == {"fails.py": "syntax", "broken.py": "syntax"}


@pytest.mark.parametrize("scheduler", [None, "one"], ids=["alone", "beside others"])
@in_virtual_time
async def test_no_dag_leaves_by_a_parse_that_read_a_file_being_written(folder, scheduler):
    site = folder.new(scheduler=scheduler)
    read = site.parser._read

    def read_while_it_is_written(path: str) -> Any:
        site.parser._read = read
        file = site.root / path
        text = file.read_text()
        file.write_text("")
        report = read(path)
        file.write_text(text)  # as it was looked at: nothing but the parse tells that it was empty
        os.utime(file, (LONG_AGO, LONG_AGO))
        return report

    site.write("saved.py", "dag saved", "dag left out")
    async with site.running():
        await site.scan()
        await site.idle()
        site.channels.dag_changes.take()
        site.parser._read = read_while_it_is_written
        site.write("saved.py", "dag saved")
        await site.tell("saved.py")
        assert await site.idle() == ["saved.py", "saved.py"]
        assert set(await site.dags()) == {"saved"}
        announced = [message.dag_id for message in site.channels.dag_changes.take()]
        assert sorted(announced) == ["left", "saved"]  # a new version, once: it has not left before


@in_virtual_time
async def test_nothing_leaves_while_the_folder_itself_is_away(folder):
    site = folder.dispatching
    site.write("kept.py", "dag kept")
    async with site.running():
        await site.scan()
        await site.idle()
        away = site.root.rename(site.root.with_name("unmounted"))
        await site.tell("kept.py", removed=True)
        await folder.clock.sleep(timedelta(seconds=30))
        assert set(await site.dags()) == {"kept"}
        away.rename(site.root)
        await site.idle()
        assert set(await site.dags()) == {"kept"}


@pytest.mark.parametrize("scheduler", [None, "one"], ids=["alone", "beside others"])
@in_virtual_time
async def test_what_cannot_be_read_is_an_error_of_that_file_alone(folder, scheduler):
    site = folder.new(scheduler=scheduler)
    site.write("good.py", "dag good")
    (site.root / "broken.py").symlink_to("nowhere.py")
    (site.root / "loop.py").symlink_to("loop.py")
    os.mkfifo(site.root / "pipe.py")
    (site.root / "huge.py").write_bytes(b"airflow dag" + bytes(17 * 1024**2))
    os.close(os.open(os.fsencode(site.root) + b"/odd\xff.py", os.O_CREAT, 0o600))
    async with site.running():
        await site.scan()
        await site.idle()
        unreadable = {"broken.py", "loop.py", "pipe.py", "huge.py", "odd\\xff.py"}
        assert await site.errors() == dict.fromkeys(unreadable, "unreadable")
        assert set(await site.dags()) == {"good"}
        (site.root / "broken.py").unlink()
        site.write("broken.py", "dag mended")
        (site.root / os.fsdecode(b"odd\xff.py")).unlink()
        await site.tell("broken.py")
        await site.tell(os.fsdecode(b"odd\xff.py"), removed=True)
        await site.idle()
        assert set(await site.errors()) == unreadable - {"broken.py", "odd\\xff.py"}
        assert "mended" in await site.dags()


async def write_two_files_of_one_dag(site: Dispatching) -> None:
    """Give the first of two files a DAG that the second is refused, and remove it."""
    site.write("first.py", "dag same")
    await site.scan()
    await site.idle()
    site.write("second.py", "dag same")
    await site.tell("second.py")
    await site.idle()
    assert (await site.dags(), await site.errors()) == ({"same": "first.py"}, {"second.py": "dag"})
    (site.root / "first.py").unlink()


@in_virtual_time
async def test_a_dag_id_of_two_files_goes_to_the_other_when_the_first_leaves(folder):
    site = folder.dispatching
    async with site.running():
        await write_two_files_of_one_dag(site)
        await site.tell("first.py", removed=True)
        assert await site.idle() == ["second.py"]
        assert (await site.dags(), await site.errors()) == ({"same": "second.py"}, {})


@pytest.mark.parametrize("scheduler", [None, "one"], ids=["alone", "beside others"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["the answer is lost", "the scheduler is killed"])
@in_virtual_time
async def test_a_dag_id_goes_to_the_other_file_though_the_news_was_lost(folder, scheduler, is_killed):
    flaky = FlakyDatabase(folder.database, after=True)
    site = folder.new(scheduler=scheduler, database=flaky)
    async with site.running():
        await write_two_files_of_one_dag(site)
        if not is_killed:
            flaky.away = {"store_outcomes"}
            await site.tell("first.py", removed=True)
            assert await site.idle() == ["second.py"]
    if is_killed:
        gone = [Outcome("first.py")]
        await folder.database.write(store_outcomes, gone, now=START, defaults=DagDefaults(16, paused=False))
        following = folder.new(scheduler=scheduler)
        async with following.running():
            await following.scan()
            assert await following.idle() == ["second.py"]
    assert (await site.dags(), await site.errors()) == ({"same": "second.py"}, {})


@in_virtual_time
async def test_each_distinct_error_is_logged_once_and_again_after_a_restart(folder):
    async def failures(site) -> list[str]:
        with capture_logs() as logs:
            async with site.running():
                await site.scan()
                await site.idle()
                for kind in ("syntax", "exception", "exception"):
                    site.write("bad.py", f"error {kind}", "edited" * len(site.parser.parsed))
                    await site.tell("bad.py", forced=True)
                    await site.idle()
                site.parser.failures["bad.py"] = ParseTimeout("bad.py", 60)
                site.dispatcher.reparse("bad.py")
                assert await site.idle() == ["bad.py"]
        return [log["message"] for log in logs if log["event"] == "file.failed" and log["log_level"] == "warning"]

    site = folder.dispatching
    site.write("bad.py", "error syntax")
    assert await failures(site) == ["bad.py has an error", "bad.py: parsing took longer than 60 s"]
    with capture_logs() as logs:
        site.write("bad.py", "error syntax")
        for _ in range(2):
            site = folder.new()
            async with site.running():
                await site.scan()
                await site.idle()
    failed = [(log["file"], log["message"]) for log in logs if log["event"] == "file.failed"]
    assert failed == [("bad.py", "bad.py has an error")] * 2


@in_virtual_time
async def test_a_lost_database_is_waited_for_and_no_result_is_lost(folder):
    database = FlakyDatabase(folder.database, fails_at=[n for n in range(30) if n % 3])
    database.arm()
    site = folder.new(database=database)
    for number in range(5):
        site.write(f"{number}.py", f"dag d{number}")
    async with site.running():
        await site.scan()
        assert len(await site.idle()) == 5
    assert len(await folder.new().dags()) == 5
