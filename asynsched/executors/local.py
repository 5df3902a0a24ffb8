"""LocalExecutor: each try a process of its own on this machine, under a keeper that outlives the scheduler."""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from asynsched.errors import ExecutorError, KeeperGone
from asynsched.executors.base import STOPPED, Executor, ExecutorContext, Held
from asynsched.executors.keeper_connection import KeeperConnection, connect, start_keeper
from asynsched.lease.keeper_line import KeeperLine
from asynsched.loggers import get_logger
from asynsched.protocol.frames import ProtocolError, TooLarge
from asynsched.protocol.messages import (
    Acknowledge,
    Ended,
    FailureCause,
    Inventory,
    Kill,
    Launch,
    LeaseTerm,
    Reply,
    Request,
    Shutdown,
    Started,
)

log = get_logger(__name__)

START_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (0.1, 0.5, 1, 2))
"""Between the attempts of a starting scheduler to start a keeper."""
FIRST_BACKOFF = timedelta(milliseconds=100)
LONGEST_BACKOFF = timedelta(seconds=10)
"""Also how long a connection lasts before the next one is made without a pause."""
REFUSAL_PAUSE = timedelta(seconds=1)
"""Time before the refusal of a launch is reported: the keeper would refuse the next launch as well."""
LAST_WORDS = timedelta(seconds=5)
"""How much longer than its tries a keeper may take to end."""


