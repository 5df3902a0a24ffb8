"""How a command is registered: the options that all have, its answer shown, its errors as one line and exit code 1."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from asynsched.cli.configuration import Configuration, load_configuration, with_served_folder
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


def new_app(help_text: str = "") -> typer.Typer:
    """Return an app for commands."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # rich costs more than the rest of the command line together
        pretty_exceptions_enable=False,
    )


def command(app: typer.Typer, name: str) -> Callable[[F], F]:
    """Register a function `(session, …options) -> Answer | None` as a command with --home, --database and --output.

    The answer is shown in the form that --output asks for. A function with a parameter `output` is told the form.
    """

    def register(function: F) -> F:
        declared = signature(function).parameters

        @wraps(function)
        def run(*, home: str | None, database: str | None, output: StrEnum, **options: Any) -> None:
            if "output" in declared:
                options["output"] = output
            with errors_in_one_line():
                configuration = with_served_folder(configure(home=home, database=database))
                with Session(configuration) as session:
                    answer = function(session, **options)
                    if answer is not None:
                        show(answer, Output(output))

        parameters = _parameters(declared)
        run.__signature__ = signature(function).replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        app.command(name)(run)
        return function

    return register


def _parameters(declared: Mapping[str, Parameter]) -> list[Parameter]:
    """Return a command's own parameters, then the common ones; its own form of --output goes before the common one."""
    parameters = dict(declared)
    del parameters["session"]
    for name, (annotation, default) in _COMMON.items():
        if name not in parameters or parameters[name].annotation is Output:
            parameters.pop(name, None)
            parameters[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    return [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters.values()]


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


def fail(message: str) -> NoReturn:
    """Say why a command failed, on standard error, and end with exit code 1."""
    note(f"Error: {message}")
    raise typer.Exit(1)
