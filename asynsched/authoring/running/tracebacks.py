"""Exceptions of user code as its author wants to see them: in one line, and without the frames that called it."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import asynsched
from asynsched.errors import AsynschedError

_PACKAGE = Path(asynsched.__file__).parent
_ASYNCIO = Path(os.__file__).parent / "asyncio"
"""Where it is, without loading it: it would weigh on every fork."""
_FOLDERS = (_PACKAGE, _PACKAGE.parent / "sandbox", _ASYNCIO)
_BEFORE_USER_CODE = (*(f"{folder}{os.sep}" for folder in _FOLDERS), "<frozen importlib")


def one_line(exc: BaseException) -> str:
    """Return an exception's type and the first line of its message."""
    lines = text_of(exc).strip().splitlines()
    return f"{type(exc).__name__}: {lines[0][:500]}" if lines else type(exc).__name__


def text_of(exc: BaseException) -> str:
    """Return an exception's text, as far as it can be sent and stored; empty where its class cannot give one."""
    try:
        text = str(exc)
    except Exception:  # noqa: BLE001 - it is user code
        return ""
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate is no UTF-8


def user_frames(exc: BaseException) -> TracebackType | None:
    """Return an exception's traceback from the first frame of user code: neither asynsched's own, nor asyncio's.

    Without such a frame: nothing where the exception is asynsched's and its message says it all, else the whole.
    """
    current = exc.__traceback__
    while current is not None:
        if not current.tb_frame.f_code.co_filename.startswith(_BEFORE_USER_CODE):
            return current
        current = current.tb_next
    return None if isinstance(exc, AsynschedError) else exc.__traceback__
