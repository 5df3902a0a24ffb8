"""A Celery worker whose pool is the agent of its machine: `asynsched worker celery`.

    broker ──message──▶ Celery's consumer ──ticket──▶ TicketPool ──▶ agent (an event loop in a thread) ──▶ keeper
                              ▲                            │
                              └── acknowledged ◀── ended ──┘

Celery does what it does for any worker: it takes messages by its prefetch and its priorities, revokes, scales the pool,
and stops warm or cold. The pool runs no Python function: a slot is a try. Everything of Celery happens in its own
thread, as its consumer and its connection need.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal, start_blocking_portal
from billiard.einfo import ExceptionInfo
from celery import Celery, Task
from celery.concurrency.base import BasePool
from celery.exceptions import Ignore, ImproperlyConfigured, Reject
from celery.platforms import EX_FAILURE
from celery.worker import state
from celery.worker.request import Request

from asynsched.clock import Clock
from asynsched.executors.engines.celery_app import TASK, TICKET, celery_app
from asynsched.loggers import get_logger
from asynsched.protocol.worker_messages import Ticket
from asynsched.settings import Settings
from asynsched.worker.agent import RETURNED, Agent, Outcome, refused

log = get_logger(__name__)

REVOKED = "it was revoked in Celery"
TICK_SECONDS = 0.5
"""Time between two heartbeats' chances while the pool waits for its tries."""
LAST_SECONDS = 20.0
"""Longest that a cold shutdown waits for the ends of tries; the next worker of the home reports the rest."""


class TryFailed(Exception):
    """The try has failed, as Celery and Flower show it."""


class AgentThread:
    """An agent in an event loop in a thread of its own. Use it as `with AgentThread(agent) as tries:`.

    Raises the agent's errors when it starts and when it stops.
    """

    def __init__(self, agent: Agent, clock: Clock) -> None:
        self._agent = agent
        self._clock = clock
        self._portal_context = start_blocking_portal()
        self._portal: BlockingPortal
        self._serving: Future[None]
        self._stopping: anyio.Event
        self.has_failed = False
        """Whether this worker cannot go on, for a reason of its own."""

    def __enter__(self) -> "AgentThread":
        self._portal = self._portal_context.__enter__()
        try:
            self._serving, _ = self._portal.start_task(self._serve)
        except BaseException:
            self._portal_context.__exit__(None, None, None)
            raise
        self._serving.add_done_callback(self._stop_celery)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave tries that go on to the next agent of the home, if their ends cannot be stored in time."""
        with suppress(RuntimeError):
            self._portal.start_task_soon(self._stopping.set)
        try:
            self._serving.result(LAST_SECONDS)
        except TimeoutError:
            log.warning("worker.tries_left", seconds=LAST_SECONDS)
            self._serving.cancel()
        except CancelledError:
            pass
        finally:
            # Tickets whose claim is under way: nothing of them has begun, and the broker delivers them again.
            self._portal.call(self._portal.stop, True)
            self._portal_context.__exit__(None, None, None)

    async def _serve(self, *, task_status: TaskStatus[None]) -> None:
        self._stopping = anyio.Event()
        async with self._agent.serving():
            task_status.started()
            await self._stopping.wait()

    def _stop_celery(self, serving: "Future[None]") -> None:
        """Stop the worker if its agent has failed: others take its messages."""
        if not serving.cancelled() and (error := serving.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Stop the worker for an error of its own."""
        log.error("worker.failed", error=str(error) or type(error).__name__)
        self.has_failed = True
        state.should_terminate = EX_FAILURE

    @property
    def resumed(self) -> tuple[Ticket, ...]:
        """The tickets of a worker before this one, which the agent works on."""
        return self._agent.resumed

    def until_over(self, ticket: Ticket) -> "Future[Outcome]":
        """Wait for the end of a resumed ticket; the result says what became of it."""
        return self._portal.start_task_soon(self._agent.until_over, ticket)

    @property
    def n_running(self) -> int:
        """The number of tries that have a process, or are about to get one."""
        return self._agent.n_running

    def work(self, ticket: Ticket) -> "Future[Outcome]":
        """Begin to work on a ticket; the result says what became of it."""
        return self._portal.start_task_soon(self._agent.work, ticket)

    def end(self, ticket: Ticket, reason: str) -> None:
        """End the try of a ticket; returns at once."""
        self._portal.start_task_soon(self._agent.end, ticket.token, reason)

    def end_claims(self) -> None:
        """Return tickets for which no scheduler answers; returns at once."""
        self._portal.start_task_soon(self._agent.end_claims)

    def interrupt(self) -> None:
        """Interrupt all tries; returns at once."""
        self._portal.start_task_soon(self._agent.drain, 0.0)

    def now(self) -> float:
        return self._clock.monotonic()


