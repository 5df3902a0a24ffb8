"""Celery as an engine: tickets are messages in queues of a broker, and `asynsched worker celery` takes them.

There is no result backend, for a try's state is in the database. If the broker delivers a message again, such as after
Redis's visibility timeout, the ticket's claim is refused; so Celery may acknowledge late.

    job id: the Celery task's id, when it was sent, and its queue, so that a scheduler after this one can look for it
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import anyio
import msgspec
from anyio.to_thread import run_sync
from msgspec import Struct

from asynsched.clock import new_token
from asynsched.executors.base import ExecutorContext
from asynsched.executors.engines.celery_app import SOCKET_SECONDS, celery_app, is_amqp
from asynsched.executors.engines.celery_messages import Batch, Placed
from asynsched.executors.engines.circuit_breaker import CircuitBreaker
from asynsched.executors.remote.engine import Accepted, Engine, Job, Later, Rejected, Sight, reason_of
from asynsched.executors.remote.executor import RemoteExecutor
from asynsched.loggers import get_logger
from asynsched.slices import Slices

log = get_logger(__name__)

T = TypeVar("T")
OF_OTHERS = ("pod_override", "KubernetesExecutor")
"""What DAG files of Airflow say to other executors."""
LONGEST_QUEUE = 200
CALL_SECONDS = 20.0
"""Longest that the scheduler waits for the broker in one call."""
ANSWER_SECONDS = 2.0
"""How long workers have to say what they do."""
LOOK_SECONDS = 15.0
"""Time between two questions to the broker; jobs that are younger are not asked for."""
MISSING_SECONDS = 45.0
"""How long neither the queue nor any worker may have a job, before it is `gone`."""
MOST_ASKED = 500
"""Jobs that workers are asked for at once."""


class ExecutorConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What a task may say in its `executor_config`.

    Attributes:
        queue: Instead of the task's own `queue`.
        priority: 0 to `celery.max_priority`, the highest first; by default the bits of its priority_weight.
    """

    queue: str = ""
    priority: int | None = None


class _Broker(Struct, frozen=True):
    """What was seen at the broker.

    Attributes:
        waiting: Messages in each queue that no worker has been given.
        listened: The queues on which workers listen; None: no worker has answered.
        asked: Jobs of empty queues, by their task ids, for which workers were asked.
        held: Those of them that a worker has: `active` or `reserved`, and the worker's name.
    """

    waiting: dict[str, int] = {}
    listened: frozenset[str] | None = None
    asked: frozenset[str] = frozenset()
    held: dict[str, tuple[str, str]] = {}


