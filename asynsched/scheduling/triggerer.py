"""The triggerer runs the triggers of deferred tasks and asset watchers in trigger hosts, and passes their outcomes on.

A trigger host is a process for the code of one version of a DAG file. `Triggerer` is the service that owns the hosts,
`Host` decides when a host starts and ends, `HostWork` composes the messages to it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import anyio
import msgspec

from asynsched.channels import (
    NO_RUN,
    Channels,
    OutcomeStored,
    TaskReady,
    TriesStored,
    TriggerFired,
    TriggerUnwanted,
    TriggerWanted,
    TryReported,
    TryUnwanted,
)
from asynsched.clock import Clock, new_token
from asynsched.executors.base import Held
from asynsched.executors.tokens import code_of_trigger, host_key, key_of_token, new_host_token, row_of_watcher
from asynsched.loggers import get_logger
from asynsched.protocol.messages import (
    CodeVersion,
    Ended,
    Launch,
    Reply,
    Request,
    RunContext,
    TriggerHost,
    TriggerOutcome,
    TriggerSpec,
    TriggerWork,
)
from asynsched.service import Service

log = get_logger(__name__)

LONGEST_QUESTION = timedelta(seconds=10)
"""How long a host's question stays open without news. Then the host asks again, which shows that it is alive."""
LONGEST_SILENCE = timedelta(seconds=30)
"""How long a host may take from its start to its first question, and from an answer to the next question."""
CHECK_INTERVAL = timedelta(seconds=5)
MAX_FAILURES = 3
"""How often in a row a host may die, under one trigger or before it is ready, until its triggers fail."""
FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = FIRST_PAUSE * 2 ** (MAX_FAILURES - 1)
STABLE_AFTER = timedelta(minutes=10)
"""The failure of a host that has run this long does not count as one in a row."""
LINGER = timedelta(seconds=30)
"""How long a host without triggers is kept."""
MAX_STARTS = 200
"""Most triggers that one answer starts."""
MAX_BYTES = 1_000_000
"""Size of the arguments, as JSON, that ends an answer: it must fit into a frame."""