class TicketRequest(Request):  # type: ignore[misc]
    """A message with a ticket."""

    def cancel(self, pool: "TicketPool", signal: Any = None, emit_retry: bool = True) -> None:
        """Do nothing: the pool interrupts its tries in a cold shutdown; they survive the loss of the broker."""


class TicketTask(Task):  # type: ignore[misc]
    """Never called: the pool reads the ticket of its message."""

    name = TASK
    Request = TicketRequest
    throws = (TryFailed,)
    ignore_result = True

    def run(self) -> None:
        raise RuntimeError("only a worker of `asynsched worker celery` runs it")


@dataclass(frozen=True, eq=False)
class _Slot:
    """A message that has a slot, or waits for one.

    Attributes:
        number: What Celery takes for the id of a process.
        task_id: Of the message; empty: it was that of an earlier worker, and has not come back.
        accepted: Tells Celery that the message has a slot.
        ended: Tells Celery what became of it.
    """

    number: int
    task_id: str
    ticket: Ticket
    accepted: Callable[[int, float], None]
    ended: Callable[[Any], None]


class TicketPool(BasePool):  # type: ignore[misc]
    """Runs tickets, each in a slot. Celery calls it in its own thread."""

    signal_safe = False
    body_can_be_buffer = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tries: AgentThread = self.app.tries
        self._hub: Any = None
        self._numbers = count(1)
        self._running: dict[int, _Slot] = {}
        self._waiting: deque[_Slot] = deque()
        """Messages beyond the slots, which Celery has reserved."""
        self._over: SimpleQueue[tuple[_Slot, Outcome, float]] = SimpleQueue()

    def on_start(self) -> None:
        if self.options.get("threads"):
            raise ImproperlyConfigured("celery.broker_url: the worker needs Redis, RabbitMQ or SQS")
        for ticket in self._tries.resumed:
            # Its message was another worker's, which is gone. The broker may deliver it again.
            slot = _Slot(next(self._numbers), "", ticket, lambda *_: None, lambda _: None)
            self._running[slot.number] = slot
            self._follow(slot, self._tries.until_over(ticket))

    def register_with_event_loop(self, hub: Any) -> None:
        self._hub = hub
        hub.call_soon(self._end_some)

    # Tries

    def apply_async(self, target: Any, args: Sequence[Any] = (), kwargs: Any = None, **options: Any) -> None:
        """Start the try of a message, or let it wait for a slot. The base class logs all, and the ticket is secret."""
        _, task_id, headers, *_ = args
        ended: Callable[[Any], None] = options["callback"]
        try:
            ticket = msgspec.convert(headers[TICKET], Ticket)
        except (KeyError, msgspec.ValidationError) as exc:
            ended(_result(refused(f"not a ticket: {exc}"), 0.0))
            return
        slot = _Slot(next(self._numbers), task_id, ticket, options["accept_callback"], ended)
        same = next((one for one in self._running.values() if one.ticket.proof == ticket.proof), None)
        if same is not None and not same.task_id:
            # Of a try that a worker before this one has left: its message has come back.
            self._running[same.number] = replace(slot, number=same.number)
            slot.accepted(same.number, self._tries.now())
        elif same is not None:
            # Delivered again while its try runs. Without an answer, RabbitMQ would close the channel again and again.
            log.info("ticket.refused", ticket=ticket.name, reason="this worker has it already")
            ended(_result(refused("this worker has the ticket already"), 0.0))
            _remember(task_id)
        elif len(self._running) < self.limit:
            self._start(slot)
        else:
            self._waiting.append(slot)

    def _start(self, slot: _Slot) -> None:
        if slot.task_id in state.revoked:
            slot.ended(_result(refused(REVOKED), 0.0))
            return
        self._running[slot.number] = slot
        slot.accepted(slot.number, self._tries.now())
        self._follow(slot, self._tries.work(slot.ticket))

    def _follow(self, slot: _Slot, work: "Future[Outcome]") -> None:
        """Give the slot to another message once the work on its ticket is over."""
        since = self._tries.now()

        def note(future: "Future[Outcome]") -> None:
            self._over.put((slot, self._outcome(future), since))
            if self._hub is not None:
                self._hub.call_soon(self._end_some)

        work.add_done_callback(note)

    def _outcome(self, future: "Future[Outcome]") -> Outcome:
        """Return what became of a ticket. After an error of this worker, it stops: another worker gets the ticket."""
        if future.cancelled():
            return RETURNED
        if (error := future.exception()) is None:
            return future.result()
        self._tries.fail(error)
        return RETURNED

    def _end_some(self) -> None:
        with suppress(Empty):
            while True:
                self._end(*self._over.get_nowait())

    def _end(self, slot: _Slot, outcome: Outcome, since: float) -> None:
        """Tell Celery of the end of a try, which acknowledges its message, and give its slot to the next."""
        slot = self._running.pop(slot.number, slot)
        try:
            slot.ended(_result(outcome, self._tries.now() - since))
        finally:
            self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self.limit:
            self._start(self._waiting.popleft())

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """End a try that was revoked with `terminate`."""
        if (slot := self._running.get(pid)) is not None:
            self._tries.end(slot.ticket, REVOKED)

    # Its size

    def grow(self, n: int = 1) -> None:
        self.limit += n
        self._fill()

    def shrink(self, n: int = 1) -> None:
        """Remove slots that are free. Raises ValueError if there are too few."""
        if self.limit - len(self._running) < n:
            raise ValueError("all slots are busy")
        self.limit -= n

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        return info | {"tries": [slot.ticket.name for slot in self._running.values()]}

    # How it stops

    def on_close(self) -> None:
        self._waiting.clear()  # the broker gives them to other workers
        self._tries.end_claims()

    def on_stop(self) -> None:
        """Wait for all tries in a warm shutdown; a cold one, within a signal's handler, only interrupts them."""
        if state.should_terminate:
            self._tries.interrupt()
        else:
            self._drain(None)

    def on_terminate(self) -> None:
        self._tries.interrupt()
        self._drain(self._tries.now() + LAST_SECONDS)

    def _drain(self, deadline: float | None) -> None:
        """Wait for the ends of tries, and let Celery keep the broker's connection alive meanwhile.

        Args:
            deadline: None: as long as tries run; then, or after a cold shutdown has followed, for a limited time.
        """
        limit, is_cold = deadline, deadline is not None
        while self._running and (limit is None or self._tries.now() < limit):
            if state.should_terminate and not is_cold:
                is_cold, limit = True, self._tries.now() + LAST_SECONDS
                self._tries.interrupt()
            elif not is_cold:
                limit = None if self._tries.n_running else limit or self._tries.now() + LAST_SECONDS
            with suppress(Empty):
                self._end(*self._over.get(timeout=TICK_SECONDS))
            if self._hub is not None:
                self._hub.fire_timers()