class LocalExecutor(Executor):
    """Runs tries through the keeper of the scheduler's home.

    A keeper that dies is replaced: its tries are reported as lost, and tries that it had not begun are launched again,
    which is safe because a token starts once. Kills are sent again after a connection broke.

    Args:
        airflow_options: What `conf` of Airflow answers; None: what the settings say.

    Attributes:
        found_lease: When the lease ends that `start` has found at the keeper, on CLOCK_BOOTTIME; None: it is not known.
    """

    def __init__(self, context: ExecutorContext, airflow_options: Mapping[str, str] | None = None) -> None:
        super().__init__(context)
        self._airflow_options = airflow_options
        self._kill_time = context.settings.lease.kill_time
        self.found_lease: float | None = None
        self._connection: KeeperConnection | None = None
        self._keeper_line = KeeperLine(partial(connect, context.home), context.scheduler_id)
        self._epoch = 0
        self._launched: dict[str, Launch | None] = {}
        """Tries that have not ended; None for one that an earlier scheduler launched."""
        self._begun: set[str] = set()
        self._reported: set[str] = set()
        """Tries whose ends are reported and not acknowledged."""
        self._never_sent: set[str] = set()
        self._unwanted: dict[str, Kill] = {}
        self._draining = anyio.Event()
        self._unsent: list[Kill | Acknowledge] = []
        self._none_left = anyio.Event()
        self._answering: set[tuple[str, int]] = set()
        """Requests that are being answered: the keeper repeats them over each new connection."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_ended_tries = False
        """Whether the tries were told to end, because the scheduler ends."""
        self._is_closing = False
        self._has_left_tries = False
        self._keeper_start: asyncio.Future[None] | None = None
        """Of a keeper that is not greeted yet."""
        self._connected_at = float("-inf")
        self._backoff = timedelta()

    @property
    def parallelism(self) -> int:
        return self.context.settings.parallelism

    @property
    def has_left_tries(self) -> bool:
        return self._has_left_tries

    async def start(self, lease_epoch: int) -> Held:
        self._epoch = lease_epoch
        inventory = await self._connect_at_start()
        self.found_lease = inventory.lease_until
        self._keeper_line.open(lease_epoch)
        running = frozenset(started.token for started in inventory.running)
        return Held(frozenset(inventory.starting), running, ended=frozenset(self._reported))

    async def launch(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            if launch.token not in self._launched and launch.token not in self._reported:
                if self._draining.is_set():
                    # Granted just before the stop: no service would be left to store its end.
                    now = self.context.clock.now()
                    self._take(Ended(launch.token, "failed", now, reason=STOPPED, cause="interrupted"))
                    continue
                self._launched[launch.token] = launch
                if self._connection is not None and self._connection.is_open:
                    self._send_launch(launch)
                else:
                    self._never_sent.add(launch.token)

    async def kill(self, token: str, reason: str, cause: FailureCause = "task") -> None:
        if token in self._launched:
            self._unwanted[token] = Kill(token, reason, grace=self._kill_time, cause=cause)
            self._send(self._unwanted[token])

    async def acknowledge(self, tokens: Sequence[str]) -> None:
        self._reported.difference_update(tokens)
        self._send(Acknowledge(tuple(tokens)))

    def renew_lease(self, valid_until: float) -> None:
        self._keeper_line.tell(LeaseTerm(valid_until, self.context.settings.lease.grace, self._kill_time))

    def hurry(self) -> None:
        self._kill_time = 0.0
        if self._has_ended_tries:
            self._end_tries()

    async def drain(self, deadline: datetime) -> None:
        self._draining.set()
        if await self._ended_within(deadline - self.context.clock.now()):
            return
        self._has_ended_tries = True
        self._end_tries()
        if not await self._ended_within(timedelta(seconds=self._kill_time) + LAST_WORDS):
            log.error("executor.tries_left", n_tries=len(self._launched))

    def _end_tries(self) -> None:
        for token in self._launched:
            self._send(Kill(token, STOPPED, grace=self._kill_time, cause="interrupted"))

    async def close(self) -> None:
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._keeper_line.close()
        has_met_keeper = await self._meet_keeper()
        if self._connection is None:
            return
        if (self._draining.is_set() or has_met_keeper) and self._connection.is_open:
            self._connection.send(Shutdown(grace=self._kill_time))
            with anyio.move_on_after(self._kill_time + LAST_WORDS.total_seconds()):
                await self._connection.closed.wait()
            # The keeper hangs up when no process of a try is left; a stalled keeper does not.
            self._has_left_tries |= self._connection.is_open
        self._connection.close()
        await self._connection.closed.wait()

    async def _meet_keeper(self) -> bool:
        """Return whether we are connected to a keeper that must be ended and was not connected until now.

        If its start was broken off, it runs nothing. If only its connection was lost, our tries go on in it.
        """
        if self._keeper_start is not None:
            await asyncio.wait([self._keeper_start])
        elif not (self._draining.is_set() and self._launched):
            return False
        if self._connection is None or not self._connection.is_open:
            found = await anyio.to_thread.run_sync(connect, self.context.home)
            if found is None:
                return False
            try:
                await self._greet(found)
            except ExecutorError as exc:
                log.warning("executor.keeper_unavailable", error=str(exc))
                self._has_left_tries = not isinstance(exc, KeeperGone)
        return True

    async def _connect_at_start(self) -> Inventory:
        """Connect. A keeper that is killed while it starts is replaced."""
        for pause in START_PAUSES:
            try:
                return await self._connect()
            except KeeperGone as exc:
                log.warning("executor.keeper_unavailable", error=str(exc))
                await self.context.clock.sleep(pause)
        return await self._connect()

    async def _connect(self) -> Inventory:
        """Find or start the keeper, and reconcile its tries with those that we launched."""
        home = self.context.home
        found = await anyio.to_thread.run_sync(connect, home)
        if found is None:
            # The start goes on when we are cancelled; `close` ends that keeper.
            start = partial(
                start_keeper, home, self.context.settings, is_postgresql=self.context.shares_database,
                airflow_options=self._airflow_options,
            )  # fmt: skip
            self._keeper_start = asyncio.ensure_future(asyncio.to_thread(start))
            await asyncio.shield(self._keeper_start)
            found = await anyio.to_thread.run_sync(connect, home)
        if found is None:
            raise KeeperGone(f"the keeper of {home} ended as soon as it had started")
        inventory = await self._greet(found)
        self._connected_at = self.context.clock.monotonic()
        self._keeper_start = None
        self._send_again(inventory)
        return inventory

    async def _greet(self, connection: socket.socket) -> Inventory:
        # Requests may arrive with the greeting, and their answers need the connection.
        self._connection = KeeperConnection(self._take, self._lost, shares_database=self.context.shares_database)
        return await self._connection.greet(
            connection, self.context.scheduler_id, self._epoch, self._keeper_line.latest
        )

    def _hold(self, inventory: Inventory) -> None:
        """Record the keeper's tries before its next message: a try may end immediately."""
        for started in inventory.running:
            self._launched.setdefault(started.token, None)
            self._take(started)
        for token in inventory.starting:
            self._launched.setdefault(token, None)

    def _send_again(self, inventory: Inventory) -> None:
        held = {*inventory.starting, *(started.token for started in inventory.running)}
        self._never_sent.clear()
        unsent, self._unsent = self._unsent, []
        for launch in list(self._launched.values()):
            if launch is not None and launch.token not in held:
                self._send_launch(launch)
        for message in dict.fromkeys((*unsent, *self._unwanted.values())):
            self._send(message)

    def _send_launch(self, launch: Launch) -> None:
        """Start a try; one whose conf or event is too large or nested too deeply fails, and harms no other.

        Without a connection, nothing is queued: by the next connection the try may have ended and been forgotten, and
        would start again. `_send_again` sends the launches that have not ended then.
        """
        if self._connection is None or not self._connection.is_open:
            return
        try:
            self._connection.send(launch)
        except ProtocolError as exc:
            reason = f"its launch cannot be sent: {exc}"
            if isinstance(exc, TooLarge):
                what = "the conf of its run" if launch.resume is None else "the event that it goes on with"
                reason = f"{what} is too large: {exc}. Pass on the path of a file or an object instead."
            self._take(Ended(launch.token, "failed", self.context.clock.now(), reason=reason, retry=False))

    def _send(self, message: Kill | Acknowledge) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.send(message)
        else:
            self._unsent.append(message)

    def _take(self, message: Any) -> None:
        if isinstance(message, Request):
            if (key := (message.token, message.request_id)) not in self._answering:
                self._answering.add(key)
                self._spawn(self._answer(message))
        elif isinstance(message, Inventory):
            self._hold(message)
        elif isinstance(message, Started) and message.token not in self._begun:
            self._begun.add(message.token)
            self.context.report(message)
        elif isinstance(message, Ended) and message.token not in self._reported:
            self._reported.add(message.token)
            was_begun = message.started_at is not None or message.token in self._begun
            self._forget(message.token)
            if message.cause == "interrupted" and not was_begun and not (self._is_closing or self._draining.is_set()):
                self._spawn(self._report_later(message))
            else:
                self.context.report(message)

    async def _report_later(self, refused: Ended) -> None:
        await self.context.clock.wait(self._draining, REFUSAL_PAUSE)
        self.context.report(refused)

    def _forget(self, token: str) -> None:
        self._begun.discard(token)
        self._launched.pop(token, None)
        self._unwanted.pop(token, None)
        if not self._launched:
            self._none_left.set()

    async def _answer(self, request: Request) -> None:
        try:
            reply = await self.context.answer(request)
        except Exception as exc:
            log.exception("executor.request_failed", operation=request.operation)
            reply = Reply(request.token, request.request_id, error=f"{request.operation} failed: {exc}")
        finally:
            self._answering.discard((request.token, request.request_id))
        # A reply that cannot be sent is not kept: the keeper repeats the request.
        if self._connection is None:
            return
        try:
            self._connection.send(reply)
        except ProtocolError as exc:
            self._connection.send(Reply(request.token, request.request_id, error=f"{request.operation}: {exc}"))

    def _lost(self) -> None:
        if not self._is_closing:
            log.warning("executor.keeper_lost", n_tries=len(self._launched))
            if self.context.clock.monotonic() - self._connected_at > LONGEST_BACKOFF.total_seconds():
                self._backoff = timedelta()  # it had lasted: this is not a keeper that hangs up on each connection
            self._spawn(self._recover())

    async def _recover(self) -> None:
        """Connect again: at once, or after a pause that grows while connections do not last."""
        while True:
            await self.context.clock.sleep(self._pause())
            try:
                await self._connect()
            except (ExecutorError, OSError) as exc:
                log.warning("executor.keeper_unavailable", error=str(exc))
                self._give_up_unbegun(str(exc))
            else:
                log.info("executor.keeper_back")
                return

    def _pause(self) -> timedelta:
        pause = self._backoff
        self._backoff = min(max(2 * pause, FIRST_BACKOFF), LONGEST_BACKOFF)
        return pause

    def _give_up_unbegun(self, reason: str) -> None:
        """Report the launches that were sent to no keeper: they did not start."""
        for token in self._never_sent:
            self._take(Ended(token, "failed", self.context.clock.now(), reason=reason, cause="interrupted"))
        self._never_sent.clear()

    async def _ended_within(self, length: timedelta) -> bool:
        """Wait for at most `length` until no try is left. Returns whether none is."""
        if self._launched:
            self._none_left = anyio.Event()
            await self.context.clock.wait(self._none_left, length)
        return not self._launched

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        super()._note_end(task)


class SequentialExecutor(LocalExecutor):
    """A LocalExecutor that runs one try at a time, for debugging and for work that must not overlap."""

    @property
    def parallelism(self) -> int:
        return 1
