"""`asynsched …`: the scheduler's command line.

This module imports only what Python has loaded at its start: before `main` runs, Ctrl-C would show a traceback.
"""

import errno
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C has ended."""
_USUAL_COLLECTION = gc.get_threshold()
COMPLETION_VARIABLE = "_ASYNSCHED_COMPLETE"
"""Set by a shell that asks for completions; click's name for it."""
OBJECTS_A_SEARCH = 10_000
"""New objects after which a process that lives on collects young garbage. With Python's number (700, or 2,000) that
happens many times for a batch of tasks, and so old objects are searched more often, too."""
_lives_on = False
"""Whether this process serves, instead of ending in a moment."""


def main() -> None:
    """Run the command that the arguments of this process name, and end the process."""
    _end_quietly_when_interrupted()
    # A shell may have closed them.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - open until the end
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - open until the end
    try:
        run_command()
    except OSError as exc:
        if _lives_on or exc.errno != errno.ENOSPC:
            raise
        _say_unwritten(exc)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        if _lives_on:
            _end_at_once_when_interrupted(end.code or 0)
            raise
        _end_at_once(end.code or 0)
    finally:
        gc.freeze()  # else Python would search everything twice more at its end


def run_command() -> None:
    """Run the command that the arguments of this process name. Raises SystemExit with its exit code."""
    if sys.platform == "win32":
        sys.exit("Error: asynsched runs on Linux and macOS; on Windows, use it in WSL 2.")
    # Modules are never garbage: searching them again and again would take a tenth of a command's time.
    gc.set_threshold(200_000, *_USUAL_COLLECTION[1:])
    if COMPLETION_VARIABLE in os.environ:
        import asynsched.cli.completion  # noqa: F401 - registers completion for bash
    from asynsched.cli.app import build_app

    build_app()(prog_name="asynsched")


def _end_quietly_when_interrupted() -> None:
    """Make Ctrl-C end this process at once until `begin`: there is nothing to undo yet, and much to import."""
    try:
        import signal
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _be_interrupted)


def begin() -> None:
    """Begin the command itself: from here on Ctrl-C is a KeyboardInterrupt, after which the command cleans up."""
    import signal

    if signal.getsignal(signal.SIGINT) is _be_interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _be_interrupted(_number: int, _frame: object) -> "NoReturn":
    os._exit(INTERRUPTED)


def live_on() -> None:
    """Make this process one that lives on: it ends as usual, and collects garbage.

    The collector leaves out imported modules: searching them would stop the event loop for a tenth of a second,
    when there is most to do.
    """
    global _lives_on
    _lives_on = True
    gc.freeze()
    gc.set_threshold(OBJECTS_A_SEARCH, *_USUAL_COLLECTION[1:])


def _end_at_once(status: int) -> None:
    """End this process without Python's cleanup, which takes a twentieth of a command's time.

    A command closes everything that it has opened.
    """
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as exc:
        _say_unwritten(exc)
    os._exit(status)


def _end_at_once_when_interrupted(status: int) -> None:
    """Make Ctrl-C end this process quietly: everything is done, and Python would print a traceback."""
    import signal

    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _be_interrupted):
        signal.signal(signal.SIGINT, lambda *_: os._exit(status))


def _say_unwritten(exc: OSError) -> "NoReturn":
    """End, and report why the output cannot be written, unless the reader of the pipe has gone."""
    if exc.errno != errno.EPIPE:
        os.write(2, f"Error: The output cannot be written: {exc.strerror}\n".encode())
    os._exit(1)
