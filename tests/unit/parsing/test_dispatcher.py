"""The dispatcher's parses: their times, their order, and their number at once."""

import os
from datetime import timedelta

import anyio
from structlog.testing import capture_logs

from asynsched.errors import ParseCrashed
from asynsched.parsing.files import SECOND_CHANCES
from asynsched.settings import WatchSettings
from tests.unit.parsing.dispatching import LONG_AGO, in_virtual_time


def test_a_start_parses_only_what_is_new_changed_or_uses_a_changed_module(folder):
    first = folder.dispatching
    first.write("same.py", "dag same")
    first.write("edited.py", "dag edited")
    first.write("gone.py", "dag gone")
    first.write("user.py", "dag user", "imports helper.py")
    first.write("loser.py", "dag loser", "imports lost.py")
    first.write("flaky.py", "error exception")
    first.write("refused.py", "error unreadable")
    first.write("broken.py", "error syntax")
    first.write("helper.py", "one")
    first.write("lost.py", "one")
    (first.root / "data.py").write_text("nothing of interest")

    async def first_start():
        async with first.running():
            await first.scan()
            assert "data.py" not in await first.idle()
            assert set(await first.dags()) == {"same", "edited", "gone", "user", "loser"}
            errors = {"flaky.py": "exception", "refused.py": "unreadable", "broken.py": "syntax"}
            assert await first.errors() == errors

    async def second_start():
        second = folder.new()
        second.write("edited.py", "dag edited", "more")
        second.write("helper.py", "two")
        (second.root / "lost.py").unlink()
        (second.root / "gone.py").unlink()
        second.write("new.py", "dag new")
        async with second.running():
            await second.scan()
            parsed = await second.idle()
            again = {"edited.py", "user.py", "loser.py", "flaky.py", "refused.py", "new.py", "helper.py"}
            assert set(parsed) == again
            assert len(parsed) == len(again)
            assert set(await second.dags()) == {"same", "edited", "user", "loser", "new"}
            assert (await second.errors())["loser.py"] == "import"

    async def third_start():
        (folder.dispatching.root / "loser.py").unlink()
        (folder.dispatching.root / "flaky.py").unlink()
        (folder.dispatching.root / "refused.py").unlink()
        third = folder.new()
        async with third.running():
            await third.scan()
            assert await third.idle() == []

    async def start_with_another_zone():
        fourth = folder.new(default_timezone="Europe/Berlin")
        async with fourth.running():
            await fourth.scan()
            assert {"same.py", "user.py", "new.py"} <= set(await fourth.idle())

    for start in (first_start, second_start, third_start, start_with_another_zone):
        folder.run(start)


@in_virtual_time
async def test_touching_a_file_parses_it_again_only_if_its_error_may_have_healed(folder):
    site = folder.dispatching
    site.write("good.py", "dag good")
    site.write("flaky.py", "error import")
    site.write("wrong.py", "error syntax")
    async with site.running():
        await site.scan()
        await site.idle()
        for name in ("good.py", "flaky.py", "wrong.py"):
            os.utime(site.root / name, (LONG_AGO + 60, LONG_AGO + 60))
            await site.tell(name)
        assert await site.idle() == ["flaky.py"]
        await site.tell("flaky.py")
        assert await site.idle() == []


@in_virtual_time
async def test_a_file_whose_parse_was_killed_gets_some_more_chances(folder):
    site = folder.dispatching
    site.write("killed.py", "dag killed")
    site.parser.failures["killed.py"] = ParseCrashed("killed.py", "died")
    site.write("unlucky.py", "error memory")
    site.write("wrong.py", "error exception")
    async with site.running():
        await site.scan()
        assert sorted(await site.idle()) == ["killed.py", "unlucky.py", "wrong.py"]
        await folder.clock.sleep(SECOND_CHANCES[0] * 1.1)
        assert sorted(await site.idle()) == ["killed.py", "unlucky.py"]
        site.write("unlucky.py", "dag unlucky")
        await site.tell("unlucky.py")
        assert await site.idle() == ["unlucky.py"]
        await folder.clock.sleep(timedelta(days=1))
        assert await site.idle() == ["killed.py"] * (len(SECOND_CHANCES) - 1)


