"""Exceptions of user code as its author wants to see them: in one line, and without asynsched's frames."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import asynsched
from asynsched.authoring.masking import shortened
from asynsched.errors import AsynschedError

LONGEST_LINE = 500
_PACKAGE = Path(asynsched.__file__).parent
_ASYNCIO = Path(os.__file__).parent / "asyncio"
"""Found without an import, which would burden every fork."""
_FOLDERS = (_PACKAGE, _PACKAGE.parent / "sandbox", _ASYNCIO)
_BEFORE_USER_CODE = (*(f"{folder}{os.sep}" for folder in _FOLDERS), "<frozen importlib")


def one_line(exc: BaseException) -> str:
    """Return an exception's type and the first line of its message."""
    lines = text_of(exc).strip().splitlines()
    return f"{type(exc).__name__}: {shortened(lines[0], LONGEST_LINE)}" if lines else type(exc).__name__


def text_of(exc: BaseException) -> str:
    """Return an exception's text in a form that can be sent and stored; empty if `str` fails."""
    try:
        text = str(exc)
    except Exception:  # noqa: BLE001 - it is user code
        return ""
    return text.encode("utf-8", "backslashreplace").decode()  # UTF-8 has no lone surrogates


def user_frames(exc: BaseException) -> TracebackType | None:
    """Return an exception's traceback from the first frame of user code, after those of asynsched and asyncio.

    Without such a frame, return None for asynsched's exceptions, whose message is enough, and else the whole traceback.
    """
    current = exc.__traceback__
    while current is not None:
        if not current.tb_frame.f_code.co_filename.startswith(_BEFORE_USER_CODE):
            return current
        current = current.tb_next
    return None if isinstance(exc, AsynschedError) else exc.__traceback__
