"""How a command is registered: the options that all have, its answer shown, its errors as one line and exit code 1."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from asynsched.cli.configuration import Configuration, load_configuration
from asynsched.cli.rendering import Answer, Output, note, show
from asynsched.cli.session import Session
from asynsched.errors import AsynschedError

F = TypeVar("F", bound=Callable[..., Answer | None])

HomeOption = Annotated[
    str | None, typer.Option("--home", metavar="DIR", help="Folder of the scheduler's state.", show_default=False)
]
DatabaseOption = Annotated[
    str | None,
    typer.Option("--database", metavar="URL", help="sqlite:///PATH or postgresql://…", show_default=False),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How the answer is written.")]

_COMMON = {"home": (HomeOption, None), "database": (DatabaseOption, None), "output": (OutputOption, Output.TABLE)}


def new_app(name: str, help_text: str) -> typer.Typer:
    """Return an app for a group of commands."""
    return typer.Typer(
        name=name,
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # rich costs more than the rest of the command line together
        pretty_exceptions_enable=False,
    )


def command(app: typer.Typer, name: str) -> Callable[[F], F]:
    """Register a function `(session, …options) -> Answer | None` as a command with --home, --database and --output."""

    def register(function: F) -> F:
        own = [p for p in signature(function).parameters.values() if p.name != "session"]
        common = [
            Parameter(key, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for key, (annotation, default) in _COMMON.items()
        ]

        @wraps(function)
        def run(*, home: str | None, database: str | None, output: Output, **options: Any) -> None:
            with errors_in_one_line():
                with Session(configure(home=home, database=database)) as session:
                    answer = function(session, **options)
                    if answer is not None:
                        show(answer, output)

        parameters = [*(p.replace(kind=Parameter.KEYWORD_ONLY) for p in own), *common]
        run.__signature__ = signature(function).replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        app.command(name)(run)
        return function

    return register


def configure(**flags: Any) -> Configuration:
    """Return the configuration of this process, and say what is odd about it on standard error."""
    configuration = load_configuration(flags, os.environ, Path.cwd())
    for warning in configuration.warnings:
        note(f"Warning: {warning}")
    return configuration


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn an error that is the user's to mend into one line on standard error and exit code 1."""
    try:
        yield
    except AsynschedError as exc:
        fail(str(exc))
    except KeyboardInterrupt:
        fail("Interrupted.")
    except BrokenPipeError:
        # Whoever read the answer has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None


def fail(message: str) -> None:
    """Say why a command failed, on standard error, and end with exit code 1."""
    note(f"Error: {message}")
    raise typer.Exit(1) from None
