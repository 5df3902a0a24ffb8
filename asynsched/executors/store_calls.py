"""Blocking calls of the store of logs, in threads of their own: a store may hang, and its threads with it.

A cancelled caller leaves its thread behind. The thread keeps its place in the limit until it ends, so a store that
hangs holds no more threads than that. The interpreter does not wait for them when it ends.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import TypeVar

from anyio import CapacityLimiter

from asynsched.clock import Clock
from asynsched.service import Pulse

T = TypeVar("T")


async def in_store_thread(work: Callable[[], T], limiter: CapacityLimiter) -> T:
    """Return the result of a blocking call, or raise its error."""
    loop, caller = asyncio.get_running_loop(), object()
    await limiter.acquire_on_behalf_of(caller)
    answer: asyncio.Future[T] = loop.create_future()

    def settle(set_answer: Callable[[], None]) -> None:
        limiter.release_on_behalf_of(caller)
        if not answer.done():
            set_answer()

    def call() -> None:
        try:
            result = work()
        except Exception as exc:  # noqa: BLE001 - the caller gets it
            error = exc
            set_answer = lambda: answer.set_exception(error)  # noqa: E731
        else:
            set_answer = lambda: answer.set_result(result)  # noqa: E731
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, set_answer)

    try:
        Thread(target=copy_context().run, args=(call,), name="asynsched store of logs", daemon=True).start()
    except RuntimeError:  # no more threads
        limiter.release_on_behalf_of(caller)
        raise
    return await answer


class StoreCalls:
    """The calls of one service, at most `at_once`. While one is under way, the service does not count as stuck."""

    def __init__(self, pulse: Pulse, clock: Clock, at_once: int) -> None:
        self._pulse = pulse
        self._clock = clock
        self._limiter = CapacityLimiter(at_once)
        self._began: dict[object, float] = {}

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest call has been under way; 0 without any. For any thread."""
        return max((self._clock.monotonic() - began_at for began_at in tuple(self._began.values())), default=0.0)

    async def call(self, work: Callable[[], T]) -> T:
        """Return the result of a blocking call, or raise its error."""
        call = object()
        self._began[call] = self._clock.monotonic()
        try:
            with self._pulse.outside():
                return await in_store_thread(work, self._limiter)
        finally:
            del self._began[call]
