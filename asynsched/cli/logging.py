"""How a scheduler that is run by the command line logs: for people or as one JSON object a line.

To standard error, or to a file that is rotated.

An embedding program configures its own logging; asynsched leaves it alone.
"""

import logging
import sys
from collections.abc import Sequence
from logging.handlers import RotatingFileHandler
from typing import Any

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from asynsched.cli.output import command_line, printable
from asynsched.errors import SettingsError
from asynsched.settings import LogSettings
from asynsched.states import DagRunState

RENDERED = "asynsched.rendered"
"""The logger of lines that structlog has rendered already."""


class _Formatter(logging.Formatter):
    """Leaves our own lines as they are, and renders those of libraries like them."""

    def __init__(self, foreign: logging.Formatter) -> None:
        super().__init__()
        self._foreign = foreign

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage() if record.name == RENDERED else self._foreign.format(record)


def configure_logging(settings: LogSettings, options: Sequence[str] = ()) -> None:
    """Send asynsched's logs, and those of the libraries it uses, to standard error or to the file that is named.

    Args:
        settings: The form, the level and the file.
        options: Those with which commands work on the home and database that the log is about.

    Raises:
        SettingsError: The file cannot be written.
    """
    level = getattr(logging, settings.level.upper())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=settings.format == "json"),
    ]
    renderers = _renderers(settings.format, options, colors=settings.file is None and sys.stderr.isatty())
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


def _renderers(form: str, options: Sequence[str], *, colors: bool) -> list[Processor]:
    if form == "json":
        return [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(serializer=_json)]
    console = structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback, pad_event_to=30
    )

    def render(logger: WrappedLogger, method: str, event: EventDict) -> str:
        """Add, on a line of its own, the command that says more of what went wrong."""
        command = _command_of(event, options)
        line = console(logger, method, event)
        return f"{line}\n    {command}" if command else line

    return [_without_control_characters, render]


def _command_of(event: EventDict, options: Sequence[str]) -> str:
    """Return the command that shows why something has failed; empty where nothing has."""
    match event:
        case {"event": "try.failed", "dag_id": dag_id, "run_id": run_id, "task_id": task_id, "try_number": number}:
            index = ("--map-index", str(event["map_index"])) if "map_index" in event else ()
            return command_line("tasks", "logs", dag_id, run_id, task_id, *index, "--try", str(number), options=options)
        case {"event": "tries.failed"}:
            return command_line("runs", "list", "--state", DagRunState.FAILED, options=options)
        case {"event": "run.ended", "state": DagRunState.FAILED, "dag_id": dag_id, "run_id": run_id}:
            return command_line("why", dag_id, run_id, options=options)
    return ""


def _json(value: Any, **_: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _without_control_characters(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Names and messages of users must not steer the terminal. Tracebacks, which have lines, are shown by their own."""
    return {key: printable(value, keep="\n\t") if isinstance(value, str) else value for key, value in event.items()}
