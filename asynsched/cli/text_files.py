"""Files that a command reads or writes at the user's wish; `-` is standard input or output."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from asynsched.cli.command import fail
from asynsched.cli.output import Done

STANDARD_STREAM = "-"


def read_text(name: str) -> str:
    """Return a file's text. Ends the command when it cannot be read."""
    if name == STANDARD_STREAM:
        return sys.stdin.read()
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as exc:
        fail(f"{name}: the file cannot be read: {exc.strerror}")
    except UnicodeDecodeError:
        fail(f"{name}: the file is not UTF-8.")


def write_private(name: str, content: Mapping[str, Any], sentence: str) -> Done | None:
    """Write an object as JSON, into a file that only its user can read. Returns the command's answer."""
    text = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    if name == STANDARD_STREAM:
        sys.stdout.write(text.decode())
        return None
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(text)
    except OSError as exc:
        fail(f"{name}: the file cannot be written: {exc.strerror}")
    return Done(sentence, {"file": name, "count": len(content)})
