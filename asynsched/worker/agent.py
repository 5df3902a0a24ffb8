"""The agent of a worker: claims tries, starts them through its home's keeper, and stands between them and a scheduler.

    engine ──ticket──▶ agent ──claim, renew, report, request, log──▶ any scheduler of the database
                        │  ▲
                 Launch ▼  │ Started, Ended, Request
                       keeper ──▶ template ──▶ try

The keeper outlives the agent, as it outlives a scheduler: it ends all its tries once the lease is over that it was told
last. That is the shortest of those that the schedulers have granted to the tries that it holds. The agent itself ends a
single try whose lease is over, so that the others go on. An agent that starts on the home of one that was killed goes
on with its tries.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Literal

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync
from msgspec.structs import replace

from asynsched.clock import Clock
from asynsched.errors import ExecutorError, SettingsError
from asynsched.executors.base import ExecutorContext, TryEvent
from asynsched.executors.local import LocalExecutor
from asynsched.home import BUNDLES, LOGS, SOURCES, hold_home, prepare_home
from asynsched.loggers import get_logger
from asynsched.protocol.messages import Ended, FailureCause, Launch, Reply, Request, Started
from asynsched.protocol.worker_messages import (
    MOST_RENEWALS,
    Ask,
    Claim,
    Claimed,
    Following,
    Proof,
    Renew,
    Renewal,
    Renewed,
    Report,
    Ticket,
    WorkerTerms,
)
from asynsched.settings import Settings
from asynsched.worker.bundles import Bundles
from asynsched.worker.logs import LogSender, remove_empty_folders, size_of
from asynsched.worker.schedulers import PATIENT, Refused, Schedulers, Unreachable
from asynsched.worker.sources import SourceCache, WrongSource
from asynsched.worker.tickets import KeptTicket, TicketFolder, life_of

log = get_logger(__name__)

Addresses = tuple[str, ...]
"""Of the schedulers of one database."""
OfDatabase = Callable[[Addresses, list["_Try"]], Awaitable[None]]
EPOCH = 1
"""Of every agent's greeting: the lock of the home lets one agent at a time greet its keeper."""
FIRST_RENEWAL = 1.0
"""Seconds between two renewals before a claim has said how many it is to be."""
START_SECONDS = 0.01
"""How long the report of a start waits for the end of its try: both in one report are one request, and one commit."""
LOG_PAUSE = timedelta(seconds=1)
"""Time between two looks at the logs of running tries."""
SHORTEST_LOOK, LONGEST_LOOK = 0.001, 1.0
"""Seconds between two looks at the leases of tries. A rest below the clock's resolution would be a sleep of zero."""
HEAD_START = 0.5
"""The agent ends a try whose lease is over this many seconds before the keeper would end all tries for it."""
MOST_PARTS = 8
"""Parts of one log that are sent at one look."""
STOPPED = "the worker stopped"
LAPSED = "no scheduler has renewed its lease, and another worker may run the task"
LAST_LOG_SECONDS = 60.0
"""Longest that the end of a try waits until its log is stored."""
CLAIM_SECONDS = 600.0
"""Longest that a ticket waits for a scheduler to answer; the scheduler gives a try up that no worker has claimed."""
REPORT_SECONDS = 86_400.0
"""Longest that the end of a try waits for a scheduler to answer, long after its lease is over."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a ticket.

    Attributes:
        kind: `done` or `failed`: its try. `refused`: its try is another's, or over; the engine may forget this copy.
            `returned`: this worker could not claim it, and the engine may give it to another one. `over`: its try is
            of an agent before this one, and its end was not told here.
        text: One line for people.
    """

    kind: Literal["done", "failed", "refused", "returned", "over"]
    text: str


RETURNED = Outcome("returned", "refused: no scheduler answers")
OVER = Outcome("over", "over")


def refused(reason: str) -> Outcome:
    """Return the outcome of a ticket that this worker, or a scheduler, refuses."""
    return Outcome("refused", f"refused: {reason}")


