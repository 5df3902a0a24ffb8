"""The client of the executor: hands over launches, passes its reports on, and answers the requests of its tries.

Users know it as the executor heartbeat: Airflow's `Executor.heartbeat()` starts queued tasks and collects the ends of
others. Here messages wake it, and nothing beats.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

import anyio

from asynsched.channels import Channels, TaskReady, TriesReported, TriesStored, TryReported, TryUnwanted
from asynsched.clock import Clock
from asynsched.executors.base import Executor, TryEvent
from asynsched.executors.requests import RequestAnswerer
from asynsched.executors.tokens import is_callback_token, key_of_token
from asynsched.protocol.messages import Launch, Reply, Request
from asynsched.service import Service

HOST_OPERATIONS = frozenset({"trigger_work", "trigger_outcomes"})
LONGEST_UNKNOWN = timedelta(seconds=30)
"""Longest that a request waits until its try is known, once the scheduler has taken up the runs that it found."""


class ExecutorClient(Service):
    """The only service that talks to the executor.

    It sends granted launches, acknowledgements and kills as their messages arrive. `report` passes the starts and ends
    of tries on: those of task instances to the evaluator, others to the callback runner or the triggerer.
    """

    name = "executor heartbeat"

    def __init__(self, *, channels: Channels, clock: Clock, answerer: RequestAnswerer) -> None:
        super().__init__(clock)
        self._channels = channels
        self.answerer = answerer
        self.executor: Executor | None = None
        """Made with this service's `report`, `answer` and `fail`."""
        self.answer_host: Callable[[Request], Awaitable[Reply]] | None = None
        """Answers requests of trigger hosts."""
        self._launched: dict[str, TaskReady] = {}
        self._next_launches = anyio.Event()
        self._has_taken_up = anyio.Event()
        """Set once the launches of the runs that the scheduler found at its start are known."""
        self._failure: Exception | None = None
        channels.ready.wakes(self.wake)

    def report(self, event: TryEvent) -> None:
        """Pass an event of a try on. Never blocks."""
        if is_callback_token(event.token):
            self._channels.callbacks.put_nowait(TryReported(event))
        elif key_of_token(event.token) is not None:
            self._channels.triggers.put_nowait(TryReported(event))
        else:
            self._channels.reports.put_nowait(TryReported(event))

    def fail(self, error: Exception) -> None:
        """End the scheduler with an error of the executor. Never blocks."""
        self._failure = error
        self.wake()

    async def answer(self, request: Request) -> Reply:
        """Answer a request of a trigger host, or of a try, for its own run only."""
        if request.operation in HOST_OPERATIONS and self.answer_host is not None:
            return await self.answer_host(request)
        ready = await self._find(request.token)
        if ready is None:
            return Reply(request.token, request.request_id, error="this try is not known to the scheduler")
        return await self.answerer.answer(request, ready)

    async def _find(self, token: str) -> TaskReady | None:
        """Return the launch of a try. A try of an earlier scheduler may ask before it is taken up.

        That may take long: at its start, a scheduler takes up run after run.
        """
        await self._has_taken_up.wait()
        deadline = self.clock.monotonic() + LONGEST_UNKNOWN.total_seconds()
        while token not in self._launched:
            if not await self.clock.wait(self._next_launches, timedelta(seconds=deadline - self.clock.monotonic())):
                break
        return self._launched.get(token)

    def launch_of(self, token: str) -> Launch | None:
        """Return the launch of a try whose end is not stored; None: it is not known here."""
        ready = self._launched.get(token)
        return None if ready is None else ready.launch

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to hand over."""
        return not self._channels.ready.qsize()

    async def tick(self, now: datetime) -> None:
        """Hand over launches, acknowledgements and kills, in that order. Raises the executor's failure."""
        if self._failure is not None:
            raise self._failure
        if self.executor is not None:
            await self._hand_over(self.executor)
        if self._channels.ready.qsize():
            self.wake()  # a pass takes a limited number of messages
        else:
            self._has_taken_up.set()

    async def _hand_over(self, executor: Executor) -> None:
        launches: list[Launch] = []
        stored: list[str] = []
        unwanted: list[TryUnwanted] = []
        for message in self._channels.ready.take():
            match message:
                case TaskReady(_, launch):
                    self._launched[launch.token] = message
                    launches.append(launch)
                case TriesStored(tokens):
                    stored.extend(tokens)
                case TryUnwanted():
                    unwanted.append(message)
                case TriesReported(events):
                    _tell(executor, events)
        if launches:
            self._next_launches.set()
            self._next_launches = anyio.Event()
            await executor.launch(launches)
        if stored:
            await executor.acknowledge(stored)
            for token in stored:
                self._launched.pop(token, None)
        for message in unwanted:
            await executor.kill(message.token, message.reason)


def _tell(executor: Executor, events: Sequence[TryEvent]) -> None:
    """Pass on what a worker has reported here, or that the database has news."""
    if events:
        executor.hear(events)
    else:
        executor.look()
