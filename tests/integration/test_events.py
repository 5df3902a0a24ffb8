"""Readers of events get every stored change of runs and task instances, in order, from any process of the database."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from asynsched import Change, Missed, Scheduler
from asynsched.bell import Hint
from asynsched.channels import Channels
from asynsched.clock import Clock
from asynsched.errors import NotServing
from asynsched.housekeeping.bell_listener import hand_out
from asynsched.keys import TaskInstanceKey
from asynsched.queries import events as event_queries
from asynsched.queries.events import EventFeed, EventReader, where_to_begin
from asynsched.queries.listening import listener
from asynsched.queries.try_logs import _followed, follow_log
from asynsched.service import Service
from asynsched.store.changes import StoredNumbers, delete_old_changes
from asynsched.store.database import AnnouncingDatabase, Database
from asynsched.store.engines.opening import open_database
from asynsched.store.engines.urls import parse_url
from asynsched.store.runs.dag_runs import insert_run
from tests.store.test_runs import new_run
from tests.support.passing_database import PassingDatabase
from tests.support.set_clock import SetClock
from tests.support.waiting import DEADLINE_SECONDS, eventually

DAGS = """
    from asynsched import DAG, task

    with DAG("pair") as pair:
        @task
        def first():
            return 1

        @task
        def second(value):
            return value

        second(first())

    with DAG("other") as other:
        @task
        def only(): ...

        only()

    with DAG("talks") as talks:
        @task
        def talk(params):
            import time
            from pathlib import Path

            print("one")
            while not Path(params["until"]).exists():
                time.sleep(0.01)
            print("two")

        talk()
