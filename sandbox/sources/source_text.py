"""The text of a Python source: what its bytes say by their declared encoding."""

import importlib.util
from collections.abc import Callable

Note = Callable[[str, str, bytes], str]
"""Takes a module's name, its file and its bytes; returns its text."""


def _no_text(filename: str, data: bytes, exc: UnicodeDecodeError) -> SyntaxError:
    line = data.count(b"\n", 0, exc.start) + 1
    what = f"byte 0x{data[exc.start]:02x} is not {exc.encoding.upper()}; save the file as UTF-8"
    return SyntaxError(what, (filename, line, None, None))


def decode_text(_module: str, filename: str, data: bytes) -> str:
    """Return a source's text by its declared encoding. Raises SyntaxError, with the line, when it is no text."""
    try:
        text = importlib.util.decode_source(data)
    except UnicodeDecodeError as exc:
        raise _no_text(filename, data, exc) from exc
    except SyntaxError as exc:
        try:
            data.decode()
        except UnicodeDecodeError as cause:
            raise _no_text(filename, data, cause) from exc
        raise SyntaxError(exc.msg, (filename, 1, None, None)) from exc
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SyntaxError("there is a null byte in the text", (filename, line, None, None))
    return text
