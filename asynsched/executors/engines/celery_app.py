"""The Celery application that schedulers and workers share: how its messages look, and how it uses the broker."""

from typing import Any

from asynsched.errors import SettingsError
from asynsched.settings import CelerySettings

try:
    from celery import Celery
except ImportError as exc:
    raise SettingsError(f"Celery needs the package {exc.name}: install asynsched[celery].") from exc

TASK = "asynsched.try"
TICKET = "asynsched_ticket"
"""The header of a message that holds the ticket."""
POOL = "asynsched.worker.celery:TicketPool"
SOCKET_SECONDS = 10.0
"""Time limit of one operation on the broker's connection, seconds."""


def celery_app(settings: CelerySettings) -> Celery:
    """Return the Celery application that schedulers and workers share. Raises SettingsError without a usable broker."""
    if not settings.broker_url:
        raise SettingsError(
            "celery.broker_url: Celery needs a broker, such as redis://HOST/0 or amqp://USER@HOST/VHOST"
        )
    app = Celery("asynsched", broker=settings.broker_url, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=True,
        task_default_queue="default",
        task_publish_retry_policy={"max_retries": 2, "interval_start": 0, "interval_step": 0.2, "interval_max": 1},
        broker_connection_timeout=SOCKET_SECONDS,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # RabbitMQ closes the channel of a message that is not acknowledged for its consumer_timeout.
        broker_channel_error_retry=True,
        broker_transport_options=_amqp_options() if is_amqp(app) else _redis_options(settings),
        worker_pool=POOL,
        worker_prefetch_multiplier=1,
        worker_send_task_events=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
    )
    if is_amqp(app) and settings.max_priority:
        app.conf.task_queue_max_priority = settings.max_priority
    own = settings.object_of("options")
    app.conf.broker_transport_options |= own.pop("broker_transport_options", {})
    app.conf.update(own)
    return app


def is_amqp(app: Celery) -> bool:
    """Return whether the broker speaks AMQP, as RabbitMQ does. Raises SettingsError for an unknown kind of broker."""
    try:
        kind = app.connection_for_write().transport.driver_type
    except (KeyError, ValueError, ImportError) as exc:
        raise SettingsError(f"celery.broker_url: {exc.args[0] if exc.args else exc}") from exc
    return bool(kind == "amqp")


def _amqp_options() -> dict[str, Any]:
    # Without a confirmation, a message that was written to the socket of a dying broker is lost. Without a time limit,
    # a broker that falls silent keeps the thread that declares a queue, and its connection, for ever.
    return {"confirm_publish": True, "read_timeout": SOCKET_SECONDS, "write_timeout": SOCKET_SECONDS}


def _redis_options(settings: CelerySettings) -> dict[str, Any]:
    return {
        "visibility_timeout": settings.visibility_timeout,
        "priority_steps": list(range(settings.max_priority + 1)),
        "queue_order_strategy": "priority",
        "socket_connect_timeout": SOCKET_SECONDS,
        "socket_timeout": SOCKET_SECONDS,
        "socket_keepalive": True,
    }
