"""The loggers of asynsched's own events, for a program that has configured structlog, and for one that has not."""

import logging
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger


class EventLogger:
    """Logs events such as `run.ended`, with values: through structlog, or through `logging` unless it is configured.

    So a program that embeds a scheduler gets the events where it has sent its logs, and at its levels.
    """

    def __init__(self, name: str) -> None:
        self._through_structlog = structlog.get_logger(name)
        self._through_logging = structlog.wrap_logger(
            logging.getLogger(name),
            processors=[structlog.stdlib.filter_by_level, _as_message],
            wrapper_class=structlog.stdlib.BoundLogger,
        )

    def __getattr__(self, method: str) -> Any:
        return getattr(self._through_structlog if structlog.is_configured() else self._through_logging, method)


def get_logger(name: str) -> Any:
    """Return the logger of a module; as with structlog's, its methods take an event and values."""
    return EventLogger(name)


def _as_message(_: WrappedLogger, __: str, event: EventDict) -> tuple[tuple[str, str], dict[str, Any]]:
    """Return the arguments of a call of `logging`: the event and its values in one line, and the error."""
    error = event.pop("exc_info", None)
    values = "".join(f" {name}={_shown(value)}" for name, value in event.items() if name != "event")
    return ("%s", f"{event['event']}{values}"), {"exc_info": error}


def _shown(value: Any) -> str:
    return repr(str(value) if isinstance(value, str) else value)  # of a state, its text
