"""Group commit: writes that wait while one is being committed share the next transaction.

A lone write never waits; under load, all writes that arrive during a commit share the cost of the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from asynsched.store.engines.sqlite_connection import Outcome, Work

T = TypeVar("T")
MOST_TOGETHER = 256


class _Write:
    """A write for which a caller waits."""

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
        commit: Runs a group in one transaction, one group at a time.
    """

    def __init__(self, commit: Callable[[list[Work[Any]]], Awaitable[list[Outcome]]]) -> None:
        self._commit = commit
        self._committing: asyncio.Future[None] | None = None
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
        """Wait until every requested write is committed."""
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
        # Kept, so that it is not collected; it reports every failure to the callers that wait.
        self._committing = asyncio.ensure_future(self._commit_group(group))

    async def _commit_group(self, group: list[_Write]) -> None:
        try:
            outcomes = await self._commit([write.work for write in group])
            ended = list(zip(group, outcomes, strict=True))
        except Exception as exc:  # noqa: BLE001 - handed to the callers, each of whom waits for an outcome
            ended = [(write, Outcome(error=exc)) for write in group]
        except asyncio.CancelledError:
            # The event loop is ending: callers that still wait would never be woken.
            for write in (*group, *self._waiting):
                write.outcome.cancel()
            self._waiting.clear()
            self._is_committing = False
            self._idle.set()
            raise
        for write, outcome in ended:
            write.end(outcome)
        self._is_committing = False
        self._commit_next()
