"""The messages that carry tickets through Celery, and how a batch of them is published.

A ticket travels as a header of its message, not as an argument: Celery and Flower show arguments, and a ticket holds a
secret.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from celery import Celery
from kombu.exceptions import EncodeError
from msgspec import Struct

from asynsched.executors.engines.celery_app import SOCKET_SECONDS, TASK, TICKET
from asynsched.executors.remote.engine import Accepted, Job, Later, Rejected, reason_of


class Placed(Struct, frozen=True):
    """The id of a job, in parts."""

    task_id: str
    sent_at: int
    queue: str

    def __str__(self) -> str:
        return f"{self.task_id} {self.sent_at} {self.queue}"

    @classmethod
    def parse(cls, engine_id: str) -> "Placed":
        """Return the parts of an id."""
        task_id, sent_at, queue = engine_id.split(" ", 2)
        return cls(task_id, int(sent_at), queue)


class Batch:
    """Jobs that are published together.

    Args:
        is_amqp: Whether the broker speaks AMQP.

    Attributes:
        answers: What has become of jobs so far, by their task ids.
        is_given_up: Whether to publish no more, because nobody waits for the answers.
    """

    def __init__(self, app: Celery, jobs: Sequence[tuple[Job, Placed, dict[str, int]]], *, is_amqp: bool) -> None:
        self._app, self._is_amqp = app, is_amqp
        connection = app.connection_for_write()
        self._away = (OSError, *connection.connection_errors)
        self._channel_errors = connection.channel_errors
        self._left = list(reversed(jobs))
        self.answers: dict[str, Accepted | Rejected | Later] = {}
        self.is_given_up = False

    def publish(self) -> None:
        """Publish the jobs. Blocks. Raises whatever the client raises if the broker takes no more of them."""
        while self._left and not self.is_given_up:
            with self._app.producer_or_acquire() as producer:
                # Each batch declares its queues: a message for a queue that was deleted meanwhile would be dropped.
                producer.channel.connection.client.declared_entities.clear()
                self._publish_some(producer)

    def _publish_some(self, producer: Any) -> None:
        """Publish jobs until one of them is refused: an AMQP broker closes the channel then."""
        while self._left and not self.is_given_up:
            job, placed, options = self._left.pop()
            try:
                self._send(producer, job, placed, options)
            except Exception as exc:
                if isinstance(exc.__cause__ or exc, self._away):
                    raise
                said = reason_of(exc)
                rejected = Rejected(f"Celery's broker does not take it: {said}")
                self.answers[placed.task_id] = rejected if self._is_final(exc.__cause__ or exc) else Later(said)
                return
            self.answers[placed.task_id] = Accepted(str(placed))

    def _send(self, producer: Any, job: Job, placed: Placed, options: dict[str, int]) -> None:
        ticket = job.ticket
        self._app.send_task(
            TASK,
            task_id=placed.task_id,
            queue=placed.queue,
            headers={TICKET: msgspec.to_builtins(ticket)},
            shadow=ticket.kind,
            argsrepr=f"({ticket.name!r},)",
            kwargsrepr="{}",
            ignore_result=True,
            producer=producer,
            confirm_timeout=SOCKET_SECONDS,
            **options,
        )

    def _is_final(self, exc: BaseException) -> bool:
        """Whether an error is due to one message or its queue, so that publishing it again fails, too."""
        if isinstance(exc, self._channel_errors):
            return self._is_amqp or "WRONGTYPE" in str(exc)  # Redis also answers so if its memory is full
        return isinstance(exc, EncodeError | UnicodeError)