"""
LONG = 3600.0
STATES_OF_PAIR = {"": ["queued", "running", "success"], "first": ["queued", "success"], "second": ["queued", "success"]}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_url")
    (tmp_path / "home").mkdir()
    return f"sqlite:///{tmp_path}/home/asynsched.db"


@asynccontextmanager
async def serving(program: Any, url: str) -> AsyncIterator[Scheduler]:
    """Serve a scheduler that hears of everything by messages: it never sweeps."""
    program.write(DAGS)
    scheduler = Scheduler(database=url, **program.options(sweep_interval=LONG))
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        with anyio.fail_after(60):
            await scheduler.wait_idle()
            yield scheduler
        scheduler.request_stop()


async def until_end_of(events: EventReader, run_id: str) -> list[Change]:
    """Return the events up to the end of a run."""
    found = []
    async for event in events:
        assert isinstance(event, Change)
        found.append(event)
        if (event.kind, event.run_id, event.state) == ("run", run_id, "success"):
            return found
    raise AssertionError("the events ended before the run did")


def states(events: list[Change], run_id: str) -> dict[str, list[str | None]]:
    """Return the states of a run and of its task instances, without those that may be stored together with the next."""
    found: dict[str, list[str | None]] = {}
    for event in events:
        if event.run_id == run_id and not (event.kind == "task" and event.state in (None, "scheduled", "running")):
            found.setdefault(event.task_id, []).append(event.state)
    return found


async def test_a_reader_sees_a_run_in_order_and_goes_on_by_number_after_a_restart(program, url):
    async with serving(program, url) as scheduler:
        async with scheduler.events() as events:
            await scheduler.run("other")
            one = await scheduler.run("pair")
            seen = await until_end_of(events, one.run_id)
        assert states(seen, one.run_id) == STATES_OF_PAIR
        assert [event.dag_id for event in seen if event.kind == "run"] == ["other"] * 3 + ["pair"] * 3
        assert [event.number for event in seen] == sorted({event.number for event in seen})
        middle = seen[len(seen) // 2].number
        two = await scheduler.trigger("pair")
        with anyio.fail_after(30):
            await scheduler.wait_idle()
    async with serving(program, url) as scheduler:
        following = await until_end_of(scheduler.events(middle), two.run_id)
        assert following[: len(seen) - len(seen) // 2 - 1] == seen[len(seen) // 2 + 1 :]
        assert states(following, two.run_id) == STATES_OF_PAIR
        of_run = await until_end_of(scheduler.events(0, dag_id="pair", run_id=one.run_id), one.run_id)
        assert of_run == [event for event in seen if event.dag_id == "pair"]


async def test_the_iteration_ends_when_the_scheduler_stops(program, url):
    seen: list[Change | Missed] = []

    async def read(scheduler: Scheduler, *, task_status: Any) -> None:
        async with scheduler.events() as events:
            task_status.started()
            seen.extend([event async for event in events])

    async with anyio.create_task_group() as readers, serving(program, url) as scheduler:
        await readers.start(read, scheduler)
        run = await scheduler.run("other")
    assert seen[-1].state == "success"
    assert {event.run_id for event in seen} == {run.run_id}
    with pytest.raises(NotServing):
        scheduler.events()
    with pytest.raises(NotServing):
        Scheduler(**program.options()).events()


async def test_another_process_reads_the_events_of_a_scheduler(program, url, monkeypatch):
    monkeypatch.setattr("asynsched.queries.events.RENEW_INTERVAL", timedelta(seconds=LONG))  # nor does it look then
    async with serving(program, url) as scheduler, reading_elsewhere(url) as feed, feed.read() as events:
        run = await scheduler.run("pair")
        with anyio.fail_after(30):
            seen = await until_end_of(events, run.run_id)
    assert states(seen, run.run_id) == STATES_OF_PAIR


async def test_a_followed_log_is_read_when_it_grows_and_until_its_try_is_over(program, url, tmp_path, monkeypatch):
    monkeypatch.setattr("asynsched.queries.try_logs.LONGEST_PAUSE", timedelta(seconds=LONG))
    go = tmp_path / "go"
    async with serving(program, url) as scheduler, scheduler.events() as events:
        run = await scheduler.trigger("talks", {"until": str(go)})
        async for event in events:
            if event.task_id and event.state == "queued":
                break
        key, text = TaskInstanceKey(*run, "talk"), ""
        async with aclosing(follow_log(scheduler._context(), key, 1, start=0)) as parts:
            async for part in parts:
                text += part.text
                if "one" in part.text:
                    assert not part.is_last
                    go.touch()
        assert ("two" in text, part.is_last) == (True, True)
        assert not _followed()._followers, "nobody follows it any more"


@asynccontextmanager
async def reading_elsewhere(url: str) -> AsyncIterator[EventFeed]:
    """Yield the feed of another process, which hears of each commit by the kernel or the database."""
    database, channels, clock = await open_database(url), Channels(), Clock()
    heard = listener(parse_url(url), channels, clock, "elsewhere")
    is_notified = parse_url(url).backend == "postgresql"
    feed = EventFeed(
        database, channels, clock, name="elsewhere", has_others=lambda: is_notified,
        sweep_interval=timedelta(seconds=LONG),
    )  # fmt: skip
    async with running([heard, feed]):
        yield feed
    await database.close()


@asynccontextmanager
async def running(services: list[Service]) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        for service in services:
            await tasks.start(service.run)
        yield
        tasks.cancel_scope.cancel()


class CountingDatabase(PassingDatabase):
    """Counts the calls that read."""

    n_reads = 0

    async def read_at_once(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        self.n_reads += 1
        return await super().read_at_once(query, *args, **kwargs)


@asynccontextmanager
async def feeding(
    url: str, clock: Clock | None = None
) -> AsyncIterator[tuple[EventFeed, CountingDatabase, Callable[[str], Any]]]:
    """Yield a feed, its database, and a function that stores a run as this process does."""
    database = CountingDatabase(await open_database(url))
    feed = EventFeed(
        database, Channels(), clock or Clock(), name="here", has_others=lambda: False,
        sweep_interval=timedelta(seconds=LONG),
    )  # fmt: skip
    announcing: Database = AnnouncingDatabase(database, feed.note_write)

    async def store(run_id: str) -> None:
        await announcing.write(insert_run, new_run(run_id, logical_date=None))

    async with running([feed]):
        yield feed, database, store
    await database.close()


async def test_a_clock_that_is_set_back_holds_up_no_event(url):
    clock = SetClock()
    async with feeding(url, clock) as (feed, _, store), feed.read() as reader:
        await store("before")
        await anext(reader)
        await eventually(lambda: feed.is_at_rest, "the feed has read")
        clock.off_by = -timedelta(hours=1)
        await store("after")
        with anyio.fail_after(DEADLINE_SECONDS):
            assert (await anext(reader)).run_id == "after"


async def test_a_reader_that_is_too_slow_is_told_where_it_goes_on(url, monkeypatch):
    monkeypatch.setattr(event_queries, "MOST_WAITING", 3)
    async with feeding(url) as (feed, _, store), feed.read() as slow, feed.read() as fast:
        for n in range(10):
            await store(f"r{n}")
            assert (await anext(fast)).run_id == f"r{n}"
        # Six of the first eight were dropped with those that waited: four are too many, twice.
        assert slow.go_on_at == 0  # another reader in its place is to learn that as well
        assert await anext(slow) == Missed(go_on_at=8)
        assert [(await anext(slow)).number for _ in range(2)] == [9, 10]
        await store("last")
        assert [(await anext(reader)).run_id for reader in (slow, fast)] == ["last", "last"]
        assert (slow.go_on_at, fast.go_on_at) == (11, 11)


async def test_a_stop_between_two_readers_leaves_none_of_them_without_events(url, monkeypatch):
    tasks = anyio.create_task_group()

    async def cancelled() -> None:
        if any(found.changes for _, found in feed._to_be_told):
            tasks.cancel_scope.cancel()
        await checkpoint()

    database = await open_database(url)
    feed = EventFeed(
        database, Channels(), Clock(), name="here", has_others=lambda: False, sweep_interval=timedelta(seconds=LONG)
    )
    seen: dict[int, list[str | None]] = {}

    async def read(number: int, *, task_status: Any) -> None:
        async with feed.read() as events:
            task_status.started()
            seen[number] = [event.run_id async for event in events]

    async with anyio.create_task_group() as readers, tasks:
        await tasks.start(feed.run)
        for number in range(3):
            await readers.start(read, number)
        await eventually(lambda: len(feed._live) == 3, "all follow")
        monkeypatch.setattr(event_queries, "checkpoint", cancelled)
        await database.write(insert_run, new_run("last", logical_date=None))
        feed.note_write()
    assert seen == {number: ["last"] for number in range(3)}
    await database.close()


async def test_nothing_is_read_without_readers_or_without_news(url):
    async with feeding(url) as (feed, database, store):
        await store("unread")
        assert database.n_reads == 0
        async with feed.read() as events:
            await store("r")
            assert (await anext(events)).run_id == "r"
            await eventually(lambda: wakes_in(feed) > timedelta(minutes=55), "the feed waits for news")
        dropped = feed.read()
        await dropped.__aenter__()
        await eventually(lambda: wakes_in(feed) > timedelta(minutes=55), "the feed waits for news")
        n_reads = database.n_reads
        del dropped
        await store("unread, too")
        assert (feed.is_at_rest, database.n_reads) == (True, n_reads)


def wakes_in(feed: EventFeed) -> timedelta:
    """Return the time until the feed wakes by itself; 0 while it is at work."""
    if not feed.is_at_rest or feed.due_at is None:
        return timedelta()
    return feed.due_at - feed.clock.now()


@pytest.mark.parametrize("kind", ["run", "edit", "backfill", "end", "changed"])
async def test_a_hint_of_another_process_lets_the_feed_look(tmp_path, kind):
    database, channels = await open_database(f"sqlite:///{tmp_path}/a.db"), Channels()
    sweep = timedelta(seconds=LONG)
    feed = EventFeed(database, channels, Clock(), name="here", has_others=lambda: False, sweep_interval=sweep)
    async with running([feed]), feed.read() as events:
        await eventually(lambda: wakes_in(feed) > timedelta(minutes=55), "the feed waits for news")
        await database.write(insert_run, new_run("r"))
        await hand_out([Hint("health"), Hint(kind, "d", "r")], channels)
        with anyio.fail_after(30):
            assert (await anext(events)).run_id == "r"
    await database.close()


async def test_a_reader_is_told_that_the_changes_after_its_number_are_deleted(url):
    async with feeding(url) as (feed, database, store):
        for n in range(6):
            await store(f"r{n}")
        await database.write(delete_old_changes, before=None, most=2, limit=100)
        events = feed.read(3)
        assert await anext(events) == Missed(go_on_at=4)
        assert (await anext(events)).run_id == "r4"
        assert (await anext(feed.read(4))).run_id == "r4"
        assert (await anext(feed.read(0))) == Missed(go_on_at=4)
        assert await anext(feed.read(99)) == Missed(go_on_at=6)
        with pytest.raises(ValueError, match="not -1"):
            feed.read(-1)


async def test_a_reader_that_begins_long_ago_catches_up_and_then_follows(url, monkeypatch):
    monkeypatch.setattr("asynsched.queries.events.MOST_READ", 3)
    async with feeding(url) as (feed, _, store):
        for n in range(8):
            await store(f"r{n}")
        late = feed.read(0)
        async with feed.read() as live:
            for n in range(8, 12):
                await store(f"r{n}")
            assert [(await anext(late)).run_id for _ in range(12)] == [f"r{n}" for n in range(12)]
            await store("r12")
            assert [(await anext(live)).run_id for _ in range(5)] == [f"r{n}" for n in range(8, 13)]
            assert (await anext(late)).run_id == "r12"


@pytest.mark.parametrize(
    ("numbers", "since", "found"),
    [
        ((None, 0, 0), None, (0, False)),
        ((None, 0, 0), 0, (0, False)),
        ((1, 9, 9), 0, (0, False)),
        ((1, 9, 9), 9, (9, False)),
        ((1, 7, 9), None, (7, False)),
        ((1, 7, 9), 9, (9, False)),  # it was settled before, when another transaction had not begun
        ((4, 9, 9), 3, (3, False)),
        ((4, 9, 9), 2, (3, True)),
        ((None, 9, 9), 9, (9, False)),
        ((None, 9, 9), 8, (9, True)),
        ((4, 9, 9), 10, (9, True)),
    ],
)
def test_a_reader_begins_at_a_number_that_is_known(numbers, since, found):
    assert where_to_begin(StoredNumbers(*numbers), since) == found