class CeleryEngine(Engine):
    """Publishes tickets, and asks the broker and the workers for them."""

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        self._settings = context.settings.celery
        self._app = celery_app(self._settings)
        self._is_amqp = is_amqp(self._app)
        self._threads = anyio.CapacityLimiter(3)
        """One to publish, one to revoke, and one to ask."""
        self._breaker = CircuitBreaker(context.clock, "Celery's broker", CALL_SECONDS)
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = self._seen_at = 0.0
        self._broker = _Broker()
        self._missed_since: dict[str, float] = {}
        self._slices = Slices()

    async def submit(self, jobs: Sequence[Job]) -> Sequence[Accepted | Rejected | Later]:
        now = int(self.context.clock.now().timestamp())
        placed = [self._place(job, now) for job in jobs]
        sent = [(job, *place) for job, place in zip(jobs, placed, strict=True) if not isinstance(place, Rejected)]
        batch, later = Batch(self._app, sent, is_amqp=self._is_amqp), Later("")
        try:
            await self._in_thread(batch.publish)
        except Exception as exc:  # noqa: BLE001 - whatever the client of a broker raises, the next pass tries it again
            later = Later(reason_of(exc))
        finally:
            batch.is_given_up = True
        return [one if isinstance(one, Rejected) else batch.answers.get(one[0].task_id, later) for one in placed]

    def _place(self, job: Job, now: int) -> tuple[Placed, dict[str, int]] | Rejected:
        """Return the job's id, and the options of its message."""
        own = {name: value for name, value in job.executor_config.items() if name not in OF_OTHERS}
        try:
            config = msgspec.convert(own, ExecutorConfig)
        except msgspec.ValidationError as exc:
            return Rejected(f"executor_config of Celery has queue and priority: {exc}")
        queue, most = config.queue or job.queue, self._settings.max_priority
        is_printable = queue.isprintable() and bool(queue.strip())
        if not is_printable or len(queue.encode()) > LONGEST_QUEUE or queue.startswith("amq."):
            return Rejected(
                f"{queue[:LONGEST_QUEUE]!r} cannot be a queue: its name has 1 to {LONGEST_QUEUE} bytes that can be"
                " printed, and does not begin with amq."
            )
        if config.priority is None:
            priority = min(max(job.priority_weight, 1).bit_length() - 1, most)
        elif 0 <= config.priority <= most:
            priority = config.priority
        else:
            return Rejected(f"the priority {config.priority} of its executor_config is not within 0 and {most}")
        # Redis serves the lowest number first.
        return Placed(new_token(), now, queue), {"priority": priority if self._is_amqp else most - priority}

    async def cancel(self, engine_ids: Sequence[str]) -> None:
        task_ids = [Placed.parse(one).task_id for one in engine_ids]
        await self._in_thread(lambda: self._app.control.revoke(task_ids))

    async def look(self, engine_ids: Sequence[str]) -> Mapping[str, Sight]:
        """Return how jobs are, by the last answers of the broker and the workers.

        To ask them takes seconds, so it is done in the background, for later looks.
        """
        now = self.context.clock.monotonic()
        sent_before = self.context.clock.now().timestamp() - LOOK_SECONDS
        placed = dict(await self._slices.take((one, Placed.parse(one)) for one in engine_ids))
        old = {one: its for one, its in placed.items() if its.sent_at <= sent_before}
        is_asking = self._asking is not None and not self._asking.done()
        if old and not is_asking and now - self._asked_at >= LOOK_SECONDS:
            self._asked_at = now
            self._asking = asyncio.create_task(self._learn(old), name="celery's jobs")
        known = ((one, self._sight(one, its)) for one, its in old.items() if its.queue in self._broker.waiting)
        return dict(await self._slices.take(known))

    async def _learn(self, jobs: Mapping[str, Placed]) -> None:
        """Ask the broker and the workers for jobs, and keep the answers."""
        before, self._missed_since = self._missed_since, {}
        try:
            with anyio.fail_after(CALL_SECONDS):
                self._broker = await run_sync(
                    self._ask, [*jobs.values()], limiter=self._threads, abandon_on_cancel=True
                )
        except Exception as exc:  # noqa: BLE001 - a broker that is away has not lost anything
            self._broker = _Broker()
            log.warning("celery.away", error=reason_of(exc))
            return
        now = self._seen_at = self.context.clock.monotonic()
        self._missed_since = {one: before.get(one, now) for one, placed in jobs.items() if self._is_missed(placed)}

    def _ask(self, jobs: Sequence[Placed]) -> _Broker:
        """Ask the broker for the queues, and the workers for the jobs, as far as queues are empty."""
        with self._app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, timeout=SOCKET_SECONDS)
            found = {queue: self._waiting_in(queue, connection) for queue in {job.queue for job in jobs}}
        inspect = self._app.control.inspect(timeout=ANSWER_SECONDS)
        queues = inspect.active_queues()
        listened = None if not queues else frozenset(one["name"] for its in queues.values() for one in its or ())
        oldest = sorted(jobs, key=lambda job: job.sent_at)
        asked = [job.task_id for job in oldest if not found[job.queue]][:MOST_ASKED]
        answers = inspect.query_task(*asked) if asked and queues else None
        held = {
            task_id: (state, worker)
            for worker, its in (answers or {}).items()
            for task_id, (state, _) in (its or {}).items()
        }
        return _Broker(found, listened, frozenset(asked), held)

    def _waiting_in(self, queue: str, connection: Any) -> int:
        channel = connection.channel()  # a missing queue closes it
        try:
            return int(channel.queue_declare(queue, passive=True).message_count)
        except connection.channel_errors:
            return 0
        finally:
            channel.close()

    def _is_missed(self, placed: Placed) -> bool:
        return placed.task_id in self._broker.asked and placed.task_id not in self._broker.held

    def _sight(self, engine_id: str, placed: Placed) -> Sight:
        if placed.task_id in self._broker.held:
            state, worker = self._broker.held[placed.task_id]
            if state == "active":
                return Sight("running", f"the worker {worker} has begun with it")
            return Sight("queued", f"the worker {worker} has reserved it")
        since = datetime.fromtimestamp(placed.sent_at, UTC)
        if self._seen_at - self._missed_since.get(engine_id, self._seen_at) >= MISSING_SECONDS:
            return Sight("gone", f"it was sent at {since:%H:%M} UTC, and neither the queue nor a worker has it")
        problem, waiting = "", about(self._broker.waiting[placed.queue])
        if self._broker.listened is None:
            problem = "no worker answers; "
        elif placed.queue not in self._broker.listened:
            problem = f"no worker listens on the queue {placed.queue}; "
        return Sight("queued", f"{problem}in the queue {placed.queue} since {since:%H:%M} UTC, with {waiting} waiting")

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        with anyio.move_on_after(CALL_SECONDS):
            await run_sync(self._app.close, abandon_on_cancel=True)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Call a function in a thread, and return its result. A call that is late goes on beside the next one."""
        return await self._breaker.call(lambda: run_sync(call, limiter=self._threads, abandon_on_cancel=True))


def about(number: int) -> str:
    """Return a number in words that seldom change, for they are stored with every job."""
    if number <= 20:
        return str(number)
    size = 10 ** (len(str(number)) - 1)
    return f"about {number // size * size:,}"


class CeleryExecutor(RemoteExecutor):
    """Runs tries through Celery."""

    engine_class = CeleryEngine
