"""The frame of a process that answers one question: see `queries/own_process.py` for the side that asks."""

import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from asynsched.errors import AsynschedError, only_cause
from sandbox.confine import close_memory

Q = TypeVar("Q", bound=Struct)
REFUSED = 3
"""Exit code of a process that cannot answer; standard output then has a sentence."""
MOST_MEMORY_BYTES = 2 * 1024**3
"""Data of the process, and of each parse that it starts."""
LONGEST_SECONDS = 60.0
"""How long the work may take."""
ALONE_SECONDS = 15.0
"""How long after that the process ends itself, if the one that has asked is gone."""


def answer_once(kind: type[Q], answer: Callable[[Q], Struct]) -> None:
    """Read a question of this type as JSON from standard input, write its answer as JSON, and exit.

    A line before the question has the variables of the environment that other processes must not see.
    """
    close_memory()
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    # As the one that has asked would stop it.
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, LONGEST_SECONDS + ALONE_SECONDS)
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # logs must not come between
    os.environ.update(msgspec.json.decode(sys.stdin.buffer.readline(), type=dict[str, str]))
    code, content = _answered(msgspec.json.decode(sys.stdin.buffer.read(), type=kind), answer)
    with os.fdopen(answers, "wb") as output:
        output.write(content)
    sys.exit(code)


def _answered(question: Q, answer: Callable[[Q], Struct]) -> tuple[int, bytes]:
    """Return the exit code and the content of standard output."""
    try:
        return 0, msgspec.json.encode(answer(question))
    except (AsynschedError, BaseExceptionGroup) as exc:
        cause = only_cause(exc)
        if not isinstance(cause, AsynschedError):
            raise
        return REFUSED, str(cause).encode()
