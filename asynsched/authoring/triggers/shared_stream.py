"""Streams of events that several triggers share: one of them reads the source, and each sees every event.

Triggers of one host whose `shared_stream_key` is equal share a stream. If their class makes a SharedStreamProducer, it
confirms each event at the broker once all triggers are done with it. A trigger is done with an event when it asks for
the next one; its host goes on only when all that it has yielded is stored, so nothing is confirmed that could be lost.

Source: Apache Airflow 3.3.2, `airflow.triggers.shared_stream`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque, namedtuple
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import ContextVar

from asynsched.authoring.triggers.base import BaseEventTrigger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence
    from typing import Any, NoReturn

log = logging.getLogger("asynsched.trigger")
MAX_WAITING = 1024
"""Events that wait for one trigger, which then has failed."""
ACK_TIMEOUT_SECONDS = 300.0
"""How long a trigger may take for an event of a producer."""


class AckTimeout(Exception):
    """A trigger did not handle an event in time."""


class StreamEnded(Exception):
    """A shared stream has ended, or a trigger has fallen too far behind."""


class AdvanceOutcome(namedtuple("AdvanceOutcome", "acked failed rejected", defaults=(0,))):
    """How many triggers have handled an event, failed at it, or rejected it."""

    __slots__ = ()

    @property
    def is_clean(self) -> bool:
        """Whether there was a trigger, and none failed or rejected the event."""
        return bool(self.acked and not self.failed and not self.rejected)


AdvanceItem = namedtuple("AdvanceItem", "broker_payload outcome")
"""An event that all triggers are done with: the producer's handle of it, and its AdvanceOutcome."""


