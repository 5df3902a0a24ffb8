"""`asynsched …`: the scheduler's command line."""

import gc
import os
import sys

_USUAL_COLLECTION = gc.get_threshold()
_COLLECTION_IN_COMMANDS = (200_000, *_USUAL_COLLECTION[1:])


def main() -> None:
    """Be `asynsched`: run the command that the arguments of this process name, and end."""
    try:
        run_command()
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

    A command closes by itself what it has opened. Where its output cannot be written, Python itself is to say so.
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # as it is where a shell has closed it
                stream.flush()
    except (OSError, ValueError):
        return
    os._exit(status)
