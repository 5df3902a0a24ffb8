"""Where in a DAG file something was made."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType


class Origin:
    """A place in a DAG file.

    Its line is looked up when it is asked for. That takes a walk through the code from its first line on: for each of
    thousands of DAGs of one file it would take seconds.
    """

    __slots__ = ("_code", "_instruction")

    def __init__(self, code: CodeType, instruction: int) -> None:
        self._code = code
        self._instruction = instruction

    @property
    def filename(self) -> str:
        """The file, as Python knows it."""
        return self._code.co_filename

    @property
    def lineno(self) -> int:
        """The line, counted from 1."""
        lines = (line for start, end, line in self._code.co_lines() if start <= self._instruction < end)
        return next(lines, None) or self._code.co_firstlineno


def where_made() -> Origin:
    """Return the innermost statement that is outside of this package."""
    package = __name__.rpartition(".")[0]
    frame = sys._getframe(1)  # noqa: SLF001 - `inspect` calls the same, and is not worth its import
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(package):
        frame = frame.f_back
    return Origin(frame.f_code, frame.f_lasti)