@in_virtual_time
async def test_a_file_that_changes_during_its_parse_is_parsed_once_more(folder):
    site = folder.dispatching
    async with site.running():
        await site.scan()
        site.parser.gates["slow.py"] = gate = anyio.Event()
        site.write("slow.py", "dag slow")
        await site.tell("slow.py")
        await folder.clock.sleep(timedelta(seconds=1))
        for version in ("two", "three", "four"):
            site.write("slow.py", f"dag {version}")
            await site.tell("slow.py")
            await folder.clock.sleep(timedelta(seconds=1))
        assert site.parser.parsed == ["slow.py"]
        assert not site.dispatcher.is_idle
        gate.set()
        assert await site.idle() == ["slow.py", "slow.py"]
        assert set(await site.dags()) == {"four"}


@in_virtual_time
async def test_a_slow_file_delays_no_other_and_few_are_parsed_at_once(folder):
    site = folder.new(processes=3)
    site.parser.gates["slow.py"] = gate = anyio.Event()
    site.write("slow.py", "dag slow")
    for number in range(20):
        site.write(f"fast_{number}.py", f"dag fast_{number}")
    async with site.running():
        await site.scan()
        await folder.clock.sleep(timedelta(seconds=10))
        assert len(await site.dags()) == 20
        gate.set()
        await site.idle()
        assert "slow" in await site.dags()
        assert site.parser.most_at_once == 3


@in_virtual_time
async def test_a_long_parse_is_logged_once_and_is_in_health(folder):
    site = folder.dispatching
    site.parser.gates["slow.py"] = gate = anyio.Event()
    for name in ("slow", "quick"):
        site.write(f"{name}.py", f"dag {name}")
    async with site.running():
        with capture_logs() as logs:
            await site.scan()
            await folder.clock.sleep(timedelta(seconds=1.9))
            assert site.dispatcher.under_way.long_ones() == ()
            await folder.clock.sleep(timedelta(seconds=8.1))
            [long] = site.dispatcher.under_way.long_ones()
            gate.set()
            await site.idle()
    assert (long.file, round(long.seconds), long.limit_seconds) == ("slow.py", 10, 30)
    assert site.dispatcher.under_way.long_ones() == ()
    told = [(line["file"], line["seconds"], line["limit_seconds"]) for line in logs if line["event"] == "file.parsing"]
    assert told == [("slow.py", 2, 30)]


@in_virtual_time
async def test_changed_files_come_before_those_of_the_start(folder):
    site = folder.new(processes=1)
    site.parser.gates["a.py"] = gate = anyio.Event()
    for name in "abcdefg":
        site.write(f"{name}.py", f"dag {name}")
    async with site.running():
        await site.scan()
        await folder.clock.sleep(timedelta(seconds=1))
        site.write("f.py", "dag f", "edited")
        await site.tell("g.py", "f.py")
        await folder.clock.sleep(timedelta(seconds=1))
        gate.set()
        assert await site.idle() == ["a.py", "g.py", "f.py", "b.py", "c.py", "d.py", "e.py"]


@in_virtual_time
async def test_changed_files_come_before_those_whose_parses_are_prepared_already(folder):
    site = folder.new(processes=1)
    site.parser.gates["d.py"] = gate = anyio.Event()
    for name in "abcdefgh":
        site.write(f"{name}.py", f"dag {name}")
    async with site.running():
        await site.scan()
        await folder.clock.sleep(timedelta(seconds=1))
        for name in ("g", "saved", "too"):
            site.write(f"{name}.py", f"dag {name}_edited")
            await site.tell(f"{name}.py")
        await folder.clock.sleep(timedelta(seconds=1))
        gate.set()
        order = ["a", "b", "c", "d", "g", "saved", "too", "e", "f", "h"]
        assert list(dict.fromkeys(await site.idle())) == [f"{name}.py" for name in order]
        assert {"g_edited", "saved_edited"} <= (await site.dags()).keys()


