"""`asynsched …`: the scheduler's command line."""

import errno
import gc
import os
import sys
from pathlib import Path
from typing import NoReturn

_USUAL_COLLECTION = gc.get_threshold()
_COLLECTION_IN_COMMANDS = (200_000, *_USUAL_COLLECTION[1:])


def main() -> None:
    """Be `asynsched`: run the command that the arguments of this process name, and end."""
    # A shell may have closed them: then nobody wants to read that.
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the end
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the end
    try:
        run_command()
    except OSError as exc:
        if exc.errno != errno.ENOSPC:
            raise
        _say_unwritten(exc)
    except SystemExit as end:
        if gc.get_threshold() == _COLLECTION_IN_COMMANDS and isinstance(end.code, int | None):
            _end_at_once(end.code or 0)
        raise
    finally:
        gc.freeze()  # nothing to look for at the end, when Python would look through everything twice more


def run_command() -> None:
    """Run the command that the arguments of this process name. Raises SystemExit with its exit code."""
    if sys.platform == "win32":
        sys.exit("Error: asynsched runs on Linux and macOS; on Windows, use it in WSL 2.")
    # What a command imports is no garbage: to look for some again and again would take a tenth of its time.
    gc.set_threshold(*_COLLECTION_IN_COMMANDS)
    from asynsched.cli.app import build_app

    build_app()(prog_name="asynsched")


def live_on() -> None:
    """Make this process one that lives for longer than a command does: it collects garbage and ends as usual."""
    gc.set_threshold(*_USUAL_COLLECTION)


def _end_at_once(status: int) -> None:
    """End this process without taking apart all that it has imported: a twentieth of a command's time.

    A command closes by itself what it has opened.
    """
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as exc:
        _say_unwritten(exc)
    os._exit(status)


def _say_unwritten(exc: OSError) -> NoReturn:
    """End, and say why what this command had to say is not written; not to a pipe that nobody reads any more."""
    if exc.errno != errno.EPIPE:
        os.write(2, f"Error: The output cannot be written: {exc.strerror}\n".encode())
    os._exit(1)
