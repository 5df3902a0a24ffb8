"""Celery as an engine: tickets are messages in queues of a broker, and `asynsched worker celery` takes them.

A ticket travels as a header of its message, not as an argument: Celery and Flower show arguments, and a ticket holds a
secret. There is no result backend, for a try's state is in the database. If the broker delivers a message again, such
as after Redis's visibility timeout, the ticket's claim is refused; so Celery may acknowledge late.

    job id: the Celery task's id, when it was sent, and its queue, so that a scheduler after this one can look for it
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import anyio
import msgspec
from anyio.to_thread import run_sync
from msgspec import Struct

from asynsched.clock import new_token
from asynsched.executors.base import ExecutorContext
from asynsched.executors.engines.celery_app import SOCKET_SECONDS, TASK, TICKET, celery_app, is_amqp
from asynsched.executors.remote.engine import Accepted, Engine, Job, Rejected, Sight
from asynsched.executors.remote.executor import RemoteExecutor

T = TypeVar("T")
OF_OTHERS = ("pod_override", "KubernetesExecutor")
"""What DAG files of Airflow say to other executors."""
LONGEST_QUEUE = 200
CALL_SECONDS = 20.0
"""Longest that the scheduler waits for the broker in one call."""
ANSWER_SECONDS = 2.0
"""How long workers have to say what they do."""
LOOK_SECONDS = 15.0
"""Time between two looks at the broker; jobs that are younger are not looked for."""
MISSING_SECONDS = 45.0
"""How long neither the queue nor any worker may have a job, before it is `gone`."""
MOST_ASKED = 500
"""Jobs that workers are asked for at once."""


class Wishes(Struct, frozen=True, forbid_unknown_fields=True):
    """What a task may say in its `executor_config`.

    Attributes:
        queue: Instead of the task's own `queue`.
        priority: 0 to `celery.max_priority`, the highest first; by default the bits of its priority_weight.
    """

    queue: str = ""
    priority: int | None = None


class _Placed(Struct, frozen=True):
    """The id of a job, in parts."""

    task_id: str
    sent_at: int
    queue: str

    def __str__(self) -> str:
        return f"{self.task_id} {self.sent_at} {self.queue}"

    @classmethod
    def parse(cls, engine_id: str) -> "_Placed":
        task_id, sent_at, queue = engine_id.split(" ", 2)
        return cls(task_id, int(sent_at), queue)


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
        self._publishing, self._asking = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)
        self._looked_at = 0.0
        self._broker = _Broker()
        self._missed_since: dict[str, float] = {}

    async def submit(self, jobs: Sequence[Job]) -> Sequence[Accepted | Rejected]:
        now = int(self.context.clock.now().timestamp())
        placed = [self._place(job, now) for job in jobs]
        sent = [(job, *place) for job, place in zip(jobs, placed, strict=True) if not isinstance(place, Rejected)]
        await self._in_thread(self._publishing, lambda: self._publish(sent))
        return [place if isinstance(place, Rejected) else Accepted(str(place[0])) for place in placed]

    def _place(self, job: Job, now: int) -> tuple[_Placed, int] | Rejected:
        """Return the job's id and its priority, the highest first."""
        own = {name: value for name, value in job.executor_config.items() if name not in OF_OTHERS}
        try:
            wishes = msgspec.convert(own, Wishes)
        except msgspec.ValidationError as exc:
            return Rejected(f"executor_config of Celery has queue and priority: {exc}")
        queue, most = wishes.queue or job.queue, self._settings.max_priority
        if not queue.strip() or len(queue.encode()) > LONGEST_QUEUE:
            return Rejected(f"the name of a queue must have 1 to {LONGEST_QUEUE} bytes")
        if wishes.priority is None:
            priority = min(max(job.priority_weight, 1).bit_length() - 1, most)
        elif 0 <= wishes.priority <= most:
            priority = wishes.priority
        else:
            return Rejected(f"the priority {wishes.priority} of its executor_config is not within 0 and {most}")
        return _Placed(new_token(), now, queue), priority

    def _publish(self, sent: Sequence[tuple[Job, _Placed, int]]) -> None:
        with self._app.producer_or_acquire() as producer:
            # Each batch declares its queues: a message for a queue that was deleted meanwhile would be dropped.
            producer.channel.connection.client.declared_entities.clear()
            for job, placed, priority in sent:
                ticket = job.ticket
                self._app.send_task(
                    TASK,
                    task_id=placed.task_id,
                    queue=placed.queue,
                    # Redis serves the lowest number first.
                    priority=priority if self._is_amqp else self._settings.max_priority - priority,
                    headers={TICKET: msgspec.to_builtins(ticket)},
                    shadow=f"{ticket.dag_id}.{ticket.task_id}",
                    argsrepr=f"({ticket.name!r},)",
                    kwargsrepr="{}",
                    ignore_result=True,
                    producer=producer,
                    confirm_timeout=SOCKET_SECONDS,
                )

    async def cancel(self, engine_ids: Sequence[str]) -> None:
        task_ids = [_Placed.parse(one).task_id for one in engine_ids]
        await self._in_thread(self._asking, lambda: self._app.control.revoke(task_ids))

    async def look(self, engine_ids: Sequence[str]) -> Mapping[str, Sight]:
        now = self.context.clock.monotonic()
        sent_before = self.context.clock.now().timestamp() - LOOK_SECONDS
        old = {one: placed for one in engine_ids if (placed := _Placed.parse(one)).sent_at <= sent_before}
        if old and now - self._looked_at >= LOOK_SECONDS:
            # Now, for it may fail: a broker that is away is not asked all the time, and has not lost anything.
            self._looked_at, before = now, self._missed_since
            self._broker, self._missed_since = _Broker(), {}
            self._broker = await self._in_thread(self._asking, lambda: self._ask([*old.values()]))
            self._missed_since = {one: before.get(one, now) for one, placed in old.items() if self._is_missed(placed)}
        return {one: self._sight(one, placed, now) for one, placed in old.items() if self._is_seen(placed)}

    def _ask(self, jobs: Sequence[_Placed]) -> _Broker:
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

    def _is_missed(self, placed: _Placed) -> bool:
        return placed.task_id in self._broker.asked and placed.task_id not in self._broker.held

    def _is_seen(self, placed: _Placed) -> bool:
        return placed.queue in self._broker.waiting

    def _sight(self, engine_id: str, placed: _Placed, now: float) -> Sight:
        if placed.task_id in self._broker.held:
            state, worker = self._broker.held[placed.task_id]
            if state == "active":
                return Sight("running", f"the worker {worker} has begun with it")
            return Sight("queued", f"the worker {worker} has reserved it")
        since = datetime.fromtimestamp(placed.sent_at, UTC)
        if now - self._missed_since.get(engine_id, now) >= MISSING_SECONDS:
            return Sight("gone", f"it was sent at {since:%H:%M} UTC, and neither the queue nor a worker has it")
        problem, waiting = "", about(self._broker.waiting[placed.queue])
        if self._broker.listened is None:
            problem = "no worker answers; "
        elif placed.queue not in self._broker.listened:
            problem = f"no worker listens on the queue {placed.queue}; "
        return Sight("queued", f"{problem}in the queue {placed.queue} since {since:%H:%M} UTC, with {waiting} waiting")

    async def close(self) -> None:
        await self._in_thread(self._asking, self._app.close)

    async def _in_thread(self, limiter: anyio.CapacityLimiter, call: Callable[[], T]) -> T:
        """Call a function in a thread, and return its result. A late call goes on, and later ones wait for its end."""
        with anyio.fail_after(CALL_SECONDS):
            return await run_sync(call, limiter=limiter, abandon_on_cancel=True)


def about(number: int) -> str:
    """Return a number in words that seldom change, for they are stored with every job."""
    if number <= 20:
        return str(number)
    size = 10 ** (len(str(number)) - 1)
    return f"about {number // size * size:,}"


class CeleryExecutor(RemoteExecutor):
    """Runs tries through Celery."""

    engine_class = CeleryEngine
