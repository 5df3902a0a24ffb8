"""Several schedulers that parse one folder: each change is parsed by one of them, and known to all."""

from datetime import timedelta

import anyio
import pytest

from asynsched.store.schedulers import register_scheduler, remove_scheduler
from tests.support.flaky_database import FlakyDatabase
from tests.unit.parsing.dispatching import LONG_AGO, START, Dispatching, Folder, in_virtual_time

FILES = [f"file_{number}.py" for number in range(6)]


async def two(folder: Folder) -> list[Dispatching]:
    """Return the dispatchers of two schedulers that are registered."""
    found = []
    for name in ("one", "other"):
        await folder.database.write(
            register_scheduler, scheduler_id=name, hostname=name, pid=1, home="", version="1", now=START,
            lease_until=START, takeover_seconds=30,
        )  # fmt: skip
        found.append(folder.new(scheduler=name))
    return found


async def idle(dispatchers: list[Dispatching]) -> list[str]:
    """Wait until all is parsed, and return the files that any of them has parsed."""
    found = [await dispatching.idle() for dispatching in dispatchers]
    return sorted(path for parsed in found for path in parsed)


@in_virtual_time
async def test_each_file_is_parsed_by_one_of_them_and_known_to_all(folder):
    dispatchers = await two(folder)
    one, other = dispatchers
    one.write("module.py", "nothing")
    for path in FILES:
        one.write(path, f"dag {path[:-3]}", "imports module.py")
    async with one.running(), other.running():
        for dispatching in dispatchers:
            await dispatching.scan()
        assert [path for path in await idle(dispatchers) if path != "module.py"] == FILES
        assert await one.dags() == {path[:-3]: path for path in FILES}

        one.write("file_0.py", "dag edited")
        for dispatching in dispatchers:
            await dispatching.tell("file_0.py")
        assert await idle(dispatchers) == ["file_0.py"]
        assert "edited" in await other.dags()

        one.write("module.py", "edited")
        for dispatching in dispatchers:
            await dispatching.tell("module.py")
        parsed = [path for path in await idle(dispatchers) if path != "module.py"]
        assert parsed == FILES[1:]

        for dispatching in dispatchers:
            await dispatching.tell("file_1.py", forced=True)
        assert await idle(dispatchers) == ["file_1.py"]

        for dispatching in dispatchers:
            await dispatching.scan()
        assert await idle(dispatchers) == []


@in_virtual_time
async def test_a_file_that_cannot_be_parsed_soon_is_left_to_others(folder):
    one, other = dispatchers = await two(folder)
    for path in FILES:
        one.write(path, f"dag {path[:-3]}")
    gates = {path: anyio.Event() for path in FILES}
    one.parser.gates = other.parser.gates = gates
    one.parser.seconds = dict.fromkeys(FILES, 1.0)
    async with one.running(), other.running():
        await one.scan()
        await folder.clock.sleep(timedelta(seconds=1))
        assert one.parser.parsed == FILES[:2], "their durations are not known yet"
        for path in FILES[:2]:
            gates[path].set()
        await folder.clock.sleep(timedelta(seconds=1))
        assert one.parser.parsed == FILES[:4]
        await other.scan()
        await folder.clock.sleep(timedelta(minutes=1))
        assert other.parser.parsed == FILES[4:]
        for gate in gates.values():
            gate.set()
        assert await idle(dispatchers) == FILES


@pytest.mark.parametrize("says_so", [True, False])
@in_virtual_time
async def test_what_one_was_parsing_when_it_went_is_parsed_by_another(folder, says_so):
    one, other = await two(folder)
    one.write("file_0.py", "dag d")
    one.parser.gates["file_0.py"] = anyio.Event()
    async with other.running():
        async with one.running():
            await one.scan()
            await folder.clock.sleep(timedelta(seconds=1))
            await other.scan()
            await folder.clock.sleep(timedelta(minutes=1))
            assert one.parser.parsed == ["file_0.py"]
            assert other.parser.parsed == []
        if says_so:
            await folder.database.write(remove_scheduler, "one", START)
        else:
            other.silent.add("one")
        assert await other.idle() == ["file_0.py"]
        assert await other.dags() == {"d": "file_0.py"}


@pytest.mark.parametrize(
    "queries", [{"claim_unclaimed"}, {"claim_unclaimed", "claim_from_the_gone"}, {"store_outcomes"}, {"drop_claims"}]
)
@in_virtual_time
async def test_a_scheduler_knows_its_own_claim_after_a_lost_answer(folder, queries):
    await two(folder)
    flaky = FlakyDatabase(folder.database, after=True)
    one = folder.new(scheduler="one", database=flaky)
    for path in FILES:
        one.write(path, f"dag {path[:-3]}")
    async with one.running():
        await one.scan()
        flaky.away = set(queries)
        assert sorted(await one.idle()) == FILES, "each is parsed once"
        assert await one.dags() == {path[:-3]: path for path in FILES}
        (one.root / "file_0.py").unlink()
        flaky.away = set(queries)
        await one.tell("file_0.py", removed=True)
        one.write("file_1.py", "dag edited")
        await one.tell("file_1.py")
        assert await one.idle() == ["file_1.py"]
        assert await one.dags() == {path[:-3]: path for path in FILES[2:]} | {"edited": "file_1.py"}


@in_virtual_time
async def test_a_late_result_is_not_stored_over_what_another_found_since(folder):
    one, other = await two(folder)
    one.write("file_0.py", "dag old")
    stalled = one.parser.gates["file_0.py"] = anyio.Event()
    async with one.running(), other.running():
        await one.scan()
        await folder.clock.sleep(timedelta(seconds=1))
        other.silent.add("one")
        one.write("file_0.py", "dag new", modified=LONG_AGO + 1)
        await other.scan()
        assert await other.idle() == ["file_0.py"]
        stalled.set()
        assert await one.idle() == ["file_0.py"], "it takes over the other one's results"
        assert await one.dags() == {"new": "file_0.py"}
        await one.scan()
        assert await one.idle() == [], "which it knows"
