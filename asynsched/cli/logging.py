"""How a scheduler that is run by the command line logs: for people or as one JSON object a line.

To standard error, or to a file that is rotated.

An embedding program configures its own logging; asynsched leaves it alone.
"""

import logging
import sys
from logging.handlers import RotatingFileHandler
from typing import Any

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from asynsched.cli.rendering import printable
from asynsched.errors import SettingsError
from asynsched.settings import LogSettings

RENDERED = "asynsched.rendered"
"""The logger of lines that structlog has rendered already."""


class _Formatter(logging.Formatter):
    """Leaves our own lines as they are, and renders those of libraries like them."""

    def __init__(self, foreign: logging.Formatter) -> None:
        super().__init__()
        self._foreign = foreign

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage() if record.name == RENDERED else self._foreign.format(record)


def configure_logging(settings: LogSettings) -> None:
    """Send asynsched's logs, and those of the libraries it uses, to standard error or to the file that is named.

    Raises:
        SettingsError: The file cannot be written.
    """
    level = getattr(logging, settings.level.upper())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=settings.format == "json"),
    ]
    renderers = _renderers(settings.format, colors=settings.file is None and sys.stderr.isatty())
    own = logging.getLogger(RENDERED)
    own.setLevel(logging.DEBUG)  # structlog has left out what is below the level
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: own,
    )
    foreign = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
    )
    handler = _handler(settings)
    handler.setFormatter(_Formatter(foreign))
    # Libraries are heard when something is wrong, whatever the level of our own logs.
    # A connection that cannot be closed because it is broken: that the database is away, the scheduler says itself.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING), force=True)


def _handler(settings: LogSettings) -> logging.Handler:
    if settings.file is None:
        return logging.StreamHandler(sys.stderr)
    try:
        return RotatingFileHandler(
            settings.file, maxBytes=settings.file_bytes, backupCount=settings.file_count, encoding="utf-8"
        )
    except OSError as exc:
        raise SettingsError(f"log.file: {settings.file} cannot be written: {exc.strerror}") from exc


def _renderers(form: str, *, colors: bool) -> list[Processor]:
    if form == "json":
        return [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(serializer=_json)]
    console = structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback, pad_event_to=30
    )
    return [_without_control_characters, console]


def _json(value: Any, **_: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _without_control_characters(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Names and messages of users must not steer the terminal. Tracebacks, which have lines, are shown by their own."""
    return {key: printable(value, keep="\n\t") if isinstance(value, str) else value for key, value in event.items()}