@dataclass(eq=False)
class _Claim:
    """A ticket whose claim is under way.

    Attributes:
        over: Set once nothing of the claim is under way any more.
        outcome: Of the ticket; None: its try is claimed.
        hashes: Of the sources of the try, once they are known.
        log_path: Of the log of the try, once it is known.
        unwanted: Not empty: why the try is to end as soon as it is claimed.
    """

    over: anyio.Event = field(default_factory=anyio.Event)
    outcome: Outcome | None = None
    hashes: tuple[str, ...] = ()
    log_path: str = ""
    unwanted: str = ""


@dataclass(eq=False)
class _Try:
    """A try that this worker holds, from its claim until its end is stored.

    Attributes:
        end_seconds: How long after its lease it must have ended.
        granted_until: When its lease is over, on CLOCK_BOOTTIME; None: this agent has not renewed it yet.
        found_lease: The lease that the keeper has of an agent before this one: that of this try is no shorter.
        hashes: Of its sources.
        missing: Those of them that are still to be fetched.
        is_kept: Whether its ticket is kept with all that its claim has said.
        unwanted: Not empty: why it is to end. The keeper was told, or will not hear of the try.
        cause: What makes it unwanted.
        has_ended: Whether no process of it is left.
        outcome: How it ended, once that is stored.
        events: Its start and its end, as the keeper reports them.
    """

    ticket: Ticket
    log: LogSender
    end_seconds: float
    granted_until: float | None = None
    found_lease: float | None = None
    hashes: tuple[str, ...] = ()
    missing: Sequence[str] = ()
    is_kept: bool = False
    unwanted: str = ""
    cause: FailureCause = "machine"
    has_ended: bool = False
    outcome: Outcome | None = None
    events: asyncio.Queue[TryEvent] = field(default_factory=asyncio.Queue)

    @property
    def needs_lease(self) -> bool:
        """Whether only the end of its lease would end it."""
        return not self.has_ended and not self.unwanted

    def lease_end(self, terms: WorkerTerms) -> float | None:
        """Return when the lease of a keeper with these terms must be over, so that the try ends in time; None: unknown.

        The keeper has one grace and one kill time for all: where a claim has granted less, the lease ends sooner.
        """
        if self.granted_until is None:
            return self.found_lease
        return self.granted_until + self.end_seconds - terms.end_seconds


