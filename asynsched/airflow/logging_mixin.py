"""LoggingMixin: gives objects a logger that is named after their class."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import Any

_ESCAPE = re.compile(r"\x1B[@-_][0-?]*[ -/]*[@-~]")


def remove_escape_codes(text: str) -> str:
    """Return a text without the codes that colour a terminal."""
    return _ESCAPE.sub("", text)


class LoggingMixin:
    """Gives objects `log`, a logger that is named after their class.

    Attributes:
        _logger_name: The logger's name, instead of the class's.
        _log_config_logger_name: A name before it.
    """

    _log: logging.Logger | None = None
    _log_config_logger_name: str | None = None
    _logger_name: str | None = None

    def __init__(self, context: Any = None) -> None:
        self._set_context(context)
        super().__init__()

    @classmethod
    def logger(cls) -> logging.Logger:
        """Return the logger of the class."""
        return _logger_of(cls, cls)

    @property
    def log(self) -> logging.Logger:
        """The logger of the object."""
        return _logger_of(self, type(self))

    def _set_context(self, context: Any) -> None:
        """Take what the log is about. Subclasses may use it."""


def _logger_of(owner: Any, cls: type) -> logging.Logger:
    if owner._log is None:  # noqa: SLF001 - an attribute that Airflow's subclasses know as well
        import logging

        name = owner._logger_name if owner._logger_name is not None else f"{cls.__module__}.{cls.__name__}"  # noqa: SLF001
        owner._log = logging.getLogger(".".join(filter(None, (owner._log_config_logger_name, name))))  # noqa: SLF001
    found: logging.Logger = owner._log  # noqa: SLF001
    return found


class StreamLogWriter:
    """A text stream whose lines go to a logger.

    Args:
        logger: Takes the lines.
        level: Their level.
    """

    encoding = "undefined"
    closed = False

    def __init__(self, logger: logging.Logger, level: int) -> None:
        self.logger = logger
        self.level = level
        self._rest = ""

    def write(self, message: str) -> int:
        """Log the text, and everything before it, once a line ends."""
        self._rest += message
        if message.endswith("\n"):
            self.flush()
        return len(message)

    def flush(self) -> None:
        """Log what was written since."""
        text, self._rest = self._rest.rstrip(), ""
        if text:
            self.logger.log(self.level, remove_escape_codes(text))

    def isatty(self) -> bool:
        """Return that this is no terminal."""
        return False

    def close(self) -> None:
        """Do nothing: the logger stays."""
