"""RemoteExecutor: an engine carries tickets to other machines, whose workers speak to any scheduler of the database.

The database has everything: the ticket of each try, its claim, its renewals, its start and its end. So a try outlives
the scheduler that submitted it: the next one that owns its run adopts it, on this home or any other. All work with the
database and the engine is done by one task of the event loop, in passes; the methods of the executor only note what is
to be done. If the database or the engine is away, the pass is repeated.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import ClassVar, Literal, TypeVar

import anyio
import msgspec

from asynsched.clock import new_token
from asynsched.errors import SettingsError, StoreUnavailable
from asynsched.executors.base import STOPPED, Executor, ExecutorContext, Held, TryEvent
from asynsched.executors.remote.engine import Accepted, Engine, Job, Later, Rejected, Sight, reason_of
from asynsched.executors.remote.verdicts import GivenUp, Seen, verdict
from asynsched.loggers import get_logger
from asynsched.protocol.messages import Ended, Launch, Started
from asynsched.protocol.worker_messages import Ticket
from asynsched.slices import Slices
from asynsched.store.schema import TicketRow
from asynsched.store.tickets import (
    CLAIMED,
    ENDED,
    MOST_NEWS,
    SUBMITTED,
    Progress,
    add_tickets,
    digest_of_secret,
    end_ticket,
    forget_left_tickets,
    news_of_tickets,
    note_tickets,
    progress_of_tickets,
    reissue,
    request_kill,
    tickets_of_runs,
    tickets_of_scheduler,
)

log = get_logger(__name__)

T = TypeVar("T")
AT_ONCE = 100
"""Most tickets that are submitted together."""
MOST_CANCELS = 10
"""How often an engine is asked to drop a job, if it fails at that alone."""
MOST_NOTED = 500
"""Most engine ids, sights and forgotten tickets that one transaction stores."""
RETRY_PAUSE = timedelta(seconds=1)
"""Time before a pass that has failed is repeated, and before an engine that has failed is called again."""
TAKES_NOTHING_SECONDS = 10.0
"""How long an engine takes no job at all, before the log says so."""
LOG_PAUSE_SECONDS = 600.0
"""Least time between two such lines: at a quota, an engine takes a job now and then, and nothing in between."""
CLOSE_SECONDS = 5.0
"""Longest that a stop waits for the database and the engine."""
MOST_MISSED = 3
"""Looks that may be missed, not counting waits for the engine. After more, no worker may have been able to renew, and
every lease gets its whole time."""
NOT_OURS = "its run is no longer this scheduler's"
UNKNOWN = Sight("unknown")


@dataclass(eq=False)
class _Try:
    """A try that has not ended.

    Attributes:
        secret: Of its ticket; empty where an earlier scheduler has made that.
        former_digest: Of the secret of a ticket that an earlier scheduler has made; empty: this one has made the first.
        ticket: Whether it is stored; `unsure`: it was written, perhaps without an answer. Unless it is `none`, it is
            for the database to say how the try ends.
        since: When its state or its renewals were first seen as they are, on the monotonic clock.
        running_since: When the engine first said that its job runs.
        retry_at: When it is submitted again, after the engine has failed at this job and not at others; 0: it has not.
    """

    launch: Launch
    since: float
    state: str = SUBMITTED
    secret: str = field(default="", repr=False)
    former_digest: str = ""
    ticket: Literal["none", "unsure", "stored"] = "none"
    engine_id: str = ""
    renewals: int = 0
    gone_after: float = 0.0
    has_begun: bool = False
    sight: Sight = UNKNOWN
    running_since: float | None = None
    retry_at: float = 0.0

    def seen(self, now: float) -> Seen:
        running = 0.0 if self.running_since is None else now - self.running_since
        return Seen(self.state, now - self.since, self.gone_after, self.sight, running)


@dataclass
class _OutageLog:
    """Says in the log that an engine takes nothing, once that has lasted, and that it takes jobs again.

    Attributes:
        since: When the engine first took nothing of what it was given, on the monotonic clock; None: no outage.
    """

    executor: str
    since: float | None = None
    _is_logged: bool = False
    _logged_at: float = -math.inf

    def note(self, answers: Sequence[Accepted | Rejected | Later], now: float) -> None:
        """Note the answers of the engine to some jobs."""
        reasons = [answer.reason for answer in answers if isinstance(answer, Later)]
        if any(isinstance(answer, Accepted) for answer in answers):
            if self._is_logged:
                log.info("engine.takes_jobs_again", executor=self.executor)
            self.since, self._is_logged = None, False
        elif not reasons:
            return  # an adapter may reject a job without asking its engine
        elif self.since is None:
            self.since = now
        elif self._is_logged:
            return
        elif now >= max(self.since + TAKES_NOTHING_SECONDS, self._logged_at + LOG_PAUSE_SECONDS):
            self._is_logged, self._logged_at = True, now
            log.warning("engine.takes_no_jobs", executor=self.executor, reason=reasons[0])


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
        self._to_cancel: dict[str, int] = {}
        """Jobs of killed tries, by their ids, and how often the engine has failed to drop each alone."""
        self._to_forget: set[str] = set()
        self._rejected: dict[str, str] = {}
        """Why the engine has rejected tries whose ends are not stored."""
        self._engine_ids: dict[str, str] = {}
        self._sights: dict[str, str] = {}
        """How the engine sees jobs, by the tokens of their tries, as far as that is not stored yet."""
        self._wakeup = anyio.Event()
        self._may_have_news = True
        """Whether the database may have starts or ends that nobody has told this executor."""
        self._is_draining = False
        self._interval = timedelta(seconds=self._settings.workers.renew_interval)
        self._pause = min(RETRY_PAUSE, self._interval)
        self._n_at_once = self._n_cancelled = AT_ONCE
        self._submit_at = 0.0
        self._cancel_at = 0.0
        """When the engine may be called again after it has failed, on the monotonic clock."""
        self._outage_log = _OutageLog(context.name)
        self._epoch = 0
        self._slices = Slices()
        self._looked_at: float | None = None
        self._engine_seconds = 0.0
        """How long the engine was waited for since then."""
        self._task: asyncio.Task[None] | None = None

    @property
    def parallelism(self) -> int:
        return self.engine.parallelism

    @property
    def kept(self) -> Collection[str]:
        return frozenset(token for token, one in self._tries.items() if one.ticket != "none")

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
        return self._take(
            await self._database.read(tickets_of_runs, run_ids, self.context.name, self.context.scheduler_id)
        )

    async def launch(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            if launch.token in self._tries or launch.token in self._reported:
                continue
            if self._is_draining:
                self._over(self._end_of(launch.token, GivenUp(STOPPED, "interrupted")))
            else:
                self._to_forget.discard(launch.token)  # its end is awaited again: the next look finds it
                self._tries[launch.token] = _Try(launch, self._clock.monotonic(), secret=new_token() + new_token())
                self._new[launch.token] = None
        self._wakeup.set()

    async def kill(self, token: str, reason: str) -> None:
        if token in self._tries:
            self._to_kill[token] = reason
            self._wakeup.set()

    async def acknowledge(self, tokens: Sequence[str]) -> None:
        """Forget these tries at the next look, together: no other try waits for that."""
        known = self._reported.intersection(tokens)
        self._reported -= known
        self._to_forget |= known
        if len(self._to_forget) >= MOST_NOTED:
            self._wakeup.set()

    def look(self) -> None:
        self._may_have_news = True
        self._wakeup.set()

    def hear(self, events: Sequence[TryEvent]) -> None:
        for event in events:
            # The others are of another executor or scheduler, or of a run that is being taken over: `adopt` reads them.
            if event.token in self._tries:
                self._hear(event)

    async def drain(self, deadline: datetime) -> None:
        """Submit no more; what workers run goes on, and the next scheduler of its run adopts it."""
        self._is_draining = True
        for token in [token for token, one in self._tries.items() if one.ticket == "none"]:
            self._over(self._end_of(token, GivenUp(STOPPED, "interrupted")))
        self._wakeup.set()

    async def close(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._task
        with anyio.move_on_after(CLOSE_SECONDS), suppress(StoreUnavailable):
            await self._note_tickets()
        with anyio.move_on_after(CLOSE_SECONDS):
            await self.engine.close()

    def _take(self, rows: Iterable[TicketRow]) -> Held:
        """Take tickets as they are stored, and report starts and ends."""
        starting, running, ended = set(), set(), set()
        for row in rows:
            if row.state == ENDED:
                ended.add(row.token)
                # An end that was reported before its run was known here was acknowledged, and stored nowhere.
                self._reported.discard(row.token)
                self._to_forget.discard(row.token)
            elif row.started is not None:
                running.add(row.token)
            else:
                starting.add(row.token)
            if row.token not in self._tries and row.token not in self._reported and row.state != ENDED:
                launch = msgspec.json.decode(row.launch, type=Launch)
                self._tries[row.token] = _Try(
                    launch, self._clock.monotonic(), row.state, ticket="stored", engine_id=row.engine_id,
                    renewals=row.renewals, gone_after=row.lease_seconds + row.end_seconds, former_digest=row.digest,
                )  # fmt: skip
                if row.state == SUBMITTED and not row.engine_id:
                    self._new[row.token] = None
                if row.kill_reason:
                    self._to_kill[row.token] = row.kill_reason
            elif row.token in self._new:
                self._tries[row.token].retry_at = 0.0  # its run may have been taken over
            self._hear_row(row)
        self.look()
        return Held(frozenset(starting), frozenset(running), frozenset(ended))

    def _hear_row(self, row: TicketRow) -> None:
        """Report a start and an end that are stored, once each."""
        if row.started is not None:
            self._hear(msgspec.json.decode(row.started, type=Started))
        if row.ended is not None:
            self._hear(msgspec.json.decode(row.ended, type=Ended))

    def _hear(self, event: TryEvent) -> None:
        if isinstance(event, Ended):
            self._over(event)
        elif (one := self._tries.get(event.token)) is not None and not one.has_begun:
            one.has_begun = True
            if self._is_new(one):
                self._note_submitted(one)
            self.context.report(event)

    def _over(self, ended: Ended) -> None:
        """Report the end of a try, once."""
        self._tries.pop(ended.token, None)
        self._new.pop(ended.token, None)
        self._to_kill.pop(ended.token, None)
        if self._new:
            self._wakeup.set()  # one of them may have waited for it
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
            until_submit = timedelta(seconds=self._submit_at - self._clock.monotonic())
            is_paused = bool(self._new) and until_submit > timedelta()
            await self._clock.wait(self._wakeup, min(until_submit, self._interval) if is_paused else self._interval)
            self._wakeup = anyio.Event()
            try:
                await self._pass()
            except StoreUnavailable as exc:
                log.warning("executor.database_unavailable", executor=self.context.name, error=str(exc))
                await self._clock.sleep(RETRY_PAUSE)
                self.look()

    async def _pass(self) -> None:
        """Do one pass. Kills and submissions come first, because tasks wait for them; records are stored last."""
        failures: list[StoreUnavailable] = []

        async def take(step: Awaitable[None]) -> None:
            try:
                await step
            except StoreUnavailable as exc:
                failures.append(exc)  # it may be for this step alone

        await take(self._end_killed())
        await take(self._submit())
        await take(self._end_rejected())
        is_due = self._is_due()  # once: a look at all tries reads their news, too
        await take(self._hear_news(is_due=is_due))
        await take(self._cancel())
        await take(self._look_if_due(is_due=is_due))
        if failures:
            raise failures[-1]

    def _is_due(self) -> bool:
        """Whether it is time for the next look at all tries."""
        if self._looked_at is None:
            return True
        return self._clock.monotonic() - self._looked_at >= self._interval.total_seconds()

    async def _look_if_due(self, *, is_due: bool) -> None:
        if is_due:
            await self._look_at_all(self._clock.monotonic())
        if is_due or len(self._to_forget) >= MOST_NOTED:
            await self._note_tickets()

    async def _hear_news(self, *, is_due: bool) -> None:
        if is_due:
            self._may_have_news = True  # a notification may be lost
            await self._note_tickets()  # what was told directly, and is over, is forgotten unread
        while self._may_have_news:
            self._may_have_news = False  # what is reported from now on may be read below, or sets it again
            try:
                rows = await self._database.read(news_of_tickets, self.context.scheduler_id, self.context.name)
            except StoreUnavailable:
                self._may_have_news = True  # the next attempt is soon, and the next look may be late
                raise
            # Those of a run that was just taken over are not known yet; `adopt` reads them.
            known = [row for row in rows if self._is_known(row.token)]
            for row in known:
                self._hear_row(row)
            await self._note_tickets(known)
            self._may_have_news |= bool(known) and len(rows) == MOST_NEWS

    def _is_known(self, token: str) -> bool:
        return token in self._tries or token in self._reported or token in self._to_forget

    async def _note_tickets(self, heard: Sequence[TicketRow] = ()) -> None:
        """Store what is known of tickets, in transactions of a limited size. After an error, a later pass stores it."""
        while heard or self._to_forget or self._engine_ids or self._sights:
            forgotten = list(islice(self._to_forget, MOST_NOTED))
            engine_ids = dict(islice(self._engine_ids.items(), MOST_NOTED))
            sights = dict(islice(self._sights.items(), MOST_NOTED))
            await self._database.write(
                note_tickets, forgotten=forgotten, heard=heard, engine_ids=engine_ids, sights=sights
            )
            heard = ()
            self._to_forget.difference_update(forgotten)
            _drop(self._engine_ids, engine_ids)
            _drop(self._sights, sights)

    async def _end_killed(self) -> None:
        for token, reason in list(self._to_kill.items()):
            one = self._tries.get(token)
            if one is None or one.ticket == "unsure":
                continue  # it has ended meanwhile; or the next pass says whether its ticket is stored
            self._to_kill[token] = self._to_kill.pop(token)  # behind the others, if the database fails at it
            ended = Ended(token, "failed", self._clock.now(), reason=reason)
            stored = ended if one.ticket == "none" else await self._database.write(end_ticket, ended, before=SUBMITTED)
            if stored is None:
                await self._database.write(request_kill, token, reason)
                self._to_kill.pop(token, None)
                if self._is_new(one):
                    self._note_submitted(one)  # a worker has claimed it
                continue
            self._over(stored)
            if one.engine_id:
                self._to_cancel[one.engine_id] = 0

    async def _cancel(self) -> None:
        """Ask the engine to drop the jobs of killed tries. After a failure, it is asked for half as many at once.

        A single job that it fails to drop goes behind the others. After some failures it stays with the engine: its
        ticket is void.
        """
        while self._clock.monotonic() >= self._cancel_at and (some := list(islice(self._to_cancel, self._n_cancelled))):
            try:
                await self._answer_to(self.engine.cancel(some))
            except Exception as exc:  # noqa: BLE001 - as in `_call`
                self._log_failure("cancel", exc)
                self._cancel_at = self._clock.monotonic() + self._pause.total_seconds()
                self._n_cancelled = max(1, len(some) // 2)
                if len(some) == 1 and (n_failures := self._to_cancel.pop(some[0]) + 1) < MOST_CANCELS:
                    self._to_cancel[some[0]] = n_failures
            else:
                self._n_cancelled = min(2 * self._n_cancelled, AT_ONCE)
                for engine_id in some:
                    del self._to_cancel[engine_id]

    async def _submit(self) -> None:
        """Store the tickets of new tries, and hand them to the engine.

        After a failure, it gets half as many at once, until a single job fails. If the engine has taken others just
        before, that job is the reason: it is submitted alone, an interval later. Otherwise the engine may be away, and
        is called again after a pause. After an interval the rest waits for the next pass: ends, kills and lost workers
        must not wait for thousands of jobs.
        """
        now = self._clock.monotonic()
        until = now + self._interval.total_seconds()
        if not self._new:
            self._outage_log.since = None
        waiting = deque(self._waiting(now) if self._new and now >= self._submit_at else ())
        has_answered = False
        while waiting and not self._is_draining and self._clock.monotonic() < until:
            some = _next_portion(waiting, self._n_at_once)
            await self._reissue([one for one in some if not one.secret])
            await self._store([one for one in some if self._is_new(one) and one.ticket != "stored"])
            ready = [one for one in some if one.secret and self._is_new(one) and one.launch.token not in self._to_kill]
            if not ready:
                continue
            answers = await self._hand_over(ready)
            if isinstance(answers, str):
                if len(ready) > 1:
                    waiting.extendleft(reversed(ready))
                    continue
                self._put_behind(ready[0], answers)
                if not has_answered:  # it may be the engine itself
                    self._submit_at = self._clock.monotonic() + self._pause.total_seconds()
                    return
                ready[0].retry_at = self._clock.monotonic() + self._interval.total_seconds()
                has_answered = False
                continue
            has_answered = True
            if all(isinstance(answer, Later) for answer in answers):
                return
        if waiting and not self._is_draining:
            self._wakeup.set()

    def _waiting(self, now: float) -> list[_Try]:
        """Return the new tries that may begin: no earlier try of their task instance may still run.

        The worker of a try that is to end may not know that yet.
        """
        first: dict[object, str] = {}
        for token, one in self._tries.items():
            first.setdefault(_instance_of(one.launch), token)
        found = [self._tries[token] for token in self._new if first[_instance_of(self._tries[token].launch)] == token]
        return sorted((one for one in found if one.retry_at <= now), key=lambda one: one.retry_at > 0)

    def _is_new(self, one: _Try) -> bool:
        """Whether a try is still to be submitted: it may have ended, begun or been handed back meanwhile."""
        return one.launch.token in self._new

    async def _hand_over(self, ready: Sequence[_Try]) -> Sequence[Accepted | Rejected | Later] | str:
        """Hand jobs to the engine; note its answers, and how many it gets next time. Returns them, or why it failed."""
        try:
            answers = await self._answer_to(self.engine.submit([self._job(one) for one in ready]))
            of_each = list(zip(ready, answers, strict=True))
        except Exception as exc:  # noqa: BLE001 - as in `_call`
            self._n_at_once = max(1, len(ready) // 2)
            return self._log_failure("submit", exc)
        self._n_at_once = min(2 * self._n_at_once, AT_ONCE)
        self._outage_log.note(answers, self._clock.monotonic())
        for one, answer in of_each:
            self._note_answer(one, answer)
        return answers

    def _put_behind(self, one: _Try, said: str) -> None:
        """Put a job that the engine has not taken behind the others."""
        if self._is_new(one):
            token = one.launch.token
            self._new[token] = self._new.pop(token)
            self._see(one, Sight("queued", said))

    async def _reissue(self, unsure: Sequence[_Try]) -> None:
        """Give new secrets to tickets that an earlier scheduler may have submitted, so that its copies are void."""
        for one in filter(self._is_new, unsure):
            secret = new_token() + new_token()
            match await self._database.write(
                reissue, one.launch, digest_of_secret(secret), owner=self.context.scheduler_id, epoch=self._epoch
            ):
                case "new":
                    one.secret = secret
                case "claimed":
                    self._note_submitted(one)  # the next look says more
                case "not ours":
                    # The scheduler has not taken its run over yet. A worker may have the earlier copy: it is no end.
                    one.retry_at = self._clock.monotonic() + self._interval.total_seconds()

    async def _store(self, new: Sequence[_Try]) -> None:
        """Store tickets, and end the tries whose runs have another owner: it launches them, if they are to run."""
        if not new:
            return
        digests = {one.launch.token: digest_of_secret(one.secret) for one in new}
        for one in new:
            one.ticket = "unsure"
        added = await self._database.write(
            add_tickets, [one.launch for one in new], digests, executor=self.context.name,
            owner=self.context.scheduler_id, epoch=self._epoch, now=self._clock.now(),
        )  # fmt: skip
        for one in new:
            token = one.launch.token
            if token in added.lost:
                self._over(self._end_of(token, GivenUp(NOT_OURS, "interrupted")))
                continue
            one.ticket = "stored"
            if token not in added.own:
                self._note_submitted(one)  # there is another ticket for it: the next look says how far that is
            if token in self._to_kill:
                self._wakeup.set()  # now that it is known whether its ticket is stored

    def _note_answer(self, one: _Try, answer: Accepted | Rejected | Later) -> None:
        token = one.launch.token
        if token not in self._tries:
            return  # it has ended meanwhile
        if isinstance(answer, Accepted):
            one.engine_id = self._engine_ids[token] = answer.engine_id[:256]
            if one.sight.reason:
                self._see(one, Sight("queued"))
        if not self._is_new(one):
            return  # it has begun meanwhile
        if isinstance(answer, Later):
            self._put_behind(one, answer.reason)
            return
        self._note_submitted(one)
        if isinstance(answer, Rejected):
            self._rejected[token] = answer.reason

    async def _end_rejected(self) -> None:
        for token, reason in list(self._rejected.items()):
            if token in self._tries:
                await self._end(self._end_of(token, GivenUp(reason, "task"), retry=False), before=SUBMITTED)
            del self._rejected[token]

    def _note_submitted(self, one: _Try) -> None:
        self._new.pop(one.launch.token, None)
        one.state, one.since = SUBMITTED, self._clock.monotonic()

    def _job(self, one: _Try) -> Job:
        launch = one.launch
        ticket = Ticket.of(launch, one.secret, self._settings.workers.addresses)
        return Job(
            ticket, launch.queue, launch.priority_weight, launch.pool, launch.executor_config, one.former_digest
        )  # fmt: skip

    async def _look_at_all(self, now: float) -> None:
        """See how far each try is, and give up those that are lost."""
        missed_seconds = 0.0 if self._looked_at is None else now - self._looked_at - self._engine_seconds
        if missed_seconds > MOST_MISSED * self._interval.total_seconds():
            for one in self._tries.values():
                one.since = now
        stored = {token: one for token, one in self._tries.items() if one.ticket == "stored"}
        progress = await self._database.read(progress_of_tickets, sorted(stored))
        for found in progress:
            self._note(stored[found.token], found)
            await self._slices.step_done()
        await self._look_at_engine([one for one in stored.values() if one.state == SUBMITTED and one.engine_id])
        # After the rows were read: it is never too early.
        self._looked_at, self._engine_seconds = self._clock.monotonic(), 0.0
        rows = {found.token: found for found in progress}
        lost: list[tuple[_Try, str, GivenUp]] = []
        for token, one in stored.items():
            await self._slices.step_done()
            if token not in self._tries:
                continue  # it has ended meanwhile
            if token not in rows or one.state == ENDED:
                await self._find_end(token, one)
            elif (given_up := self._verdict(one, now)) is not None:
                lost.append((one, one.state, given_up))
        await self._give_up(lost)

    def _verdict(self, one: _Try, now: float) -> GivenUp | None:
        return verdict(one.seen(now), self._settings.workers.claim_timeout)

    async def _give_up(self, lost: Sequence[tuple[_Try, str, GivenUp]]) -> None:
        """End lost tries, with what the engine says of jobs whose worker is silent, such as that memory was full."""
        silent = [one.engine_id for one, state, _ in lost if state == CLAIMED and one.engine_id]
        sights = (await self._call("look", self.engine.look(silent)) or {}) if silent else {}
        for one, state, given_up in lost:
            token, reason = one.launch.token, given_up.reason
            sight = sights.get(one.engine_id, UNKNOWN) if state == CLAIMED else UNKNOWN
            if sight.state == "gone" and sight.reason:
                reason = f"{reason}: {sight.reason}"
            log.warning("try.given_up", token=token, executor=self.context.name, reason=reason)
            ended = self._end_of(token, replace(given_up, reason=reason))
            await self._end(ended, before=state, renewals=one.renewals if state == CLAIMED else None)

    def _note(self, one: _Try, found: Progress) -> None:
        if self._is_new(one):
            if found.state == SUBMITTED:
                return
            self._note_submitted(one)  # in spite of the engine's answer, which was an error or got lost
        if (found.state, found.renewals) != (one.state, one.renewals):
            one.since = self._clock.monotonic()
        one.state, one.renewals, one.gone_after = found.state, found.renewals, found.gone_after

    async def _look_at_engine(self, submitted: Sequence[_Try]) -> None:
        """Ask the engine for the jobs whose tries no worker has claimed, and store what has changed, for people."""
        sights = await self._call("look", self.engine.look([one.engine_id for one in submitted])) if submitted else {}
        for one in submitted:
            self._see(one, (sights or {}).get(one.engine_id, UNKNOWN))
            await self._slices.step_done()

    def _see(self, one: _Try, sight: Sight) -> None:
        """Note how the engine sees a job, and since when the job runs."""
        if sight == one.sight:
            return
        one.sight = sight
        self._sights[one.launch.token] = f"{sight.state}: {sight.reason}" if sight.reason else sight.state
        if sight.state in ("queued", "gone"):
            one.running_since = None
        elif sight.state == "running" and one.running_since is None:
            one.running_since = self._clock.monotonic()

    async def _find_end(self, token: str, one: _Try) -> None:
        """Report the end of a try whose ticket is over; without a ticket, it ends once its lease is over."""
        stored = await self._database.write(end_ticket, self._end_of(token, GivenUp("", "machine")), before=ENDED)
        if stored is not None:
            self._over(stored)
        elif one.state != CLAIMED or self._verdict(one, self._clock.monotonic()) is not None:
            self._over(self._end_of(token, GivenUp("its ticket was deleted", "machine")))

    async def _end(self, ended: Ended, *, before: str, renewals: int | None = None) -> None:
        """End a try, unless its state has changed meanwhile."""
        stored = await self._database.write(end_ticket, ended, before=before, renewals=renewals)
        if stored is not None:
            self._over(stored)

    async def _call(self, what: str, call: Awaitable[T]) -> T | None:
        """Return the answer of the engine; None if it fails."""
        try:
            return await self._answer_to(call)
        except Exception as exc:  # noqa: BLE001 - whatever an adapter raises, the next pass calls it again
            self._log_failure(what, exc)
            return None

    async def _answer_to(self, call: Awaitable[T]) -> T:
        """Return the answer of the engine, and note how long that took: meanwhile workers could renew their leases."""
        began_at = self._clock.monotonic()
        try:
            return await call
        finally:
            self._engine_seconds += self._clock.monotonic() - began_at

    def _log_failure(self, what: str, exc: Exception) -> str:
        said = reason_of(exc)
        log.warning("engine.failed", executor=self.context.name, call=what, error=said)
        return said


def _next_portion(waiting: deque[_Try], most: int) -> list[_Try]:
    """Take the next tries to submit together. A try whose job the engine has failed to take goes alone."""
    some = [waiting.popleft()]
    while waiting and len(some) < most and not some[0].retry_at and not waiting[0].retry_at:
        some.append(waiting.popleft())
    return some


def _drop(pending: dict[str, str], stored: Mapping[str, str]) -> None:
    """Drop what is stored, unless it has changed meanwhile."""
    for token, value in stored.items():
        if pending.get(token) == value:
            del pending[token]


def _instance_of(launch: Launch) -> object:
    """Return the key that the tries of a task instance share, and the callbacks that write the same log."""
    if launch.callback:
        return launch.log_path
    return launch.run.dag_id, launch.run.run_id, launch.task_id, launch.map_index
