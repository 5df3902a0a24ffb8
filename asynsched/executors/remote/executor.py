"""RemoteExecutor: an engine carries tickets to other machines, whose workers speak to any scheduler of the database.

The database has everything: the ticket of each try, its claim, its renewals, its start and its end. So a try outlives
the scheduler that submitted it: the next one that owns its run adopts it, on this home or any other. All work with the
database and the engine is done by one task of the event loop, in passes; the methods of the executor only note what is
to be done. If the database or the engine is away, the pass is repeated.
"""

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import ClassVar, TypeVar

import anyio
import msgspec
import structlog

from asynsched.clock import new_token
from asynsched.errors import SettingsError, StoreUnavailable
from asynsched.executors.base import Executor, ExecutorContext, Held
from asynsched.executors.remote.engine import Accepted, Engine, Job, Later, Rejected, Sight
from asynsched.executors.remote.verdicts import GivenUp, Seen, verdict
from asynsched.protocol.messages import Ended, Launch, Started
from asynsched.protocol.worker_messages import Ticket
from asynsched.store.schema import TicketRow
from asynsched.store.tickets import (
    CLAIMED,
    ENDED,
    SUBMITTED,
    Progress,
    add_tickets,
    digest_of_secret,
    drop_news,
    end_ticket,
    forget_left_tickets,
    forget_tickets,
    news_of_tickets,
    note_sights,
    progress_of_tickets,
    reissue,
    request_kill,
    set_engine_ids,
    tickets_of_runs,
    tickets_of_scheduler,
)

log = structlog.get_logger(__name__)

T = TypeVar("T")
AT_ONCE = 100
"""Number of tickets that are submitted together."""
RETRY_PAUSE = timedelta(seconds=1)
"""Time before a pass is repeated that has failed."""
CLOSE_SECONDS = 5.0
"""Longest that a stop waits for the database and the engine."""
MOST_MISSED = 3
"""Looks that may be missed. After more, no worker may have been able to renew, and every lease gets its whole time."""
STOPPED = "the scheduler stopped"
NOT_OURS = "its run is no longer this scheduler's"
UNKNOWN = Sight("unknown")
NEW = "new"
"""The state of a try that the engine is not known to have."""


@dataclass(eq=False)
class _Try:
    """A try that has not ended.

    Attributes:
        secret: Of its ticket; empty where an earlier scheduler has made that.
        may_be_stored: Whether its ticket was written, perhaps without an answer: then it is for the database to say how
            it ends.
        is_stored: Whether its ticket is known to be stored.
        since: When its state or its renewals were first seen as they are, on the monotonic clock.
        running_since: When the engine first said that its job runs.
    """

    launch: Launch
    since: float
    state: str = NEW
    secret: str = field(default="", repr=False)
    may_be_stored: bool = False
    is_stored: bool = False
    engine_id: str = ""
    renewals: int = 0
    gone_after: float = 0.0
    has_begun: bool = False
    sight: Sight = UNKNOWN
    running_since: float | None = None

    def seen(self, now: float) -> Seen:
        running = 0.0 if self.running_since is None else now - self.running_since
        return Seen(self.state, now - self.since, self.gone_after, self.sight, running)


