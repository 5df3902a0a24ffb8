"""Logging of a scheduler that the command line runs: for people or as one JSON object per line.

The log goes to standard error, or to a file that is rotated. An embedding program configures its own logging; asynsched
does not change it.
"""

import logging
import sys
from collections.abc import Sequence
from logging.handlers import RotatingFileHandler

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from asynsched.cli.output import command_line, printable
from asynsched.clock import Clock
from asynsched.errors import SettingsError
from asynsched.settings import LogSettings
from asynsched.states import DagRunState

OWN = "asynsched.own"
"""The logger of asynsched's own events, which structlog has filtered by level."""


def configure_logging(settings: LogSettings, options: Sequence[str] = ()) -> None:
    """Send the logs of asynsched, and of the libraries that it uses, to standard error or to the file in `settings`.

    Args:
        options: Options that make a suggested command use the same home and database.

    Raises:
        SettingsError: The file cannot be written.
    """
    level = getattr(logging, settings.level.upper())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso") if settings.format == "json" else _local_time,
    ]
    renderers = _renderers(settings.format, options, colors=settings.file is None and sys.stderr.isatty())
    own = logging.getLogger(OWN)
    own.setLevel(logging.DEBUG)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: own,
    )
    handler = _handler(settings)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    # Libraries log only warnings and errors, even if our own level is lower.
    # The pool's errors about closing broken connections add nothing: the scheduler logs that the database is away.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING), force=True)


def _local_time(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Add the time in the zone of this machine, with its offset: run_ids and other times in the log are in UTC."""
    event["timestamp"] = Clock().now().astimezone().isoformat(timespec="milliseconds")
    return event


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
        encode = msgspec.json.Encoder(enc_hook=str).encode
        return [
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(serializer=lambda value, **_: encode(value).decode()),
        ]
    console = structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback, pad_event_to=30
    )

    def render(logger: WrappedLogger, method: str, event: EventDict) -> str:
        """Render an event and, for a failure, a second line with the command that explains it."""
        command = _command_of(event, options)
        line = console(logger, method, event)
        return f"{line}\n    {command}" if command else line

    return [_without_control_characters, render]


def _command_of(event: EventDict, options: Sequence[str]) -> str:
    """Return the command that explains the failure that an event reports; empty for any other event."""
    match event:
        case {"event": "try.failed", "dag_id": dag_id, "run_id": run_id, "task_id": task_id, "try_number": number}:
            index = ("--map-index", str(event["map_index"])) if "map_index" in event else ()
            return command_line("tasks", "logs", dag_id, run_id, task_id, *index, "--try", str(number), options=options)
        case {"event": "tries.failed"}:
            return command_line("runs", "list", "--state", DagRunState.FAILED, options=options)
        case {"event": "run.ended", "state": DagRunState.FAILED, "dag_id": dag_id, "run_id": run_id}:
            return command_line("why", dag_id, run_id, options=options)
    return ""


def _without_control_characters(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Remove control characters, so that names and messages of users cannot control the terminal.

    Tracebacks are not affected: they are rendered separately, on lines of their own.
    """
    return {key: printable(value, keep="\n\t") if isinstance(value, str) else value for key, value in event.items()}
