"""The command that a message tells its reader to type."""

import shlex
from collections.abc import Sequence

from asynsched.cli.rendering import printable
from asynsched.store.engines.urls import without_secrets


def command_line(*words: str, options: Sequence[str] = ()) -> str:
    """Return a command of asynsched as a shell takes it."""
    return printable(shlex.join(("asynsched", *words, *options)))


def of_same_place(home: str | None, database: str | None) -> tuple[str, ...]:
    """Return the options by which another command works on what --home and --database named; without passwords."""
    options: list[str] = []
    if home is not None:
        options += ["--home", home]
    if database is not None:
        options += ["--database", without_secrets(database)]
    return tuple(options)