class SharedStreamProducer(ABC):
    """Reads events from a broker, and confirms them there."""

    @abstractmethod
    def open_stream(self) -> AsyncGenerator[tuple[Any, Any]]:
        """Yield each event with the broker's handle of it. An `async def` with `yield`."""

    @abstractmethod
    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Confirm events of one lane, in order. After an error, the stream begins again."""

    def get_advance_lane(self, broker_payload: Any) -> Hashable:
        """Return the lane within which events are confirmed in order; by default, all are in one."""
        del broker_payload
        return None

    async def aclose(self) -> None:  # noqa: B027 - a hook
        """Close the connection to the broker. Subclasses may implement this."""


class _Entry:
    """An event of a producer that is not confirmed yet, and the triggers that are not done with it."""

    def __init__(self, payload: Any, pending: set[_Subscriber], at: float) -> None:
        self.payload = payload
        self.pending = pending
        self.at = at
        self.counts = {"acked": 0, "failed": 0, "rejected": 0}

    def settle(self, subscriber: _Subscriber, how: str) -> None:
        """Count how a trigger has ended with the event; only the first time counts."""
        if subscriber in self.pending:
            self.pending.discard(subscriber)
            self.counts[how] += 1
            if not self.pending:
                subscriber.stream.settled.set()

    def item(self) -> AdvanceItem:
        return AdvanceItem(self.payload, AdvanceOutcome(**self.counts))


_handled: ContextVar[tuple[_Entry, _Subscriber] | None] = ContextVar("handled", default=None)
"""The event of a producer that the trigger of this task handles."""


def reject_shared_stream_event() -> None:
    """Refuse the event that a trigger handles: its producer is told, and may put it aside for good.

    Call this in `filter_shared_stream`. Without a producer, it only logs a warning.
    """
    handled = _handled.get()
    if handled is None:
        log.warning("reject_shared_stream_event: no event of a producer is being handled; ignored")
        return
    entry, subscriber = handled
    entry.settle(subscriber, "rejected")


class _Subscriber:
    def __init__(self, stream: _Stream, max_waiting: int) -> None:
        self.stream = stream
        self.waiting: asyncio.Queue[tuple[Any, _Entry | None] | Exception] = asyncio.Queue()
        self.has_failed = False
        self._max_waiting = max_waiting

    def offer(self, event: Any, entry: _Entry | None) -> None:
        if self.has_failed:
            return
        if self.waiting.qsize() < self._max_waiting:
            self.waiting.put_nowait((event, entry))
        else:
            self.fail(StreamEnded(f"more than {self._max_waiting} events of a shared stream wait for the trigger"))

    def fail(self, exc: Exception) -> None:
        """Raise an error where the trigger waits for its next event, in place of those that wait for it."""
        self.has_failed = True
        with suppress(asyncio.QueueEmpty):
            while True:
                self.waiting.get_nowait()
        self.waiting.put_nowait(exc)
        self.stream.give_up(self)

    async def events(self) -> AsyncGenerator[Any]:
        while True:
            found = await self.waiting.get()
            if isinstance(found, Exception):
                raise found
            event, entry = found
            _handled.set(None if entry is None else (entry, self))
            try:
                yield event
            finally:
                _handled.set(None)
            if entry is not None:
                entry.settle(self, "acked")


class _Stream:
    """One source of events, and the triggers that share it."""

    def __init__(self, streams: SharedStreams, key: Hashable, trigger: BaseEventTrigger) -> None:
        self.settled = asyncio.Event()
        self._streams = streams
        self._key = key
        self._trigger_class = type(trigger)
        theirs: Any = self._trigger_class.create_shared_stream_producer
        self._confirms = theirs.__func__ is not BaseEventTrigger.create_shared_stream_producer.__func__  # type: ignore[attr-defined]
        self._kwargs = trigger.serialize()[1]
        self._subscribers: dict[_Subscriber, None] = {}
        self._lanes: dict[Hashable, deque[_Entry]] = {}
        self.reader = asyncio.create_task(self._read())

    def join(self) -> _Subscriber:
        subscriber = _Subscriber(self, self._streams.max_waiting)
        self._subscribers[subscriber] = None
        return subscriber

    def leave(self, subscriber: _Subscriber) -> None:
        """Forget a trigger. The broker is to deliver again what it has not handled. The last one ends the stream."""
        self._subscribers.pop(subscriber, None)
        self.give_up(subscriber)
        if not self._subscribers:
            self._streams.forget(self._key, self)
            self.reader.cancel()

    def give_up(self, subscriber: _Subscriber) -> None:
        for lane in self._lanes.values():
            for entry in lane:
                entry.settle(subscriber, "failed")

    async def _read(self) -> None:
        try:
            await self._read_source()
        except Exception as exc:
            log.exception("The shared stream %r has failed", self._key)
            self._streams.forget(self._key, self)
            for subscriber in list(self._subscribers):
                if self._confirms:
                    subscriber.fail(exc)  # the broker will deliver again what waits for it
                else:
                    subscriber.waiting.put_nowait(exc)

    async def _read_source(self) -> NoReturn:
        if self._streams.grace > 0:
            await asyncio.sleep(self._streams.grace)
        if self._confirms:
            await self._read_and_confirm(self._trigger_class.create_shared_stream_producer(self._kwargs))
        async with aclosing(self._trigger_class.open_shared_stream(self._kwargs)) as events:
            async for event in events:
                for subscriber in list(self._subscribers):
                    subscriber.offer(event, None)
        self._say_that_it_ended()

    async def _read_and_confirm(self, producer: SharedStreamProducer) -> NoReturn:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._confirm(producer))
                tasks.create_task(self._watch_the_time())
                async with aclosing(producer.open_stream()) as events:
                    async for event, payload in events:
                        self._publish(event, payload, producer.get_advance_lane(payload))
                self._say_that_it_ended()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        finally:
            await self._close(producer)

    def _say_that_it_ended(self) -> NoReturn:
        raise StreamEnded(f"the shared stream {self._key!r} has ended; it should go on, or raise an error")

    def _publish(self, event: Any, payload: Any, lane: Hashable) -> None:
        able = {subscriber for subscriber in self._subscribers if not subscriber.has_failed}
        entry = _Entry(payload, able.copy(), asyncio.get_running_loop().time())
        self._lanes.setdefault(lane, deque()).append(entry)
        for subscriber in able:
            subscriber.offer(event, entry)
        if not able:
            self.settled.set()

    async def _confirm(self, producer: SharedStreamProducer) -> None:
        while True:
            await self.settled.wait()
            self.settled.clear()
            await self._confirm_settled(producer)

    async def _confirm_settled(self, producer: SharedStreamProducer) -> None:
        """Confirm the events at the beginning of each lane that all triggers are done with."""
        for lane, entries in list(self._lanes.items()):
            batch = []
            while entries and not entries[0].pending:
                batch.append(entries.popleft().item())
            if not entries:
                del self._lanes[lane]
            if batch:
                await producer.advance(batch)

    async def _watch_the_time(self) -> None:
        longest = self._streams.ack_timeout
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(longest / 10)
            late = [entry for lane in self._lanes.values() for entry in lane if loop.time() - entry.at > longest]
            for subscriber in {subscriber for entry in late for subscriber in entry.pending}:
                subscriber.fail(AckTimeout(f"an event of the shared stream {self._key!r} took more than {longest:g} s"))

    async def _close(self, producer: SharedStreamProducer) -> None:
        try:
            await self._confirm_settled(producer)
            await producer.aclose()
        except Exception:
            log.exception("The producer of the shared stream %r cannot be closed", self._key)


class SharedStreams:
    """The shared streams of the triggers that run on one event loop.

    Args:
        max_waiting: How many events may wait for one trigger.
        ack_timeout: Seconds that a trigger has for an event of a producer.
        grace: Seconds from the first trigger of a stream until its source is read. Others that start within that time,
            as after a restart of their host, miss no event.
    """

    def __init__(
        self, max_waiting: int = MAX_WAITING, ack_timeout: float = ACK_TIMEOUT_SECONDS, grace: float = 0.0
    ) -> None:
        self.max_waiting = max_waiting
        self.ack_timeout = ack_timeout
        self.grace = grace
        self._streams: dict[Hashable, _Stream] = {}
        self._readers: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def subscribed(self, trigger: BaseEventTrigger, key: Hashable) -> AsyncIterator[AsyncGenerator[Any]]:
        """Share the stream of this key until the context ends; gives an iterator of its events from now on."""
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream(self, key, trigger)
            self._readers.add(stream.reader)
            stream.reader.add_done_callback(self._readers.discard)
        subscriber = stream.join()
        try:
            async with aclosing(subscriber.events()) as events:
                yield events
        finally:
            stream.leave(subscriber)

    async def aclose(self) -> None:
        """Wait until the producers of streams that no trigger shares any more have confirmed events and closed."""
        await asyncio.gather(*self._readers, return_exceptions=True)

    def forget(self, key: Hashable, stream: _Stream) -> None:
        """Forget a stream: the next trigger with its key begins a new one."""
        if self._streams.get(key) is stream:
            del self._streams[key]
