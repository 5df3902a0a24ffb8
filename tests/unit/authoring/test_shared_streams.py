"""Streams of events that several triggers share, and what the producer of a stream is told about each event."""

import asyncio
from contextlib import AsyncExitStack, aclosing

import pytest

from asynsched import BaseEventTrigger, TriggerEvent
from asynsched.authoring.triggers.base import events_of
from asynsched.authoring.triggers.shared_stream import (
    AckTimeout,
    AdvanceOutcome,
    SharedStreamProducer,
    SharedStreams,
    StreamEnded,
    reject_shared_stream_event,
)
from tests.support.waiting import eventually


class Source:
    """What a test puts into the source, and what has become of it."""

    def __init__(self) -> None:
        self.events: asyncio.Queue = asyncio.Queue()
        self.n_opened = 0
        self.advanced: list[tuple[str, int, int, int]] = []
        self.is_closed = False
        self.advance_fails = False

    def put(self, *events: object) -> None:
        for event in events:
            self.events.put_nowait(event)

    async def read(self):
        self.n_opened += 1
        while (event := await self.events.get()) != "end":
            if event == "broken":
                raise OSError("the source is gone")
            yield event


class Numbers(BaseEventTrigger):
    """Fires for the numbers that it divides; `None` is rejected, and 13 is an error."""

    source: Source

    def __init__(self, divisor):
        super().__init__()
        self.divisor = divisor

    def serialize(self):
        return "Numbers", {"divisor": self.divisor}

    def shared_stream_key(self):
        return ("numbers",)

    @classmethod
    async def open_shared_stream(cls, kwargs):
        async for event in cls.source.read():
            yield event

    async def filter_shared_stream(self, shared_stream):
        async for number in shared_stream:
            if number is None:
                reject_shared_stream_event()
            elif number == 13:
                raise ValueError("thirteen")
            elif number % self.divisor == 0:
                yield TriggerEvent(number)


class Confirming(Numbers):
    @classmethod
    def create_shared_stream_producer(cls, kwargs):
        return Producer(cls.source)


class Producer(SharedStreamProducer):
    def __init__(self, source):
        self.source = source

    async def open_stream(self):
        async for event in self.source.read():
            yield event, f"handle of {event}"

    async def advance(self, batch):
        if self.source.advance_fails:
            raise OSError("the broker is gone")
        self.source.advanced += [(item.broker_payload, *item.outcome) for item in batch]

    def get_advance_lane(self, broker_payload):
        return broker_payload == "handle of 7"

    async def aclose(self):
        self.source.is_closed = True


@pytest.fixture(params=[Numbers, Confirming])
def kind(request):
    request.param.source = Source()
    return request.param


class Running:
    """A trigger that runs, and what it has fired; the end of its run by an error is the last of that."""

    def __init__(self, trigger: BaseEventTrigger, streams: SharedStreams, *, is_held: bool) -> None:
        self.heard: list[object] = []
        self.stored = asyncio.Event()
        if not is_held:
            self.stored.set()
        self.task = asyncio.create_task(self._run(trigger, streams))

    async def _run(self, trigger: BaseEventTrigger, streams: SharedStreams) -> None:
        try:
            async with aclosing(events_of(trigger, streams)) as events:
                async for event in events:
                    self.heard.append(event.payload)
                    await self.stored.wait()
        except Exception as exc:  # noqa: BLE001 - it is the trigger's, and looked at
            self.heard.append(exc)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def until(self, *heard: object) -> None:
        await eventually(lambda: self.heard == list(heard), f"it has fired {heard}, not {self.heard}")

    async def until_failed(self, kind: type[Exception], words: str = "") -> None:
        await eventually(lambda: self.task.done(), "it has ended")
        assert isinstance(self.heard[-1], kind)
        assert words in str(self.heard[-1])


@pytest.fixture
async def start():
    async with AsyncExitStack() as stack:

        def start(trigger: BaseEventTrigger, streams: SharedStreams, *, is_held: bool = False) -> Running:
            running = Running(trigger, streams, is_held=is_held)
            stack.push_async_callback(running.stop)
            return running

        yield start


