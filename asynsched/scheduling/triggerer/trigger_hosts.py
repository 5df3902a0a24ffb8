"""The trigger hosts of a scheduler, one for the code of each version of a DAG file that has deferred tasks."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import anyio
import msgspec

from asynsched.clock import new_token
from asynsched.executors.tokens import new_host_token
from asynsched.protocol.messages import CodeVersion, Launch, RunContext, TriggerHost, TriggerSpec, TriggerWork

MAX_STARTS = 200
"""Triggers that one answer may start."""
MAX_BYTES = 1_000_000
"""JSON of their arguments, after which the others wait for the next answer: each must fit into a frame."""


class HostWork:
    """The triggers that a host should run, told in steps.

    Each step has a number, and is repeated until the host's next question shows that it arrived. A host that asks with
    another session was told things by another scheduler: it is asked what it runs, and told the difference.

    Args:
        session: Names this memory; no other has the same name.
    """

    def __init__(self, session: str) -> None:
        self._session = session
        self._number = 0
        self._step: TriggerWork | None = None
        self._to_start: dict[str, TriggerSpec] = {}
        self._to_stop: dict[str, None] = {}
        self.wanted: dict[str, TriggerSpec] = {}

    def want(self, spec: TriggerSpec) -> None:
        """Have a trigger run."""
        if spec.id in self.wanted:
            return
        self.wanted[spec.id] = self._to_start[spec.id] = spec
        self._to_stop.pop(spec.id, None)

    def unwant(self, trigger_id: str) -> None:
        """Have a trigger run no more."""
        if self.wanted.pop(trigger_id, None) is not None:
            # Also one that is yet to be started: an earlier one of that name may run, which it was to replace.
            self._to_start.pop(trigger_id, None)
            self._to_stop[trigger_id] = None

    def forget_host(self) -> None:
        """Take note that there is a new host, which runs nothing yet."""
        self._number, self._step = 0, None
        self._to_start, self._to_stop = dict(self.wanted), {}

    def answer(self, session: str, number: int, running: Collection[str] | None) -> TriggerWork | None:
        """Return the next step for a host, None when it knows everything.

        Args:
            session: Of the last answer that it had; empty if it had none.
            number: Of that answer.
            running: What it runs, where it was asked for that.
        """
        if session != self._session:
            return TriggerWork(self._session, tell_all=True)
        if running is not None:
            known = set(running)
            self._number, self._step = 0, None
            self._to_start = {name: spec for name, spec in self.wanted.items() if name not in known}
            self._to_stop = dict.fromkeys(known - self.wanted.keys())
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
        step = TriggerWork(self._session, self._number, tuple(starts), tuple(self._to_stop))
        for spec in starts:
            del self._to_start[spec.id]
        self._to_stop.clear()
        return step


MAX_FAILURES = 3
"""How often in a row a host may die under one trigger, or before it is ready, until they are given up."""
FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = FIRST_PAUSE * 2 ** (MAX_FAILURES - 1)
STABLE_AFTER = timedelta(minutes=10)
"""A host that lived so long has not failed in a row."""
LINGER = timedelta(seconds=30)
"""How long a host without triggers is kept."""
LONGEST_SILENCE = timedelta(seconds=30)
"""How long a host may take to ask again after an answer, or to ask first after its start."""


@dataclass(slots=True, eq=False)
class Host:
    """A host: its process, if it has one, and its work.

    Attributes:
        code: What it loads; None while it is known by its token only.
        token: Of its process; None while it has none.
        launched_at: When that was launched.
        silent_since: Since when it is its turn to ask; None while a question of it is open.
        idle_since: Since when nothing is wanted of it.
        pause_until: Before that, no new process is launched.
        news: Set when there is something to tell it.
        gone: Set when a trigger is wanted no more.
        is_leaving: The answer to its next question ends it.
    """

    key: str
    code: CodeVersion | None = None
    token: str | None = None
    launched_at: datetime | None = None
    silent_since: datetime | None = None
    idle_since: datetime | None = None
    pause_until: datetime | None = None
    is_leaving: bool = False
    n_failures: int = 0
    n_questions: int = 0
    work: HostWork = field(default_factory=lambda: HostWork(new_token()))
    news: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)

    def tell(self) -> None:
        """Have its open question answered."""
        self.news.set()
        self.news = anyio.Event()

    def note_gone(self) -> None:
        """Have those look who wait for a trigger to be wanted no more."""
        self.gone.set()
        self.gone = anyio.Event()

    def launch(self, now: datetime, block_timeout: float) -> Launch:
        """Return the launch of a new process for it."""
        assert self.code is not None
        self.token = new_host_token(self.key)
        self.launched_at = self.silent_since = now
        self.pause_until = None
        self.work.forget_host()
        return self.launch_of(self.token, now, block_timeout)

    def launch_of(self, token: str, now: datetime, block_timeout: float) -> Launch:
        """Return the launch of its process, new or not."""
        assert self.code is not None
        name = self.code.sources[0].path if self.code.sources else "asynsched"
        return Launch(
            token=token,
            task_id="",
            map_index=-1,
            try_number=1,
            max_tries=0,
            run=RunContext("", "", "", now),
            code=self.code,
            log_path=f"triggers/{name}.log",
            trigger_host=TriggerHost(block_timeout),
        )

    def has_ended(self, now: datetime, *, failed: bool, interrupted: bool) -> None:
        """Take note that its process has ended, and decide when there may be a new one."""
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
        """Give half of the triggers to a new host, and return that: one of them kills the process of all."""
        other = Host(self.key, code=self.code, n_failures=1, pause_until=self.pause_until)
        for spec in list(self.work.wanted.values())[::2]:
            self.work.unwant(spec.id)
            other.work.want(spec)
        self.n_failures = 1
        return other

    def may_launch(self, now: datetime) -> bool:
        """Whether a new process may be launched now. No pause is longer than the longest: the clock was set back."""
        return self.pause_until is None or not now < self.pause_until <= now + LONGEST_PAUSE

    def is_silent(self, now: datetime) -> bool:
        """Whether it should have asked long ago."""
        return self.token is not None and self.silent_since is not None and now - self.silent_since > LONGEST_SILENCE

    def is_idle(self, now: datetime) -> bool:
        """Whether nothing has been wanted of it for some time."""
        return self.idle_since is not None and now - self.idle_since > LINGER
