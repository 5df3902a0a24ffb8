"""The triggerer: has the triggers of deferred tasks run by hosts, and brings what they come to to the evaluator."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import anyio
import msgspec
import structlog

from asynsched.channels import (
    Channels,
    TaskFinished,
    TaskReady,
    TriesStored,
    TriggerFired,
    TriggerUnwanted,
    TriggerWanted,
    TryUnwanted,
)
from asynsched.clock import Clock
from asynsched.executors.base import Held
from asynsched.executors.tokens import code_of_trigger, host_key, key_of_token
from asynsched.protocol.messages import CodeVersion, Ended, Reply, Request, TriggerOutcome, TriggerSpec, TriggerWork
from asynsched.scheduling.triggerer.trigger_hosts import MAX_FAILURES, Host
from asynsched.service import Service

log = structlog.get_logger(__name__)

LONGEST_QUESTION = timedelta(seconds=10)
"""How long a host's question stays open when there is nothing to tell: it must ask again, to show that it lives."""
CHECK_INTERVAL = timedelta(seconds=5)
NO_RUN = 0
"""Row id of the run that a host's launch is of: there is none."""


class Triggerer(Service):
    """Owns the trigger hosts of this scheduler.

    Args:
        block_timeout: Longest that a trigger may block the others of its host, seconds.
    """

    name = "triggerer"

    def __init__(self, *, channels: Channels, clock: Clock, block_timeout: float) -> None:
        super().__init__(clock)
        self._channels = channels
        self._block_timeout = block_timeout
        self._hosts: dict[Host, None] = {}
        self._open: dict[str, Host] = {}
        """The host of each key that takes further triggers."""
        self._by_token: dict[str, Host] = {}
        self._host_of: dict[str, Host] = {}
        self._outcomes: dict[str, TriggerOutcome] = {}
        self._is_stopping = False
        self._is_ready = anyio.Event()
        """Set once everything is known that was deferred when the scheduler started."""
        channels.triggers.wakes(self.wake)

    @property
    def is_settled(self) -> bool:
        """Whether every end of a host that was reported is taken note of."""
        return not self._channels.triggers.qsize()

    @property
    def n_triggers(self) -> int:
        """How many triggers are wanted."""
        return len(self._host_of)

    def recover(self, held: Held, now: datetime) -> None:
        """Take back the hosts that the executor still holds of an earlier scheduler.

        Call it when the evaluator has taken up its runs: a host is told to stop what nobody waits for.
        """
        for token in sorted(held.running | held.starting):
            key = key_of_token(token)
            if key is not None:
                host = Host(key, token=token, launched_at=now, silent_since=now, idle_since=now)
                self._hosts[host] = None
                self._open[key] = self._by_token[token] = host
        self._take_messages(now)
        self._is_ready.set()

    def stop(self) -> None:
        """Have every host end, and launch none from now on: the scheduler is stopping."""
        self._is_stopping = True
        for host in self._hosts:
            host.tell()

    async def tick(self, now: datetime) -> None:
        """Tell the hosts what is wanted, launch those that are missing, end those that are not needed."""
        self._is_ready.set()
        self._take_messages(now)
        for host in list(self._hosts):
            self._attend(host, now)
        due = [host.pause_until for host in self._hosts if host.pause_until is not None]
        self.due_at = None if self._is_stopping else min(due, default=None)
        self.interval = CHECK_INTERVAL if self._hosts else None

    def _take_messages(self, now: datetime) -> None:
        host: Host | None
        touched: dict[Host, None] = {}
        messages = self._channels.triggers.take()
        for message in messages:
            match message:
                case TriggerWanted():
                    host = self._want(message, now)
                case TriggerUnwanted(trigger_id):
                    host = self._unwant(trigger_id, now)
                case TaskFinished(event):
                    host = self._ended(event, now) if isinstance(event, Ended) else None
            if host is not None:
                touched[host] = None
        for message in messages:
            # A trigger may have been unwanted and wanted again: what it has come to holds then.
            if isinstance(message, TriggerUnwanted) and message.trigger_id not in self._host_of:
                self._outcomes.pop(message.trigger_id, None)
        for host in touched:
            host.tell()
            host.note_gone()

    # What hosts ask

    async def answer(self, request: Request) -> Reply:
        """Answer a question of a host; what it has come to is answered when that is stored."""
        await self._is_ready.wait()
        if request.operation == "trigger_outcomes":
            await self._take_outcomes(request)
            return Reply(request.token, request.request_id)
        work = await self._work_for(request)
        return Reply(request.token, request.request_id, value=msgspec.to_builtins(work))

    async def _work_for(self, request: Request) -> TriggerWork:
        host = self._by_token.get(request.token)
        if host is None:
            return TriggerWork("", end=True)
        host.silent_since = None
        host.n_questions += 1
        try:
            arguments = request.arguments
            self._adopt(host, arguments.get("running") or ())
            deadline = self.clock.now() + LONGEST_QUESTION
            while True:
                if self._is_stopping or host.is_leaving or request.token not in self._by_token:
                    return TriggerWork("", end=True)
                work = host.work.answer(arguments["session"], arguments["number"], arguments.get("running"))
                left = deadline - self.clock.now()
                if work is not None or left <= timedelta():
                    return work or TriggerWork(arguments["session"], arguments["number"])
                arguments = {**arguments, "running": None}
                await self.clock.wait(host.news, left)
        finally:
            # A question of an earlier process of the host was counted off when that ended.
            if host.token == request.token:
                host.n_questions -= 1
                if not host.n_questions:
                    host.silent_since = self.clock.now()

    async def _take_outcomes(self, request: Request) -> None:
        outcomes = msgspec.convert(request.arguments["outcomes"], list[TriggerOutcome])
        host = self._by_token.get(request.token)
        if host is None:
            return
        self._adopt(host, [outcome.id for outcome in outcomes])
        for outcome in outcomes:
            # A host speaks of its own triggers only: those of other files are none of its business.
            if self._host_of.get(outcome.id) is host:
                self._outcomes[outcome.id] = outcome
                self.metrics.count("triggers.failed" if outcome.kind in ("error", "timeout") else "triggers.succeeded")
                self._channels.finished.put_nowait(TriggerFired(outcome))
        # Nobody reads the answer to a process that has ended.
        while request.token in self._by_token and any(self._host_of.get(outcome.id) is host for outcome in outcomes):
            await host.gone.wait()

    # What is wanted of them

    def _want(self, message: TriggerWanted, now: datetime) -> Host:
        code = code_of_trigger(message.trigger.classpath, message.code)
        key = host_key(code)
        host = self._open.setdefault(key, Host(key))
        self._hosts[host] = None
        self._give(host, message.trigger, code, now)
        if message.trigger.id in self._outcomes:
            # The task was taken up anew before this could be stored.
            self._channels.finished.put_nowait(TriggerFired(self._outcomes[message.trigger.id]))
        return host

    def _give(self, host: Host, trigger: TriggerSpec, code: CodeVersion, now: datetime) -> None:
        """Assign a trigger to this host."""
        if host.code is None:
            host.code = code
            if host.token is not None:
                # So that what its triggers ask for is answered. A token starts one process, so this starts none.
                launch = host.launch_of(host.token, now, self._block_timeout)
                self._channels.ready.put_nowait(TaskReady(NO_RUN, launch))
        host.idle_since, host.is_leaving = None, False
        host.work.want(trigger)
        self._host_of[trigger.id] = host

    def _adopt(self, host: Host, trigger_ids: Iterable[str]) -> None:
        """Give a host those triggers that it says it runs, if they were given to another one of its version.

        A scheduler that takes several of them back cannot know which of them runs what.
        """
        now = self.clock.now()
        for trigger_id in trigger_ids:
            other = self._host_of.get(trigger_id)
            if other is not None and other is not host and other.key == host.key:
                assert other.code is not None
                trigger = other.work.wanted[trigger_id]
                self._unwant(trigger_id, now)
                self._give(host, trigger, other.code, now)
                other.tell()

    def _unwant(self, trigger_id: str, now: datetime) -> Host | None:
        host = self._host_of.pop(trigger_id, None)
        if host is not None:
            host.work.unwant(trigger_id)
            if not host.work.wanted:
                host.idle_since = now
        return host

    def _attend(self, host: Host, now: datetime) -> None:
        """Launch a host that is missing, end one that is idle or hangs, forget one that has ended."""
        if host.token is None:
            if not host.work.wanted:
                self._forget(host)
            elif not self._is_stopping and host.may_launch(now):
                launch = host.launch(now, self._block_timeout)
                self._by_token[launch.token] = host
                self._channels.ready.put_nowait(TaskReady(NO_RUN, launch))
        elif host.is_idle(now) and not host.is_leaving:
            # The answer to its next question ends it. It is known until then: one that hangs never asks, and is killed.
            host.is_leaving = True
            self._close(host)
            host.tell()
        elif host.is_silent(now):
            host.silent_since = now
            reason = "the trigger host hangs: one of its triggers blocks it, and cannot be interrupted"
            self._channels.ready.put_nowait(TryUnwanted(host.token, reason))

    def _forget(self, host: Host) -> None:
        del self._hosts[host]
        self._by_token.pop(host.token or "", None)
        self._close(host)

    def _close(self, host: Host) -> None:
        """Have a host take no further triggers."""
        if self._open.get(host.key) is host:
            del self._open[host.key]

    def _ended(self, ended: Ended, now: datetime) -> Host | None:
        self._channels.ready.put_nowait(TriesStored((ended.token,)))
        host = self._by_token.pop(ended.token, None)
        if host is None:
            return None
        interrupted = ended.cause == "interrupted"
        host.has_ended(now, failed=ended.state != "success", interrupted=interrupted)
        if ended.state == "success" or interrupted:
            return host
        # Whatever kills it is not to kill others.
        self._close(host)
        log.warning("trigger_host.failed", reason=ended.reason, n_triggers=len(host.work.wanted))
        if ended.started_at is not None and host.n_failures > 1 and len(host.work.wanted) > 1:
            # Once may be the machine's doing. Twice is that of a trigger: it is found by halves, and fails alone.
            other = host.split()
            self._hosts[other] = None
            self._host_of.update(dict.fromkeys(other.work.wanted, other))
        elif host.n_failures >= MAX_FAILURES:
            host.n_failures = 0
            detail = f"the process of its trigger ended {MAX_FAILURES} times, the last time so: {ended.reason}"
            for trigger_id in host.work.wanted:
                self._channels.finished.put_nowait(TriggerFired(TriggerOutcome(trigger_id, "error", detail=detail)))
        return host