def _remember(task_id: str) -> None:
    """Tell Celery again which request has this id: it forgets that when another request with the same id ends."""
    state.requests.update((task_id, one) for one in list(state.active_requests) if one.id == task_id)


def _result(outcome: Outcome, seconds: float) -> tuple[int, Any, float]:
    """Return an outcome as Celery's own tracing does.

    A refused ticket is ignored, so that Flower goes on to show the try of the same ticket that was not. One that this
    worker could not claim goes back to the broker.
    """
    told: Exception
    match outcome.kind:
        case "done" | "over":
            return 0, outcome.text, seconds
        case "failed":
            told = TryFailed(outcome.text)
        case "refused":
            told = Ignore(outcome.text)
        case "returned":
            told = Reject(outcome.text, requeue=True)
    try:
        raise told
    except (Ignore, Reject, TryFailed):
        return 1, ExceptionInfo(), seconds


def run_worker(settings: Settings, agent: Agent, clock: Clock, arguments: Sequence[str]) -> int:
    """Run a Celery worker until it is stopped, and return its exit code.

    Args:
        arguments: Of `celery worker`.

    Raises:
        SettingsError: There is no broker, or the home cannot be used.
        HomeInUse: Another worker has the home.
        ExecutorError: The keeper cannot be started.
    """
    app = celery_app(settings.celery)
    app.register_task(TicketTask())
    with AgentThread(agent, clock) as app.tries:
        code = _run(app, arguments)
    return code or (EX_FAILURE if app.tries.has_failed else 0)


def _run(app: Celery, arguments: Sequence[str]) -> int:
    try:
        app.worker_main(["worker", *arguments])
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else 1
    return 0
