"""Group commit: writes that wait while one is being committed share the next transaction.

A lone write never waits for company; under load the cost of a durable commit is shared by all that came meanwhile.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import anyio

from asynsched.store.sqlite_connection import Outcome, Work

T = TypeVar("T")
MOST_TOGETHER = 256


class _Write:
    """A write that somebody waits for."""

    def __init__(self, work: Work[Any], outcome: "asyncio.Future[Any]") -> None:
        self.work = work
        self.outcome = outcome

    def end(self, outcome: Outcome) -> None:
        if self.outcome.done():
            return
        if outcome.error is None:
            self.outcome.set_result(outcome.value)
        else:
            self.outcome.set_exception(outcome.error)


class GroupCommit:
    """Orders writes by arrival, and has them committed one group after the other.

    Args:
        commit: Runs a group in one transaction, in the thread of `writer`; never raises.
        writer: The one thread that writes.
    """

    def __init__(self, commit: Callable[[Sequence[Work[Any]]], list[Outcome]], writer: Executor) -> None:
        self._commit = commit
        self._writer = writer
        self._waiting: list[_Write] = []
        self._is_committing = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def write(self, work: Work[T]) -> T:
        """Run a query in a transaction that others may share.

        A cancelled write was either never begun, or is finished before the cancellation goes on.
        """
        write = _Write(work, asyncio.get_running_loop().create_future())
        self._waiting.append(write)
        self._commit_next()
        try:
            value: T = await asyncio.shield(write.outcome)
        except asyncio.CancelledError:
            if write in self._waiting:
                self._waiting.remove(write)
            else:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([write.outcome])
            raise
        return value

    async def wait_idle(self) -> None:
        """Wait until every write that was asked for is committed."""
        while self._is_committing or self._waiting:
            await self._idle.wait()

    def _commit_next(self) -> None:
        if self._is_committing:
            return
        group, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
        if not group:
            self._idle.set()
            return
        self._is_committing = True
        self._idle.clear()
        loop = asyncio.get_running_loop()
        done = self._writer.submit(self._commit, [write.work for write in group])
        done.add_done_callback(lambda done: loop.call_soon_threadsafe(self._committed, group, done))

    def _committed(self, group: list[_Write], done: "Future[list[Outcome]]") -> None:
        for write, outcome in zip(group, done.result(), strict=True):
            write.end(outcome)
        self._is_committing = False
        self._commit_next()
