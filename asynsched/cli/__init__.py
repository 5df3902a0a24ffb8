"""`asynsched …`: the scheduler's command line.

What this module imports is there already when Python has started: before `main` runs, Ctrl-C would show a traceback.
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
"""Has what a shell asks for, of whom completion is part: click's name for it."""
OBJECTS_A_SEARCH = 10_000
"""How many objects more there are before a process that lives on looks for garbage among the young ones. By Python's
number (700, or 2,000), it does so many times for a batch of tasks, and so looks through all the old ones more often."""
_lives_on = False
"""Whether this process is more than a command, which ends in a moment."""


def main() -> None:
    """Be `asynsched`: run the command that the arguments of this process name, and end."""
    _end_quietly_when_interrupted()
    # A shell may have closed them: then nobody wants to read that.
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
        gc.freeze()  # nothing to look for at the end, when Python would look through everything twice more


def run_command() -> None:
    """Run the command that the arguments of this process name. Raises SystemExit with its exit code."""
    if sys.platform == "win32":
        sys.exit("Error: asynsched runs on Linux and macOS; on Windows, use it in WSL 2.")
    # What a command imports is no garbage: to look for some again and again would take a tenth of its time.
    gc.set_threshold(200_000, *_USUAL_COLLECTION[1:])
    if COMPLETION_VARIABLE in os.environ:
        import asynsched.cli.completion  # noqa: F401 - says how bash is to be completed
    from asynsched.cli.app import build_app

    build_app()(prog_name="asynsched")


def _end_quietly_when_interrupted() -> None:
    """Have Ctrl-C end this process at once until `begin`: nothing is to be undone yet, and much to be imported."""
    try:
        import signal
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _be_interrupted)


def begin() -> None:
    """Let the command itself begin: from here on Ctrl-C is a KeyboardInterrupt, after which it tidies up."""
    import signal

    if signal.getsignal(signal.SIGINT) is _be_interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _be_interrupted(_number: int, _frame: object) -> "NoReturn":
    os._exit(INTERRUPTED)


def live_on() -> None:
    """Make this process one that lives for longer than a command does: it ends as usual, and collects garbage.

    Not among what it has imported, which stays: to look through that stops the event loop for a tenth of a second, and
    does so when there is most to do.
    """
    global _lives_on
    _lives_on = True
    gc.freeze()
    gc.set_threshold(OBJECTS_A_SEARCH, *_USUAL_COLLECTION[1:])


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


def _end_at_once_when_interrupted(status: int) -> None:
    """Let Ctrl-C end this process quietly: everything is done, and Python would print a traceback while it ends."""
    import signal

    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _be_interrupted):
        signal.signal(signal.SIGINT, lambda *_: os._exit(status))


def _say_unwritten(exc: OSError) -> "NoReturn":
    """End, and say why what this command had to say is not written; not to a pipe that nobody reads any more."""
    if exc.errno != errno.EPIPE:
        os.write(2, f"Error: The output cannot be written: {exc.strerror}\n".encode())
    os._exit(1)