async def test_triggers_with_an_equal_key_share_one_source_and_each_makes_its_own_events(kind, start):
    streams = SharedStreams()
    twos, threes = start(kind(2), streams), start(kind(3), streams)
    kind.source.put(1, 2, 3, 6)
    await twos.until(2, 6)
    await threes.until(3, 6)
    late = start(kind(1), streams)
    await asyncio.sleep(0)
    kind.source.put(12)
    await late.until(12)
    assert kind.source.n_opened == 1
    for running in (twos, threes, late):
        await running.stop()
    await streams.aclose()
    again = start(kind(2), streams)
    kind.source.put(4)
    await again.until(4)
    assert kind.source.n_opened == 2, "the last one has ended the stream, and the next one opens another"


async def test_a_source_is_read_after_a_grace_so_that_later_triggers_miss_nothing(kind, start):
    streams = SharedStreams(grace=0.2)
    kind.source.put(6)
    first = start(kind(2), streams)
    for _ in range(10):
        await asyncio.sleep(0)
    assert kind.source.n_opened == 0
    second = start(kind(3), streams)
    await first.until(6)
    await second.until(6)


@pytest.mark.parametrize(("end", "error"), [("broken", OSError), ("end", StreamEnded)])
async def test_a_source_that_ends_or_fails_ends_all_that_share_it_and_can_be_opened_again(kind, start, end, error):
    streams = SharedStreams()
    both = [start(kind(divisor), streams) for divisor in (2, 3)]
    kind.source.put(6, end)
    for running in both:
        await running.until_failed(error)
        if kind is Numbers:
            assert running.heard[0] == 6, "no producer would deliver again what came before"
    again = start(kind(2), streams)
    kind.source.put(8)
    await again.until(8)


async def test_a_trigger_that_falls_behind_fails_and_keeps_no_other_waiting(kind, start):
    streams = SharedStreams(max_waiting=3)
    slow, quick = start(kind(1), streams, is_held=True), start(kind(1), streams)
    for number in range(1, 6):
        kind.source.put(number)
        await quick.until(*range(1, number + 1))
    slow.stored.set()
    await slow.until_failed(StreamEnded, "more than 3 events")
    if kind is Confirming:
        await eventually(lambda: len(kind.source.advanced) == 5, "every event is told")
        assert kind.source.advanced[-1] == ("handle of 5", 1, 1, 0)


async def test_a_producer_confirms_handled_messages_in_the_order_of_each_lane(start):
    Confirming.source = source = Source()
    streams = SharedStreams()
    held, quick = start(Confirming(2), streams, is_held=True), start(Confirming(3), streams)
    source.put(2, 3, 7, None)
    await quick.until(3)
    await held.until(2)
    await asyncio.sleep(0)
    assert source.advanced == [], "2 is not stored, and so nothing is confirmed"
    held.stored.set()
    await eventually(lambda: len(source.advanced) == 4, "all are confirmed")
    assert [one for one in source.advanced if one[0] != "handle of 7"] == [
        ("handle of 2", 2, 0, 0), ("handle of 3", 2, 0, 0), ("handle of None", 0, 0, 2)
    ]  # fmt: skip
    assert AdvanceOutcome(*source.advanced[0][1:]).is_clean
    await held.stop()
    await quick.stop()
    await streams.aclose()
    assert source.is_closed


async def test_an_event_that_a_trigger_fails_at_or_leaves_is_to_be_delivered_again(start):
    Confirming.source = source = Source()
    streams = SharedStreams()
    fails, leaves, stays = (start(Confirming(n), streams, is_held=n == 2) for n in (1000, 2, 500))
    source.put(13 - 1, 13)
    await leaves.until(12)
    await leaves.stop()
    await fails.until_failed(ValueError, "thirteen")
    await stays.until_failed(ValueError, "thirteen")
    await streams.aclose()
    assert source.advanced == [("handle of 12", 2, 1, 0), ("handle of 13", 0, 3, 0)]


async def test_a_trigger_that_takes_too_long_fails_and_the_broker_is_told(start):
    Confirming.source = source = Source()
    running = start(Confirming(1), SharedStreams(ack_timeout=0.05), is_held=True)
    source.put(1)
    await eventually(lambda: source.advanced == [("handle of 1", 0, 1, 0)], "the broker is told")
    running.stored.set()
    await running.until_failed(AckTimeout, "took more than 0.05 s")


async def test_a_broker_that_cannot_be_told_ends_the_stream(start):
    Confirming.source = source = Source()
    running = start(Confirming(5), SharedStreams())
    source.advance_fails = True
    source.put(1)
    await running.until_failed(OSError, "the broker is gone")


def test_a_reject_without_a_producer_is_only_told(caplog):
    reject_shared_stream_event()
    assert "no event of a producer is being handled" in caplog.text