@in_virtual_time
async def test_an_edited_module_has_exactly_the_files_parsed_that_import_it(folder):
    site = folder.dispatching
    site.write("lib/helper.py", "one")
    site.write("user.py", "dag user", "imports lib/helper.py")
    site.write("other.py", "dag other")
    site.write("waiting.py", "dag waiting", "imports later.py")
    async with site.running():
        await site.scan("lib/helper.py")
        await site.idle()
        assert await site.errors() == {"waiting.py": "import"}
        site.write("lib/helper.py", "two")
        await site.tell("lib/helper.py", is_ignored=True)
        assert await site.idle() == ["user.py"]
        await site.tell("lib/helper.py", is_ignored=True)
        assert await site.idle() == []
        site.write("later.py", "a module that appears")
        await site.tell("later.py", is_ignored=True)
        assert await site.idle() == ["waiting.py"]
        assert set(await site.dags()) == {"user", "other", "waiting"}
        (site.root / "later.py").unlink()
        await site.tell("later.py", removed=True)
        assert await site.idle() == ["waiting.py"]
        assert await site.errors() == {"waiting.py": "import"}
        assert "waiting" in await site.dags()


@in_virtual_time
async def test_a_module_edited_while_its_importer_is_parsed_is_not_missed(folder):
    site = folder.dispatching
    site.write("helper.py", "one")
    async with site.running():
        await site.scan("helper.py")
        site.parser.gates["user.py"] = gate = anyio.Event()
        site.write("user.py", "dag user", "imports helper.py")
        await site.tell("user.py")
        await folder.clock.sleep(timedelta(seconds=1))
        site.write("helper.py", "two")
        await site.tell("helper.py", is_ignored=True)
        await folder.clock.sleep(timedelta(seconds=1))
        gate.set()
        assert await site.idle() == ["user.py", "user.py"]
        site.parser.failures["user.py"] = ParseCrashed("user.py", "died")
        site.write("helper.py", "three")
        await site.tell("helper.py", is_ignored=True)
        assert await site.idle() == ["user.py"]
        assert await site.errors() == {"user.py": "crash"}


@in_virtual_time
async def test_unchanged_files_are_parsed_and_logged_at_their_intervals(folder):
    site = folder.new(watch=WatchSettings(min_file_process_interval=60, print_stats_interval=100))
    site.write("one.py", "dag one")
    site.write("two.py", "dag two")
    with capture_logs() as logs:
        async with site.running():
            await site.scan()
            await site.idle()
            await folder.clock.sleep(timedelta(seconds=59))
            assert await site.idle() == []
            await folder.clock.sleep(timedelta(seconds=130))
            assert sorted(await site.idle()) == ["one.py", "one.py", "one.py", "two.py", "two.py", "two.py"]
    statistics = [(log["file"], log["n_dags"]) for log in logs if log["event"] == "file.statistics"]
    assert statistics == [("one.py", 1), ("two.py", 1)]


@in_virtual_time
async def test_a_parse_is_of_an_edit_if_the_file_or_a_module_changes_or_a_user_asks(folder):
    """Only then is it likely that a DAG gets a new version: a second parse begins beside the first."""
    site = folder.new(watch=WatchSettings(min_file_process_interval=60))
    site.write("helper.py", "one")
    for name in ("saved", "uses", "asked", "other"):
        site.write(f"{name}.py", f"dag {name}", *(["imports helper.py"] if name == "uses" else []))
    async with site.running():
        await site.scan()
        await site.idle()
        await folder.clock.sleep(timedelta(seconds=61))
        assert {"saved.py", "uses.py", "asked.py", "other.py"} <= set(await site.idle()), "all, for the interval"
        assert site.parser.edited == []
        site.write("saved.py", "dag saved", "more")
        site.write("helper.py", "two")
        await site.tell("saved.py", "helper.py")
        await site.tell("asked.py", forced=True)
        assert "other.py" not in await site.idle()
        assert {"saved.py", "uses.py", "asked.py"} <= set(site.parser.edited)


@in_virtual_time
async def test_a_stop_ends_the_parses_that_are_under_way(folder):
    site = folder.dispatching
    site.parser.gates["slow.py"] = anyio.Event()
    site.write("slow.py", "dag slow")
    async with site.running():
        await site.scan()
        await folder.clock.sleep(timedelta(seconds=1))
        assert site.parser.under_way["slow.py"] == 1
    assert site.parser.under_way["slow.py"] == 0
