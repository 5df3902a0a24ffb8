"""Blocking calls in threads of their own: a call may hang, such as one of a store of logs, and its thread with it.

A cancelled caller leaves its thread behind. The thread keeps its place in the limit until it ends, so calls that hang
hold no more threads than that. The interpreter does not wait for them when it ends.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import TypeVar

from anyio import CapacityLimiter

T = TypeVar("T")


async def in_own_thread(work: Callable[[], T], limiter: CapacityLimiter, name: str) -> T:
    """Return the result of a blocking call, or raise its error.

    Args:
        limiter: Of the calls of this kind that may be under way at once.
        name: Of the thread, for people.
    """
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
        except BaseException as exc:  # noqa: BLE001 - the caller gets it; one that ends programs must not end the loop
            may_pass = isinstance(exc, Exception) and not isinstance(exc, StopIteration)  # which no future may have
            error = exc if may_pass else RuntimeError(f"{type(exc).__name__}: {exc}")
            set_answer = lambda: answer.set_exception(error)  # noqa: E731
        else:
            set_answer = lambda: answer.set_result(result)  # noqa: E731
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, set_answer)

    try:
        Thread(target=copy_context().run, args=(call,), name=f"asynsched {name}", daemon=True).start()
    except RuntimeError:  # no more threads
        limiter.release_on_behalf_of(caller)
        raise
    return await answer