class Triggerer(Service):
    """Owns the trigger hosts of this scheduler.

    Args:
        block_timeout: How long one trigger may block the others of its host, in seconds.
    """

    name = "triggerer"

    def __init__(self, *, channels: Channels, clock: Clock, block_timeout: float) -> None:
        super().__init__(clock)
        self._channels = channels
        self._block_timeout = block_timeout
        self._hosts: dict[Host, None] = {}
        self._open: dict[str, Host] = {}
        """By key, the host that takes further triggers."""
        self._by_token: dict[str, Host] = {}
        self._host_of: dict[str, Host] = {}
        self._outcomes: dict[str, TriggerOutcome] = {}
        """Of the triggers of tasks, by trigger, as long as the trigger is wanted."""
        self._unstored: dict[tuple[str, str], Host] = {}
        """The host that has reported each outcome of a watcher that is not stored yet, by trigger and event."""
        self._is_stopping = False
        self._is_ready = anyio.Event()
        """Set once all tasks that were deferred when the scheduler started are known."""
        channels.triggers.wakes(self.wake)

    @property
    def are_reports_handled(self) -> bool:
        """Whether no message waits, so that every reported end of a host has been handled."""
        return not self._channels.triggers.qsize()

    @property
    def n_triggers(self) -> int:
        return len(self._host_of)

    def recover(self, held: Held, now: datetime) -> None:
        """Take back the hosts that the executor still holds from an earlier scheduler.

        Call it after the evaluator has taken up its runs: hosts are told to stop triggers that no task waits for.
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
        """End all hosts and launch no more: the scheduler is stopping."""
        self._is_stopping = True
        for host in self._hosts:
            host.wake()

    async def tick(self, now: datetime) -> None:
        """Tell the hosts which triggers to run, launch missing hosts, and end those that are idle or hang."""
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
                case TriggerUnwanted(trigger_id, is_killed):
                    host = self._unwant(trigger_id, now, is_killed=is_killed)
                case OutcomeStored(trigger_id, event_id):
                    host = self._unstored.pop((trigger_id, event_id), None)
                case TryReported(event):
                    host = self._ended(event, now) if isinstance(event, Ended) else None
            if host is not None:
                touched[host] = None
        for message in messages:
            # The outcome of a trigger that is wanted again still holds.
            if isinstance(message, TriggerUnwanted) and message.trigger_id not in self._host_of:
                self._outcomes.pop(message.trigger_id, None)
        for host in touched:
            host.wake()

    # Questions of hosts

    async def answer(self, request: Request) -> Reply:
        """Answer a host with the triggers to run, or confirm its outcomes once they are stored."""
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
            deadline = self.clock.monotonic() + LONGEST_QUESTION.total_seconds()
            while True:
                if self._is_stopping or host.is_ending or request.token not in self._by_token:
                    return TriggerWork("", end=True)
                work = host.work.answer(arguments["session"], arguments["number"], arguments.get("running"))
                left = timedelta(seconds=deadline - self.clock.monotonic())
                if work is not None or left <= timedelta():
                    return work or TriggerWork(arguments["session"], arguments["number"])
                arguments = {**arguments, "running": None}
                await self.clock.wait(host.changed, left)
        finally:
            # The end of a process has already taken its questions off the count.
            if host.token == request.token:
                host.n_questions -= 1
                if not host.n_questions:
                    host.silent_since = self.clock.now()

    async def _take_outcomes(self, request: Request) -> None:
        outcomes = msgspec.convert(request.arguments["outcomes"], list[TriggerOutcome])
        host = self._by_token.get(request.token)
        if host is None:
            return
        # A watcher that was stopped may have left an event: it does not run any more.
        self._adopt(host, [outcome.id for outcome in outcomes if not outcome.event_id])
        for outcome in outcomes:
            if self._may_report(host, outcome):
                if row_of_watcher(outcome.id) is None:
                    self._outcomes[outcome.id] = outcome
                else:
                    self._unstored[outcome.id, outcome.event_id] = host
                if outcome.kind != "recovered":
                    has_failed = outcome.kind in ("error", "timeout")
                    self.metrics.count("triggers.failed" if has_failed else "triggers.succeeded")
                self._pass_on(outcome)
        # A process that has ended needs no answer.
        while request.token in self._by_token and any(self._is_open(outcome, host) for outcome in outcomes):
            await host.changed.wait()

    def _may_report(self, host: "Host", outcome: TriggerOutcome) -> bool:
        """Whether an outcome counts. A host may report its own triggers only, not those of other files.

        Events of a watcher count also after its trigger was given to another host, because its code has changed.
        """
        owner = self._host_of.get(outcome.id)
        is_of_former = outcome.kind == "event" and owner is not None and row_of_watcher(outcome.id) is not None
        return owner is host or is_of_former

    def _is_open(self, outcome: TriggerOutcome, host: "Host") -> bool:
        """Whether an outcome that a host has reported is not stored yet."""
        if (outcome.id, outcome.event_id) in self._unstored:
            return True
        return self._host_of.get(outcome.id) is host and row_of_watcher(outcome.id) is None

    def _pass_on(self, outcome: TriggerOutcome) -> None:
        """Tell of an outcome: the evaluator, or for the trigger of a watcher the asset watchers."""
        is_of_task = row_of_watcher(outcome.id) is None
        (self._channels.reports if is_of_task else self._channels.asset_watchers).put_nowait(TriggerFired(outcome))

    # Assigning triggers to hosts

    def _want(self, message: TriggerWanted, now: datetime) -> "Host":
        code = code_of_trigger(message.trigger.classpath, message.code)
        key = host_key(code)
        host = self._open.setdefault(key, Host(key))
        self._hosts[host] = None
        self._give(host, message.trigger, code, now)
        if message.trigger.id in self._outcomes:
            # The run was released and taken up again before the outcome could be stored.
            self._pass_on(self._outcomes[message.trigger.id])
        return host

    def _give(self, host: "Host", trigger: TriggerSpec, code: CodeVersion, now: datetime) -> None:
        if host.code is None:
            host.code = code
            if host.token is not None:
                # With a launch the executor passes on the host's requests. A token starts one process only: none now.
                launch = host.launch(now, self._block_timeout)
                self._channels.ready.put_nowait(TaskReady(NO_RUN, launch))
        host.idle_since, host.is_ending = None, False
        host.work.want(trigger)
        self._host_of[trigger.id] = host

    def _adopt(self, host: "Host", trigger_ids: Iterable[str]) -> None:
        """Assign to a host the triggers that it reports as running, if another host of its version had them.

        A scheduler that takes back several hosts of a version cannot know which of them runs which triggers.
        """
        now = self.clock.now()
        for trigger_id in trigger_ids:
            other = self._host_of.get(trigger_id)
            if other is not None and other is not host and other.key == host.key:
                assert other.code is not None
                trigger = other.work.wanted[trigger_id]
                self._unwant(trigger_id, now)
                self._give(host, trigger, other.code, now)
                other.wake()

    def _unwant(self, trigger_id: str, now: datetime, *, is_killed: bool = False) -> "Host | None":
        host = self._host_of.pop(trigger_id, None)
        if host is not None:
            host.work.unwant(trigger_id, is_killed=is_killed)
            if not host.work.wanted:
                host.idle_since = now
        elif is_killed:
            # It may run in a host of an earlier scheduler that has not told its triggers yet.
            for other in self._hosts:
                other.work.kill(trigger_id)
        return host

    # Starting and ending hosts

    def _attend(self, host: "Host", now: datetime) -> None:
        """Launch a missing host, end one that is idle or hangs, forget one that has ended."""
        if host.silent_since is not None and host.silent_since > now:
            host.silent_since = now  # the clock was set back
        if host.token is None:
            if not host.work.wanted:
                del self._hosts[host]
                self._close(host)
            elif not self._is_stopping and host.may_launch(now):
                launch = host.launch(now, self._block_timeout)
                self._by_token[launch.token] = host
                self._channels.ready.put_nowait(TaskReady(NO_RUN, launch))
        elif host.is_idle(now) and not host.is_ending:
            # The answer to its next question ends it. If it hangs and never asks, its silence ends it.
            host.is_ending = True
            self._close(host)
            host.wake()
        elif host.is_silent(now):
            host.silent_since = now
            reason = "the trigger host hangs: one of its triggers blocks it, and cannot be interrupted"
            self._channels.ready.put_nowait(TryUnwanted(host.token, reason))

    def _close(self, host: "Host") -> None:
        """Assign no further triggers to a host."""
        if self._open.get(host.key) is host:
            del self._open[host.key]

    def _ended(self, ended: Ended, now: datetime) -> "Host | None":
        self._channels.ready.put_nowait(TriesStored((ended.token,)))
        host = self._by_token.pop(ended.token, None)
        if host is None:
            return None
        interrupted = ended.cause == "interrupted"
        host.has_ended(now, failed=ended.state != "success", interrupted=interrupted)
        if ended.state == "success" or interrupted:
            return host
        # New triggers get another host, so that the trigger that killed this one does not end them too.
        self._close(host)
        log.warning("trigger_host.failed", reason=ended.reason, n_triggers=len(host.work.wanted))
        if ended.started_at is not None and host.n_failures > 1 and len(host.work.wanted) > 1:
            # The machine may cause one failure; two point to a trigger. Halving the set finds it, and it fails alone.
            other = host.split()
            self._hosts[other] = None
            self._host_of.update(dict.fromkeys(other.work.wanted, other))
        elif host.n_failures >= MAX_FAILURES:
            host.n_failures = 0
            detail = f"the process of its trigger ended {MAX_FAILURES} times, most recently because: {ended.reason}"
            for trigger_id in host.work.wanted:
                self._pass_on(TriggerOutcome(trigger_id, "error", detail=detail))
        return host


@dataclass(slots=True, eq=False)
class Host:
    """A trigger host: its triggers, and its process while it has one.

    Attributes:
        code: The version that it loads; None while only its token is known.
        token: Of its process; None while it has none.
        launched_at: When that process was launched.
        silent_since: When it began to owe a question; None while a question is open.
        idle_since: Since when it has had no triggers.
        pause_until: No new process is launched before that.
        changed: Set when its requests should look for an answer again.
        is_ending: The answer to its next question ends it.
    """

    key: str
    code: CodeVersion | None = None
    token: str | None = None
    launched_at: datetime | None = None
    silent_since: datetime | None = None
    idle_since: datetime | None = None
    pause_until: datetime | None = None
    is_ending: bool = False
    n_failures: int = 0
    n_questions: int = 0
    work: "HostWork" = field(default_factory=lambda: HostWork(new_token()))
    changed: anyio.Event = field(default_factory=anyio.Event)

    def wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def launch(self, now: datetime, block_timeout: float) -> Launch:
        """Return the launch of its process; of a new one unless it has one."""
        assert self.code is not None
        if self.token is None:
            self.token = new_host_token(self.key)
            self.launched_at = self.silent_since = now
            self.pause_until = None
            self.work.forget_host()
        name = self.code.sources[0].path if self.code.sources else "asynsched"
        return Launch(
            token=self.token, task_id="", map_index=-1, try_number=1, max_tries=0, run=RunContext("", "", "", now),
            code=self.code, log_path=f"triggers/{name}.log", trigger_host=TriggerHost(block_timeout),
        )  # fmt: skip

    def has_ended(self, now: datetime, *, failed: bool, interrupted: bool) -> None:
        """Note that its process has ended, and decide when a new one may start."""
        self.token = self.silent_since = None
        self.n_questions = 0
        if interrupted:
            self.pause_until = now + FIRST_PAUSE
        elif failed:
            if self.launched_at is not None and now - self.launched_at > STABLE_AFTER:
                self.n_failures = 0
            self.n_failures += 1
            self.pause_until = now + FIRST_PAUSE * 2 ** (self.n_failures - 1)

    def split(self) -> "Host":
        """Move half of the triggers to a new host, and return it."""
        other = Host(self.key, code=self.code, n_failures=1, pause_until=self.pause_until)
        for spec in list(self.work.wanted.values())[::2]:
            self.work.unwant(spec.id)
            other.work.want(spec)
        self.n_failures = 1
        return other

    def may_launch(self, now: datetime) -> bool:
        """Whether a new process may start. A pause that seems longer than the longest shows a clock set back."""
        return self.pause_until is None or not now < self.pause_until <= now + LONGEST_PAUSE

    def is_silent(self, now: datetime) -> bool:
        return self.token is not None and self.silent_since is not None and now - self.silent_since > LONGEST_SILENCE

    def is_idle(self, now: datetime) -> bool:
        return self.idle_since is not None and now - self.idle_since > LINGER


class HostWork:
    """The triggers that a host should run, sent in numbered steps.

    A step is repeated until the host's next question shows that it arrived. A host that names another session got its
    steps from another scheduler: it is asked for its triggers, and then sent the difference.
    """

    def __init__(self, session: str) -> None:
        self._session = session
        self._number = 0
        self._step: TriggerWork | None = None
        self._to_start: dict[str, TriggerSpec] = {}
        self._to_stop: dict[str, bool] = {}
        """The triggers to stop; True: to kill."""
        self.wanted: dict[str, TriggerSpec] = {}

    def want(self, spec: TriggerSpec) -> None:
        """Start a trigger, unless it is wanted already."""
        if spec.id in self.wanted:
            return
        self.wanted[spec.id] = self._to_start[spec.id] = spec
        self._to_stop.pop(spec.id, None)

    def unwant(self, trigger_id: str, *, is_killed: bool = False) -> None:
        """Stop or kill a trigger, if it is wanted."""
        if self.wanted.pop(trigger_id, None) is not None:
            # Stop even a trigger that has not been started: an earlier one of the same name may still run.
            self._to_start.pop(trigger_id, None)
            self._to_stop[trigger_id] = is_killed

    def kill(self, trigger_id: str) -> None:
        """Kill a trigger that is not wanted, if the host runs it."""
        self._to_stop[trigger_id] = True

    def forget_host(self) -> None:
        """Start over with a new host, which runs nothing yet."""
        self._number, self._step = 0, None
        self._to_start, self._to_stop = dict(self.wanted), {}

    def answer(self, session: str, number: int, running: Collection[str] | None) -> TriggerWork | None:
        """Return the next step for a host, or None when it is up to date.

        Args:
            session: Of the last answer that the host received; empty if there was none.
            number: Of that answer.
            running: The triggers that the host runs, if the last answer asked for them.
        """
        if session != self._session:
            return TriggerWork(self._session, tell_all=True)
        if running is not None:
            known = set(running)
            if self._step is not None:  # it did not arrive
                self._to_stop |= dict.fromkeys(self._step.kill, True)
            self._number, self._step = 0, None
            self._to_start = {name: spec for name, spec in self.wanted.items() if name not in known}
            self._to_stop = {name: self._to_stop.get(name, False) for name in known - self.wanted.keys()}
        elif number == self._number:
            self._step = None
        if self._step is None and (self._to_start or self._to_stop):
            self._step = self._next_step()
        return self._step

    def _next_step(self) -> TriggerWork:
        self._number += 1
        starts: list[TriggerSpec] = []
        size = 0
        for spec in self._to_start.values():
            if len(starts) == MAX_STARTS or size > MAX_BYTES:
                break
            starts.append(spec)
            size += len(msgspec.json.encode(spec))
        kills = tuple(trigger_id for trigger_id, is_killed in self._to_stop.items() if is_killed)
        step = TriggerWork(self._session, self._number, tuple(starts), tuple(self._to_stop), kills)
        for spec in starts:
            del self._to_start[spec.id]
        self._to_stop.clear()
        return step