class Agent:
    """Runs tries for schedulers elsewhere. Use it as `async with agent.serving():`, and pass each ticket to `work`.

    Args:
        settings: The worker's own: its home, its secrets backend, the size of its cache. The claim of a try says the
            rest.
        name: Of this worker, for people.
    """

    def __init__(self, settings: Settings, name: str, clock: Clock, schedulers: Schedulers) -> None:
        self._settings = settings
        self._home = settings.home_path
        self._name = name
        self._clock = clock
        self._schedulers = schedulers
        self._sources = SourceCache(self._home / SOURCES, settings.workers.cache_bytes)
        self._bundles = Bundles(self._home / BUNDLES, settings.workers.cache_bytes, schedulers)
        self._life = ""
        self._tries: dict[str, _Try] = {}
        self._claiming: dict[Proof, _Claim] = {}
        """Two tickets of one try may wait: schedulers refuse all but the one that they have given out last."""
        self._known: frozenset[str] = frozenset()
        """The tokens that the keeper knew when this agent met it."""
        self._executor: LocalExecutor | None = None
        self._terms: WorkerTerms | None = None
        self._unknown: set[str] = set()
        """Tries without a ticket that have ended: the keeper may forget them."""
        self._is_draining = False
        self._claims_end = anyio.Event()
        """Set: tickets no longer wait for a scheduler to answer."""
        self._warm: set[anyio.CancelScope] = set()
        """Of the requests for another ticket."""
        self._starting, self._telling = anyio.Lock(), anyio.Lock()
        self._told_lease: float | None = None
        """The end of the lease that the keeper was told last, on CLOCK_BOOTTIME."""
        self._failure: Exception | None = None
        self._has_changed = anyio.Event()
        """Set, and replaced, when a try or a claim is over, when a process has ended, or the executor has failed."""
        self.resumed: tuple[Ticket, ...] = ()
        """The tickets of an agent before this one, which this one works on."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Hold the home, and keep the leases of its tries. Tries of an agent before this one go on.

        After the block, tries have the setting `shutdown_grace` to end; those that are left are interrupted. It ends
        when all ends are stored. A cancellation leaves the tries to the next agent.

        Raises:
            HomeInUse: Another agent, or a scheduler, has the home.
            SettingsError: The home cannot be used.
            ExecutorError: The keeper cannot be started.
        """
        prepare_home(self._home)
        with hold_home(self._home):
            self._folder = TicketFolder(self._home)
            self._life = await run_sync(life_of, self._home, self._clock)
            try:
                async with anyio.create_task_group() as tasks:
                    self._tasks = tasks
                    unclaimed = await self._resume()
                    held_tries = list(self._tries.values())
                    self.resumed = (*unclaimed, *(held.ticket for held in held_tries))
                    for ticket in unclaimed:
                        tasks.start_soon(self.work, ticket)
                    for held in held_tries:
                        tasks.start_soon(self._follow, held)
                    tasks.start_soon(self._keep_renewing, tasks)
                    tasks.start_soon(self._keep_leases)
                    tasks.start_soon(self._keep_sending_logs, tasks)
                    yield
                    await self.drain()
                    await self._idle()
                    tasks.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    if self._executor is not None:
                        await self._executor.close()
                    await self._schedulers.close()

    async def work(self, ticket: Ticket) -> Outcome:
        """Run the try of a ticket; return what became of it, once its end is stored.

        If nobody takes its end, this returns when its lease is over, and the agent goes on reporting. An OSError is one
        of this machine, on which no try can begin.
        """
        token = ticket.token
        if token in self._tries or ticket.proof in self._claiming:
            log.info("ticket.refused", **_names(ticket), reason="this worker has it already")
            return refused("this worker has the ticket already")
        claim = self._claiming[ticket.proof] = _Claim()
        try:
            held, claimed = await self._claimed(ticket, claim)
        except (Refused, ValueError) as exc:  # a ValueError: it is no ticket, such as one whose token names no file
            log.warning("ticket.refused", **_names(ticket), reason=str(exc))
            if isinstance(exc, Refused) and token not in self._tries and len(self._claims_of(token)) == 1:
                await run_sync(self._folder.remove, token)
            claim.outcome = refused(str(exc))
            return claim.outcome
        except (Unreachable, TimeoutError) as exc:
            # It stays in the folder: the answer to its claim may have been lost, and then no other worker gets the try.
            log.warning("ticket.returned", **_names(ticket), reason=str(exc) or RETURNED.text)
            claim.outcome = RETURNED
            return claim.outcome
        finally:
            del self._claiming[ticket.proof]
            claim.over.set()
            self._notify()
        self._tasks.start_soon(self._follow, held)
        await self._begin(held, claimed.launch, claimed.terms)
        return await self._until_over(held)

    async def until_over(self, ticket: Ticket) -> Outcome:
        """Wait for what `work` would return of a ticket of `resumed`, or until no process of its try is left."""
        if (claim := self._claiming.get(ticket.proof)) is not None:
            await claim.over.wait()
            if claim.outcome is not None:
                return claim.outcome
        held = self._tries.get(ticket.token)
        return OVER if held is None else await self._until_over(held)

    def _claims_of(self, token: str) -> list[_Claim]:
        return [claim for proof, claim in self._claiming.items() if proof.token == token]

    async def _until_over(self, held: _Try) -> Outcome:
        while held.outcome is None:
            left = None
            if held.has_ended:
                if held.granted_until is None:
                    return OVER
                left = held.granted_until - self._clock.boottime()
                if left <= 0:
                    return Outcome("failed", "failed: no scheduler takes its end")
                left = max(left, SHORTEST_LOOK)
            await self._clock.wait(self._has_changed, None if left is None else timedelta(seconds=left))
        return held.outcome

    @property
    def n_running(self) -> int:
        """The number of tries that have a process or are about to get one, and of claims. For any thread."""
        return len(self._claiming) + sum(not held.has_ended for held in list(self._tries.values()))

    async def until_fewer(self, n: int) -> None:
        """Wait until fewer than `n` tries have a process, or are about to get one."""
        while self.n_running >= n:
            await self._has_changed.wait()

    async def next(self, last: Ticket) -> Ticket | None:
        """Wait for another ticket after one whose try has ended, if it says so; None: this worker is to end."""
        with anyio.CancelScope() as waiting:
            self._warm.add(waiting)
            try:
                while last.stays_warm and not self._is_draining:
                    found = await self._schedulers.send(last.addresses, "/next", last.proof, Following, PATIENT)
                    if found.ticket is not None:
                        return found.ticket
            except (Refused, Unreachable) as exc:
                log.info("worker.not_needed", reason=str(exc))
            finally:
                self._warm.discard(waiting)
        return None

    def end_claims(self) -> None:
        """Return tickets for which no scheduler answers, from now on: tries that run do not wait for them."""
        self._claims_end.set()

    async def drain(self, grace: float | None = None) -> None:
        """Give running tries some seconds to end, and interrupt the rest.

        No other begins: a try that is claimed already, or of a ticket that is yet to come, ends as interrupted, so that
        its scheduler starts it elsewhere. Tickets for which no scheduler answers are returned.

        Args:
            grace: None: the setting `shutdown_grace`.
        """
        self._is_draining = True
        self.end_claims()
        for waiting in self._warm:
            waiting.cancel()
        if self._executor is not None:
            seconds = self._settings.shutdown_grace if grace is None else grace
            await self._executor.drain(self._clock.now() + timedelta(seconds=seconds))

    async def end(self, token: str, reason: str) -> None:
        """End a try of this worker, for the reason that its engine gives: it fails. Others are ignored."""
        if (held := self._tries.get(token)) is not None:
            await self._end_process(held, reason, "task")
        for claim in self._claims_of(token):
            claim.unwanted = reason

    async def end_all(self, reason: str) -> None:
        """End all tries of this worker, for the same reason: they fail. Tickets wait for no scheduler any more."""
        self.end_claims()
        for token in [*self._tries, *(proof.token for proof in self._claiming)]:
            await self.end(token, reason)

    # How a try begins

    async def _claimed(self, ticket: Ticket, claim: _Claim) -> tuple[_Try, Claimed]:
        """Claim a try, and remember it before it begins.

        Raises Refused, Unreachable, TimeoutError, OSError, and ValueError for what is no ticket.
        """
        await run_sync(self._folder.keep, KeptTicket(ticket))
        with anyio.fail_after(CLAIM_SECONDS):
            claimed, lease_end = await self._schedulers.insist(partial(self._claim, ticket), self._claims_end)
        claim.hashes = tuple(ref.content_hash for ref in claimed.launch.code.sources)
        claim.log_path = claimed.launch.log_path
        while self._is_clearing(claim.log_path):
            await self._has_changed.wait()
        kept, missing, is_kept = await run_sync(self._take, ticket, claimed, claim.hashes)
        held = self._try_of(kept, claimed.terms)
        held.hashes, held.missing, held.is_kept, held.granted_until = claim.hashes, missing, is_kept, lease_end
        held.unwanted, held.cause = (claimed.end, "machine") if claimed.end else (claim.unwanted, "task")
        self._tries[ticket.token] = held
        return held, claimed

    def _take(
        self, ticket: Ticket, claimed: Claimed, hashes: tuple[str, ...]
    ) -> tuple[KeptTicket, Sequence[str], bool]:
        """Return the ticket of a claimed try with what its claim has said, and the sources that it is to fetch.

        If nothing is left to fetch, the ticket is kept; whether it is comes last. Blocks; raises OSError. All of it is
        one call because the way to a thread and back costs more than what is done there.
        """
        launch, terms = claimed.launch, claimed.terms
        kept = KeptTicket(ticket, launch.log_path, size_of(self._home / LOGS / launch.log_path), terms)
        missing = self._sources.missing(hashes)
        is_kept = False
        if not missing and not terms.has_files:
            with suppress(OSError):  # it is tried again, and then the try ends
                self._folder.keep(kept)
                is_kept = True
        return kept, missing, is_kept

    def _is_clearing(self, log_path: str) -> bool:
        """Whether a try that wrote this log is being forgotten, and perhaps its log is removed."""
        return any(one.outcome is not None and one.log.path == log_path for one in self._tries.values())

    async def _claim(self, ticket: Ticket) -> tuple[Claimed, float]:
        """Claim a try; return the answer, and when its lease ends. Raises Refused, and Unreachable."""
        boottime = self._clock.boottime()  # before it is granted: the lease here ends no later than the schedulers say
        claim = Claim(ticket.proof, self._name, self._life)
        claimed = await self._schedulers.send(ticket.addresses, "/claim", claim, Claimed)
        return claimed, boottime + claimed.terms.lease_seconds

    def _try_of(self, kept: KeptTicket, terms: WorkerTerms) -> _Try:
        sender = LogSender(self._schedulers, kept.ticket, self._home / LOGS, kept.log_path, kept.log_start)
        return _Try(kept.ticket, sender, terms.end_seconds)

    async def _begin(self, held: _Try, launch: Launch, terms: WorkerTerms) -> None:
        """Fetch the code of a claimed try, and start it; if that is not possible, the try ends."""
        reason = ""
        try:
            if not (held.unwanted or self._is_draining):
                launch, executor = await self._prepared(held, launch, terms)
                await self._ensure_lease()
                if not (held.unwanted or self._is_draining):  # perhaps since before there was an executor to drain
                    await executor.launch([launch])
                    return
        except (Refused, WrongSource, OSError) as exc:
            reason = f"its code cannot be fetched: {exc}"
        except ExecutorError as exc:
            reason = str(exc)
        except Exception as exc:
            # Whatever it is: schedulers would renew a try without an end for ever.
            log.exception("try.not_begun", **_names(held.ticket))
            reason = f"its worker cannot start it: {exc or type(exc).__name__}"
        cause: FailureCause = "machine"
        if held.unwanted:
            reason, cause = held.unwanted, held.cause
        elif not reason:
            reason, cause = STOPPED, "interrupted"
        self._report(Ended(launch.token, "failed", self._clock.now(), reason=reason, cause=cause))

    async def _prepared(self, held: _Try, launch: Launch, terms: WorkerTerms) -> tuple[Launch, LocalExecutor]:
        """Fetch the code of a try; return its launch with that, and the executor that can start it.

        Raises Refused, WrongSource, OSError, and ExecutorError.
        """
        if held.missing:
            await self._fetch(held)
        bundle = await self._bundles.fetch(held.ticket) if terms.has_files else ""
        if bundle:
            launch = replace(launch, code=replace(launch.code, dags_folder=str(self._bundles.path(bundle))))
        if not held.is_kept:  # until here, the next agent would claim it again
            kept = KeptTicket(held.ticket, launch.log_path, held.log.start, terms, bundle)
            await run_sync(self._folder.keep, kept)
        return launch, await self._executor_for(terms, held)

    async def _fetch(self, held: _Try) -> None:
        """Fetch the sources that are not here yet. Raises Refused, WrongSource, and OSError."""
        numbers = count(-1, -1)  # requests of the try itself count upwards
        for content_hash in held.missing:
            request = Request(held.ticket.token, next(numbers), "source_get", {"content_hash": content_hash})
            reply = await self._ask(held, request)
            if reply.error or not isinstance(reply.value, str):
                raise Refused(reply.error or "a scheduler does not have it", is_over=False)
            await run_sync(self._sources.add, content_hash, reply.value)
        in_use = {one for other in self._tries.values() for one in other.hashes}
        in_use |= {one for claim in self._claiming.values() for one in claim.hashes}
        await run_sync(self._sources.trim, in_use)

    async def _executor_for(self, terms: WorkerTerms, held: _Try | None) -> LocalExecutor:
        """Return the executor of these terms; start it, or start it again if the terms have changed and no try runs."""
        async with self._starting:
            has_others = any(one is not held for one in self._tries.values())
            if self._executor is not None and (has_others or self._terms == terms):
                return self._executor
            if self._executor is not None:
                await self._executor.drain(self._clock.now())
                await self._executor.close()
            self._terms, self._executor, self._told_lease = terms, None, None
            executor = LocalExecutor(self._context(terms), terms.airflow_options)
            if held is not None and held.granted_until is not None:
                executor.renew_lease(held.granted_until)
            found = await executor.start(EPOCH)
            for token in found.known - self._tries.keys():
                await executor.kill(token, "its ticket is lost")
            await executor.acknowledge(sorted(found.ended - self._tries.keys()))
            self._known = found.known
            self._executor = executor
            return executor

    def _context(self, terms: WorkerTerms) -> ExecutorContext:
        own = self._settings
        settings = replace(
            own,
            airflow=terms.airflow,
            default_timezone=terms.default_timezone,
            lease=replace(own.lease, grace=terms.grace, kill_time=terms.kill_time),
            parse=replace(own.parse, import_timeout=terms.import_timeout),
            log=replace(own.log, task_bytes=terms.log_bytes),
        )
        # Another worker may start the task again once a lease is over, as another scheduler may do here.
        return ExecutorContext(
            home=self._home, settings=settings, clock=self._clock, scheduler_id=self._name, report=self._report,
            answer=self._answer, shares_database=True, fail=self._fail,
        )  # fmt: skip

    async def _resume(self) -> list[Ticket]:
        """Take up the tries of an agent before this one; return the tickets of those that have not begun."""
        kept = await run_sync(lambda: list(self._folder.load()))
        if not kept:
            await run_sync(remove_empty_folders, self._home / LOGS)
        terms = None
        for one in kept:
            if one.terms is not None:
                terms = one.terms
                self._tries[one.ticket.token] = self._try_of(one, terms)
                self._bundles.use(one.ticket.token, one.bundle)
        if terms is not None:
            try:
                executor = await self._executor_for(terms, None)
            except SettingsError as exc:
                # This machine cannot have started them: they wait for nothing but the end of their leases.
                log.error("tries.given_up", n_tries=len(self._tries), error=str(exc))  # noqa: TRY400 - a line, no traceback
                for token in self._tries:
                    self._bundles.release(token)
                    await run_sync(self._folder.remove, token)
                self._tries.clear()
                return [one.ticket for one in kept if one.terms is None]
            for token in self._tries.keys() - self._known:
                # Its claim is repeated, which another life of this worker cannot do.
                self._bundles.release(token)
                del self._tries[token]
            for held in self._tries.values():
                held.found_lease = executor.found_lease
        return [one.ticket for one in kept if one.ticket.token not in self._tries]

    # While it runs

    def _start_by_database(self, tasks: TaskGroup, busy: set[Addresses], work: OfDatabase) -> None:
        """Start work on the tries of each database, unless it is under way: one that is away holds up no other.

        Args:
            busy: The databases for which the work is under way.
        """
        by_addresses: dict[Addresses, list[_Try]] = {}
        for held in self._tries.values():
            by_addresses.setdefault(held.ticket.addresses, []).append(held)

        async def work_once(addresses: Addresses) -> None:
            try:
                await work(addresses, by_addresses[addresses])
            finally:
                busy.discard(addresses)

        for addresses in by_addresses:
            if addresses not in busy:
                busy.add(addresses)
                tasks.start_soon(work_once, addresses)

    async def _keep_renewing(self, tasks: TaskGroup) -> None:
        busy: set[Addresses] = set()
        while True:
            if self._failure is not None:
                raise self._failure
            self._start_by_database(tasks, busy, self._renew)
            await self._tell_lease()
            if self._unknown and self._executor is not None:
                unknown, self._unknown = self._unknown, set()
                await self._executor.acknowledge(sorted(unknown))
            await self._clock.sleep(timedelta(seconds=self._terms.renew_interval if self._terms else FIRST_RENEWAL))

    async def _renew(self, addresses: Addresses, tries: list[_Try]) -> None:
        """Renew the leases of tries, and end those that are not wanted any more."""
        for first in range(0, len(tries), MOST_RENEWALS):
            some = tries[first : first + MOST_RENEWALS]
            message = Renew(tuple(held.ticket.proof for held in some))
            boottime = self._clock.boottime()
            try:
                renewed = await self._schedulers.send(addresses, "/renew", message, Renewed)
            except (Unreachable, Refused) as exc:
                log.warning("lease.not_renewed", n_tries=len(some), error=str(exc))
                continue
            for renewal in renewed.renewals:
                await self._note(renewal, boottime)
        await self._tell_lease()

    async def _note(self, renewal: Renewal, boottime: float) -> None:
        held = self._tries.get(renewal.token)
        if held is None:
            return
        if renewal.seconds:
            held.granted_until = boottime + renewal.seconds
        if renewal.end and held.needs_lease:
            await self.end(renewal.token, renewal.end)

    async def _keep_leases(self) -> None:
        """End each try whose own lease is over, also while the renewals of others wait for a scheduler."""
        seconds = SHORTEST_LOOK
        while True:
            await self._clock.sleep(timedelta(seconds=seconds))
            if (terms := self._terms) is None:
                seconds = LONGEST_LOOK
                continue
            ends = [
                (end + terms.grace - HEAD_START, held)
                for held in self._tries.values()
                if held.needs_lease and (end := held.lease_end(terms)) is not None
            ]
            now = self._clock.boottime()
            lapsed = [held for end, held in ends if end <= now]
            for held in lapsed:
                log.warning("lease.lapsed", **_names(held.ticket))
                await self._end_process(held, LAPSED, "machine")
            if lapsed:
                await self._tell_lease()
            left = min((end - now for end, _ in ends if end > now), default=LONGEST_LOOK)
            seconds = max(SHORTEST_LOOK, min(left, LONGEST_LOOK))

    async def _end_process(self, held: _Try, reason: str, cause: FailureCause) -> None:
        held.unwanted, held.cause = reason, cause
        if self._executor is not None:
            await self._executor.kill(held.ticket.token, reason, cause)

    async def _tell_lease(self) -> None:
        """Tell the keeper when its lease ends, if that is known."""
        async with self._telling:  # what is told last is true last
            if self._executor is not None and (end := self._lease_end()) is not None:
                await run_sync(self._executor.renew_lease, end)
                self._told_lease = end

    async def _ensure_lease(self) -> None:
        """Tell the keeper when its lease ends, before a try begins: unless it ends no later already, and not soon."""
        told, end = self._told_lease, self._lease_end()
        soon = self._clock.boottime() + 2 * (self._terms.renew_interval if self._terms else 0.0)
        if told is None or end is None or not soon < told <= end:
            await self._tell_lease()

    def _lease_end(self) -> float | None:
        """Return when the first lease of the keeper's tries ends. Without any try, it may wait for the next one.

        None: it is not known yet of a try.
        """
        if (terms := self._terms) is None:
            return None
        ends = [held.lease_end(terms) for held in self._tries.values() if held.needs_lease]
        granted = [end for end in ends if end is not None]
        idle = self._clock.boottime() + terms.lease_seconds
        return min(granted, default=idle) if len(granted) == len(ends) else None

    async def _keep_sending_logs(self, tasks: TaskGroup) -> None:
        busy: set[Addresses] = set()
        while True:
            await self._clock.sleep(LOG_PAUSE)
            self._start_by_database(tasks, busy, self._send_logs)

    async def _send_logs(self, _addresses: Addresses, left: list[_Try]) -> None:
        """Send a part of each log in turn, for a limited number of rounds, so that no log holds up the others."""
        for _ in range(MOST_PARTS):
            some, left = left, []
            for held in some:
                try:
                    if await held.log.send_part():
                        left.append(held)
                except Unreachable:
                    return
                except (Refused, OSError) as exc:
                    log.debug("log.refused", **_names(held.ticket), reason=str(exc))

    def _report(self, event: TryEvent) -> None:
        if (held := self._tries.get(event.token)) is not None:
            held.has_ended = isinstance(event, Ended)
            held.events.put_nowait(event)
            self._notify()
        elif isinstance(event, Ended):
            self._unknown.add(event.token)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._notify()

    async def _answer(self, request: Request) -> Reply:
        if (held := self._tries.get(request.token)) is None:
            return Reply(request.token, request.request_id, error="this worker does not know the try")
        try:
            return await self._ask(held, request)
        except Refused as exc:
            return Reply(request.token, request.request_id, error=str(exc))

    async def _ask(self, held: _Try, request: Request) -> Reply:
        """Pass a request on, and return its answer. Raises Refused."""
        ask, addresses = Ask(held.ticket.proof, request), held.ticket.addresses
        return await self._schedulers.insist(
            lambda: self._schedulers.send(addresses, "/request", ask, Reply, patience=PATIENT)
        )

    # How it ends

    async def _follow(self, held: _Try) -> None:
        """Report the start and the end of a try. Return once the end is stored."""
        started = None
        while True:
            event = await self._next_event(held, None if started is None else START_SECONDS)
            if isinstance(event, Ended):
                await self._end(held, event, started)
                return
            if started is not None:
                await self._send(held, started)
            started = event

    async def _next_event(self, held: _Try, seconds: float | None) -> TryEvent | None:
        with anyio.move_on_after(seconds):
            return await held.events.get()
        return None

    async def _end(self, held: _Try, ended: Ended, started: Started | None) -> None:
        """Report the end of a try until it is stored, with its start if that is not reported; then forget the try."""
        token = ended.token
        is_log_wanted = True
        with anyio.move_on_after(LAST_LOG_SECONDS):
            # First: the log of a try that is over is whole.
            is_log_wanted = await self._send_log(held)
        with anyio.move_on_after(REPORT_SECONDS) as reporting:
            if not await self._send(held, ended, started):
                reason = "its end cannot be reported: it is too large, or no message of the protocol"
                await self._send(held, Ended(token, "failed", ended.ended_at, ended.started_at, reason, retry=False))
        if reporting.cancelled_caught:
            log.error("end.not_reported", **_names(held.ticket), seconds=REPORT_SECONDS)
        text = f"{ended.state}: {ended.reason}" if ended.reason else ended.state
        held.outcome = Outcome("failed" if ended.state == "failed" else "done", text)
        self._notify()  # its engine may give its slot to another try meanwhile
        has_own_log = not self._is_log_in_use(held.log.path)
        await run_sync(partial(self._clear, held, is_log_wanted=is_log_wanted, has_own_log=has_own_log))
        if self._executor is not None:
            await self._executor.acknowledge([token])
        self._bundles.release(token)
        del self._tries[token]
        self._notify()

    def _is_log_in_use(self, path: str) -> bool:
        """Whether a try that goes on, or is being claimed, writes this log.

        It may be the next process of a try, such as after a deferral, or a callback that has begun again while an
        attempt had not ended yet.
        """
        going_on = [one.log.path for one in self._tries.values() if one.outcome is None]
        return path in going_on or any(claim.log_path == path for claim in self._claiming.values())

    async def _send_log(self, held: _Try) -> bool:
        """Send the rest of a try's log. Returns False if no scheduler wants it."""
        try:
            await self._schedulers.insist(held.log.send)
        except Refused as exc:
            log.debug("log.refused", **_names(held.ticket), reason=str(exc))
            return False
        except OSError as exc:  # its task may have put another thing in its place
            log.warning("log.unreadable", **_names(held.ticket), error=str(exc))
        return True

    def _clear(self, held: _Try, *, is_log_wanted: bool, has_own_log: bool) -> None:
        """Remove the ticket and the log of a try whose end is stored. Blocks."""
        with suppress(OSError):  # then the next agent of the home tells schedulers again
            self._folder.remove(held.ticket.token)
        if has_own_log and (rest := held.log.remove(is_wanted=is_log_wanted)) is not None:
            log.warning("log.incomplete", **_names(held.ticket), whole_log=str(rest))

    async def _send(self, held: _Try, event: TryEvent, started: Started | None = None) -> bool:
        """Report an event until it is stored, or the try is over for the schedulers. False: they cannot read it."""
        stays_warm = held.ticket.stays_warm and isinstance(event, Ended) and not self._is_draining
        report, addresses = Report(held.ticket.proof, event, started, stays_warm), held.ticket.addresses
        try:
            await self._schedulers.insist(lambda: self._schedulers.send(addresses, "/report", report, type(None)))
        except Refused as exc:
            log.warning("report.refused", **_names(held.ticket), reason=str(exc))
            return exc.is_over
        return True

    async def _idle(self) -> None:
        """Wait until no try and no claim is left, and all ends are stored. Raises the error of a failed keeper."""
        while self._tries or self._claiming:
            if self._failure is not None:
                raise self._failure
            await self._has_changed.wait()

    def _notify(self) -> None:
        self._has_changed.set()
        self._has_changed = anyio.Event()


def _names(ticket: Ticket) -> dict[str, object]:
    """Return the fields that name a try in the log."""
    return {
        "dag_id": ticket.dag_id, "run_id": ticket.run_id, "task_id": ticket.task_id, "try_number": ticket.try_number,
    }  # fmt: skip
