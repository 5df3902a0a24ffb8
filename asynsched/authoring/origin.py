"""Where in a DAG file something was made."""

from __future__ import annotations

import sys


def where_made() -> tuple[str, int]:
    """Return file and line of the innermost statement that is outside of this package."""
    package = __name__.rpartition(".")[0]
    frame = sys._getframe(1)  # noqa: SLF001 - `inspect` calls the same, and is not worth its import
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(package):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