class RemoteExecutor(Executor):
    """Runs tries through an engine. Subclass it, and set `engine_class`.

    Attributes:
        engine_class: The engine's adapter.
    """

    engine_class: ClassVar[type[Engine]]
    runs_tasks_only = True

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        self._settings = context.settings
        if not self._settings.workers.addresses:
            raise SettingsError(
                "workers.addresses: workers on other machines need the URLs of the schedulers, such as"
                " https://scheduler.example:8080"
            )
        if context.database is None:
            raise SettingsError("executor: this executor needs a scheduler with a database")
        self._database = context.database
        self._clock = context.clock
        self.engine = self.engine_class(context)
        self._tries: dict[str, _Try] = {}
        self._new: dict[str, None] = {}
        """Tries that the engine is not known to have, oldest first."""
        self._reported: set[str] = set()
        """Tries whose ends are reported and not acknowledged."""
        self._to_kill: dict[str, str] = {}
        self._to_forget: set[str] = set()
        self._wakeup = anyio.Event()
        self._is_draining = False
        self._interval = timedelta(seconds=self._settings.workers.renew_interval)
        self._epoch = 0
        self._looked_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def parallelism(self) -> int:
        return self.engine.parallelism

    @property
    def kept(self) -> Collection[str]:
        return frozenset(token for token, one in self._tries.items() if one.may_be_stored)

    # What the scheduler says

    async def start(self, lease_epoch: int) -> Held:
        self._epoch = lease_epoch
        await self.engine.start()
        while await self._database.write(forget_left_tickets, self.context.name):
            pass
        rows = await self._database.read(tickets_of_scheduler, self.context.scheduler_id, self.context.name)
        held = self._take(rows)
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._note_end)
        return held

    async def adopt(self, run_ids: Sequence[int]) -> Held:
        return self._take(await self._database.read(tickets_of_runs, run_ids, self.context.name))

    async def launch(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            if launch.token in self._tries or launch.token in self._reported:
                continue
            if self._is_draining:
                self._over(self._end_of(launch.token, GivenUp(STOPPED, "interrupted")))
            else:
                self._tries[launch.token] = _Try(launch, self._clock.monotonic(), secret=new_token() + new_token())
                self._new[launch.token] = None
        self.look()

    async def kill(self, token: str, reason: str) -> None:
        if token in self._tries:
            self._to_kill[token] = reason
            self.look()

    async def acknowledge(self, tokens: Sequence[str]) -> None:
        known = self._reported.intersection(tokens)
        self._reported -= known
        self._to_forget |= known
        self.look()

    def look(self) -> None:
        self._wakeup.set()

    async def drain(self, deadline: datetime) -> None:
        """Submit no more; what workers run goes on, and the next scheduler of its run adopts it."""
        self._is_draining = True
        for token in [token for token, one in self._tries.items() if not one.may_be_stored]:
            self._over(self._end_of(token, GivenUp(STOPPED, "interrupted")))
        self.look()

    async def close(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._task
        with anyio.move_on_after(CLOSE_SECONDS), suppress(StoreUnavailable):
            await self._forget()
        with anyio.move_on_after(CLOSE_SECONDS):
            await self.engine.close()

    def _take(self, rows: Iterable[TicketRow]) -> Held:
        """Take tickets as they are stored, and report starts and ends."""
        starting, running, ended = set(), set(), set()
        for row in rows:
            if row.state == ENDED:
                ended.add(row.token)
            elif row.started is not None:
                running.add(row.token)
            else:
                starting.add(row.token)
            if row.token not in self._tries and row.token not in self._reported and row.state != ENDED:
                launch = msgspec.json.decode(row.launch, type=Launch)
                state = NEW if row.state == SUBMITTED and not row.engine_id else row.state
                self._tries[row.token] = _Try(
                    launch, self._clock.monotonic(), state, may_be_stored=True, is_stored=True,
                    engine_id=row.engine_id, renewals=row.renewals, gone_after=row.lease_seconds + row.end_seconds,
                )  # fmt: skip
                if state == NEW:
                    self._new[row.token] = None
                if row.kill_reason:
                    self._to_kill[row.token] = row.kill_reason
            self._hear(row)
        self.look()
        return Held(frozenset(starting), frozenset(running), frozenset(ended))

    def _hear(self, row: TicketRow) -> None:
        """Report a start and an end that are stored, once each."""
        one = self._tries.get(row.token)
        if one is not None and row.started is not None and not one.has_begun:
            one.has_begun = True
            self.context.report(msgspec.json.decode(row.started, type=Started))
        if row.ended is not None:
            self._over(msgspec.json.decode(row.ended, type=Ended))

    def _over(self, ended: Ended) -> None:
        """Report the end of a try, once."""
        self._tries.pop(ended.token, None)
        self._new.pop(ended.token, None)
        self._to_kill.pop(ended.token, None)
        if self._new:
            self.look()  # one of them may have waited for it
        if ended.token not in self._reported and ended.token not in self._to_forget:
            self._reported.add(ended.token)
            self.context.report(ended)

    def _end_of(self, token: str, given_up: GivenUp, *, retry: bool = True) -> Ended:
        return Ended(
            token, "failed", self._clock.now(), reason=given_up.reason, cause=given_up.cause, retry=retry
        )  # fmt: skip

    # The passes

    async def _run(self) -> None:
        while True:
            await self._clock.wait(self._wakeup, self._interval)
            self._wakeup = anyio.Event()
            try:
                await self._pass()
            except StoreUnavailable as exc:
                log.warning("executor.database_unavailable", executor=self.context.name, error=str(exc))
                await self._clock.sleep(RETRY_PAUSE)
                self.look()

    async def _pass(self) -> None:
        """Do one pass over everything."""
        await self._forget()
        await self._hear_news()
        await self._kill()
        await self._submit()
        now = self._clock.monotonic()
        if self._looked_at is None or now - self._looked_at >= self._interval.total_seconds():
            await self._look_at_all(now)

    async def _forget(self) -> None:
        tokens = list(self._to_forget)
        if tokens:
            await self._database.write(forget_tickets, tokens)
            self._to_forget.difference_update(tokens)

    async def _hear_news(self) -> None:
        while rows := await self._database.read(news_of_tickets, self.context.scheduler_id, self.context.name):
            # Those of a run that was just taken over are not known yet; `adopt` reads them.
            known = [row for row in rows if row.token in self._tries or row.token in self._reported]
            for row in known:
                self._hear(row)
            if not known:
                return
            await self._database.write(drop_news, known)

    async def _kill(self) -> None:
        for token, reason in list(self._to_kill.items()):
            one = self._tries.get(token)
            if one is None or (one.may_be_stored and not one.is_stored):
                continue  # it has ended meanwhile; or the next pass says whether its ticket is stored
            stored: Ended | None = Ended(token, "failed", self._clock.now(), reason=reason)
            if one.is_stored and stored is not None:
                stored = await self._database.write(end_ticket, stored, before=SUBMITTED)
            if stored is None:
                await self._database.write(request_kill, token, reason)
                self._to_kill.pop(token, None)
                continue
            self._over(stored)
            if one.engine_id:
                await self._call("cancel", self.engine.cancel([one.engine_id]))

    async def _submit(self) -> None:
        """Store the tickets of new tries, and hand them to the engine."""
        left = iter(self._without_predecessor())
        while (tokens := list(islice(left, AT_ONCE))) and not self._is_draining:
            some = [self._tries[token] for token in tokens if token in self._new]
            await self._reissue([one for one in some if not one.secret])
            await self._store([one for one in some if not one.is_stored])
            ready = [one for one in some if one.launch.token in self._new]
            answers = await self._call("submit", self.engine.submit([self._job(one) for one in ready]))
            if answers is None:
                return  # the next pass tries it again
            await self._note_answers(dict(zip((one.launch.token for one in ready), answers, strict=True)))
            if answers and all(isinstance(answer, Later) for answer in answers):
                return

    def _without_predecessor(self) -> list[str]:
        """Return the new tries that may begin: no other one of their task instances may still run.

        The worker of a try that is to end may not know that yet.
        """
        busy = {_instance_of(one.launch) for one in self._tries.values() if one.state != NEW}
        return [token for token in self._new if _instance_of(self._tries[token].launch) not in busy]

    async def _reissue(self, unsure: Sequence[_Try]) -> None:
        """Give new secrets to tickets that an earlier scheduler may have submitted, so that its copies are void."""
        for one in unsure:
            secret = new_token() + new_token()
            if await self._database.write(reissue, one.launch.token, digest_of_secret(secret)):
                one.secret = secret
            else:
                self._note_submitted(one)  # a worker has claimed it: the next look says more

    async def _store(self, new: Sequence[_Try]) -> None:
        """Store tickets, and end the tries whose runs have another owner: it launches them, if they are to run."""
        if not new:
            return
        digests = {one.launch.token: digest_of_secret(one.secret) for one in new}
        for one in new:
            one.may_be_stored = True
        added = await self._database.write(
            add_tickets, [one.launch for one in new], digests, executor=self.context.name,
            owner=self.context.scheduler_id, epoch=self._epoch, now=self._clock.now(),
        )  # fmt: skip
        for one in new:
            token = one.launch.token
            if token in added.lost:
                self._over(self._end_of(token, GivenUp(NOT_OURS, "interrupted")))
                continue
            one.is_stored = True
            if token not in added.own:
                self._note_submitted(one)  # there is another ticket for it: the next look says how far that is

    async def _note_answers(self, answers: Mapping[str, Accepted | Rejected | Later]) -> None:
        engine_ids, sights = {}, {}
        for token, answer in answers.items():
            if (one := self._tries.get(token)) is None:
                continue  # it has ended meanwhile
            if isinstance(answer, Later):
                self._new[token] = self._new.pop(token)  # after the others, which the engine may take
                sights[one] = Sight("queued", answer.reason)
                continue
            self._note_submitted(one)
            if isinstance(answer, Accepted):
                one.engine_id = engine_ids[token] = answer.engine_id[:256]
            else:
                rejected = self._end_of(token, GivenUp(answer.reason, "task"), retry=False)
                await self._end(rejected, before=SUBMITTED)
        await self._database.write(set_engine_ids, engine_ids)
        await self._note_sights(sights)

    def _note_submitted(self, one: _Try) -> None:
        self._new.pop(one.launch.token, None)
        one.state, one.since = SUBMITTED, self._clock.monotonic()

    def _job(self, one: _Try) -> Job:
        launch = one.launch
        ticket = Ticket(
            launch.token, one.secret, self._settings.workers.addresses, launch.run.dag_id, launch.run.run_id,
            launch.task_id, launch.map_index, launch.try_number,
        )  # fmt: skip
        return Job(ticket, launch.queue, launch.priority_weight, launch.pool, launch.executor_config)

    async def _look_at_all(self, now: float) -> None:
        """See how far each try is, and give up those that are lost."""
        if self._looked_at is not None and now - self._looked_at > MOST_MISSED * self._interval.total_seconds():
            for one in self._tries.values():
                one.since = now
        stored = {token: one for token, one in self._tries.items() if one.is_stored and one.state != NEW}
        progress = await self._database.read(progress_of_tickets, sorted(stored))
        for found in progress:
            self._note(stored[found.token], found)
        await self._look_at_engine([one for one in stored.values() if one.state == SUBMITTED and one.engine_id])
        # After the rows were read: it is never too early.
        self._looked_at = self._clock.monotonic()
        rows = {found.token: found for found in progress}
        for token, one in stored.items():
            if token not in self._tries:
                continue  # it has ended meanwhile
            if token not in rows or one.state == ENDED:
                await self._find_end(token, one)
            elif (given_up := self._verdict(one, now)) is not None:
                given_up = await self._explained(one, given_up)
                log.warning("try.given_up", token=token, executor=self.context.name, reason=given_up.reason)
                renewals = one.renewals if one.state == CLAIMED else None
                await self._end(self._end_of(token, given_up), before=one.state, renewals=renewals)

    def _verdict(self, one: _Try, now: float) -> GivenUp | None:
        return verdict(one.seen(now), self._settings.workers.claim_timeout)

    async def _explained(self, one: _Try, given_up: GivenUp) -> GivenUp:
        """Add what the engine says of a job whose worker is silent, such as that its memory was full."""
        if one.state != CLAIMED or not one.engine_id:
            return given_up
        sights = await self._call("look", self.engine.look([one.engine_id])) or {}
        sight = sights.get(one.engine_id, UNKNOWN)
        if sight.state != "gone" or not sight.reason:
            return given_up
        return replace(given_up, reason=f"{given_up.reason}: {sight.reason}")

    def _note(self, one: _Try, found: Progress) -> None:
        if (found.state, found.renewals) != (one.state, one.renewals):
            one.since = self._clock.monotonic()
        one.state, one.renewals, one.gone_after = found.state, found.renewals, found.gone_after

    async def _look_at_engine(self, submitted: Sequence[_Try]) -> None:
        """Ask the engine for the jobs whose tries no worker has claimed, and store what has changed, for people."""
        sights = await self._call("look", self.engine.look([one.engine_id for one in submitted])) if submitted else {}
        await self._note_sights({one: (sights or {}).get(one.engine_id, UNKNOWN) for one in submitted})

    async def _note_sights(self, sights: Mapping[_Try, Sight]) -> None:
        """Store how the engine sees jobs, as far as that has changed."""
        changed = {}
        for one, sight in sights.items():
            if sight != one.sight:
                changed[one.launch.token] = f"{sight.state}: {sight.reason}" if sight.reason else sight.state
                one.running_since = self._clock.monotonic() if sight.state == "running" else None
            one.sight = sight
        if changed:
            await self._database.write(note_sights, changed)

    async def _find_end(self, token: str, one: _Try) -> None:
        """Report the end of a try whose ticket is over; without a ticket, it ends once its lease is over."""
        stored = await self._database.write(end_ticket, self._end_of(token, GivenUp("", "machine")), before=ENDED)
        if stored is not None:
            self._over(stored)
        elif one.state == SUBMITTED or self._verdict(one, self._clock.monotonic()) is not None:
            self._over(self._end_of(token, GivenUp("its ticket was deleted", "machine")))

    async def _end(self, ended: Ended, *, before: str, renewals: int | None = None) -> None:
        """End a try, unless its state has changed meanwhile."""
        stored = await self._database.write(end_ticket, ended, before=before, renewals=renewals)
        if stored is not None:
            self._over(stored)

    async def _call(self, what: str, call: Awaitable[T]) -> T | None:
        """Return the answer of the engine; None if it fails."""
        try:
            return await call
        except Exception as exc:  # noqa: BLE001 - whatever an adapter raises, the next pass calls it again
            log.warning("engine.failed", executor=self.context.name, call=what, error=str(exc) or type(exc).__name__)
            return None

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            log.error("executor.failed", exc_info=error)
            self.context.fail(error)


def _instance_of(launch: Launch) -> tuple[str, str, str, int]:
    return launch.run.dag_id, launch.run.run_id, launch.task_id, launch.map_index
