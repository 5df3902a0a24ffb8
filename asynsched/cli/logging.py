"""How a scheduler that is run by the command line logs: on standard error, for people or as one JSON object a line.

An embedding program configures its own logging; asynsched leaves it alone.
"""

import logging
import sys
from typing import Any

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from asynsched.cli.rendering import printable
from asynsched.settings import LogSettings


def configure_logging(settings: LogSettings) -> None:
    """Send asynsched's logs, and those of the libraries it uses, to standard error."""
    level = getattr(logging, settings.level.upper())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=settings.format == "json"),
    ]
    structlog.configure(
        processors=[*shared, *_renderers(settings.format)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(settings.format)],
        )
    )
    # Libraries are heard when something is wrong, whatever the level of our own logs.
    # A connection that cannot be closed because it is broken: that the database is away, the scheduler says itself.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING), force=True)


def _renderers(form: str) -> list[Processor]:
    if form == "json":
        return [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(serializer=_json)]
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=30
    )
    return [_without_control_characters, console]


def _json(value: Any, **_: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _without_control_characters(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Names and messages of users must not steer the terminal. Tracebacks, which have lines, are shown by their own."""
    return {key: printable(value, keep="\n\t") if isinstance(value, str) else value for key, value in event.items()}
