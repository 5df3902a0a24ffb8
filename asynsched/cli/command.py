"""How a command is made: options of all commands, how an answer is shown, and errors in one line with exit code 1."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from asynsched.cli import INTERRUPTED, begin
from asynsched.cli.configuration import Configuration, load_configuration, with_served_folder
from asynsched.cli.output import FORMS, Answer, Output, note, show
from asynsched.cli.session import Session
from asynsched.errors import AsynschedError, LogStoreUnavailable, NotFound, SecretsUnreadable, SettingsError

if TYPE_CHECKING:
    from asynsched.cli.completion import Kind


FILES = ("file",)
"""Arguments that name a file, whose name may be any bytes."""
FORM_USES = {Output.DOT: "dot is for Graphviz", Output.MARKDOWN: "markdown is for pull requests"}
"""The uses of the forms that only some commands have."""
LONGEST_SECONDS = 10 * 366 * 24 * 3600.0
"""The longest time that an option takes."""
_UNDECODED = re.compile("[\ud800-\udfff]")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

home_option = click.option("--home", metavar="DIR", help="Folder of the scheduler's state.")
database_option = click.option("--database", metavar="URL", help="sqlite:///PATH or postgresql://USER@HOST/NAME.")


class Amount(click.FloatRange):
    """A number from `min` to `max`, and not `nan`, which is in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def completes(kind: "Kind") -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return how a shell completes the name of a DAG, or of a run or task, given the arguments before it."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from asynsched.cli.completion import names_of

        return names_of(kind, context, incomplete)

    return complete


dag_argument = click.argument("dag_id", metavar="DAG", shell_complete=completes("dag"))
_run_argument = click.argument("run_id", metavar="RUN", shell_complete=completes("run"))
_task_argument = click.argument("task_id", metavar="TASK", shell_complete=completes("task"))
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
wide_option = click.option(
    "--wide", is_flag=True, help="Tables with more columns, not fitted to the terminal, and instants in full, in UTC."
)
index_option = click.option(
    "--map-index", type=click.IntRange(min=-1), default=-1, help="Which instance of a mapped task; -1 for other tasks."
)
try_option = click.option(
    "--try", "try_number", type=click.IntRange(min=1), metavar="N", help="Which try; by default the newest."
)


def run_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the arguments DAG and RUN."""
    return dag_argument(_run_argument(function))


def task_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the arguments DAG, RUN and TASK."""
    return run_arguments(_task_argument(function))


def command(
    name: str, *, tables: bool = False, negative_numbers: bool = False, forms: Sequence[str] = FORMS
) -> Callable[[Callable[..., Answer | None]], click.Command]:
    """Make a function `(session, …options) -> Answer | None` a command with --home, --database and --output.

    The answer is shown in the form that --output names. A function that shows its answer itself has a parameter
    `output` for that form.

    Args:
        tables: Whether the answer is shown as tables: then the command has --wide, too.
        negative_numbers: Whether an argument may be a negative number, which is then not taken for an option.
    """

    def make(function: Callable[..., Answer | None]) -> click.Command:
        @click.command(name, context_settings={"ignore_unknown_options": negative_numbers})
        @wraps(function)
        def run(*, home: str | None, database: str | None, output: str, wide: bool = False, **options: Any) -> None:
            form = Output(output)
            _refuse_undecodable(options)
            if "output" in function.__annotations__:
                options["output"] = form
            with errors_in_one_line():
                configuration = with_served_folder(configure(home=home, database=database))
                with (
                    settings_located(configuration),
                    closing(Session(configuration)) as session,
                    dags_explained(session),
                ):
                    answer = function(session, **options)
                    if answer is not None:
                        show(answer, form, wide=wide)
                # Here the error of a closed pipe can still be caught.
                sys.stdout.flush()

        uses = [use for form, use in FORM_USES.items() if form in forms]
        help_text = f"Form of the answer{''.join(f'; {use}' for use in uses)}."
        output_option = click.option(
            "-o", "--output", type=click.Choice(forms), default=FORMS[0], show_default=True, help=help_text
        )
        for option in (home_option, database_option, *([wide_option] if tables else []), output_option):
            run = option(run)
        return run

    return make


def _refuse_undecodable(options: dict[str, Any]) -> None:
    """Raise UsageError for an argument that is not UTF-8: it may name a file, but nothing that is stored."""
    for name, value in options.items():
        texts = value if isinstance(value, tuple) else (value,)
        for text in texts:
            if isinstance(text, str) and name not in FILES and not text.isascii() and _UNDECODED.search(text):
                raise click.UsageError(f"This is not UTF-8: {text!r}")


def configure(**flags: Any) -> Configuration:
    """Return the configuration of this process. Raises SettingsError."""
    return load_configuration(flags, os.environ, Path.cwd())


@contextmanager
def settings_located(configuration: Configuration) -> Iterator[None]:
    """Add the place where a setting was set to an error that shows only when the setting is used."""
    try:
        yield
    except (SettingsError, SecretsUnreadable, LogStoreUnavailable) as exc:
        exc.args = (configuration.located(str(exc)),)
        raise


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn an error that the user can mend into one line on standard error and exit code 1; Ctrl-C has its own code."""
    begin()
    try:
        yield
    except AsynschedError as exc:
        fail(str(exc))
    except KeyboardInterrupt:
        fail("Interrupted.", INTERRUPTED)
    except click.Abort as exc:
        # click raises this for Ctrl-C at a question, for the answer no, and for the end of the input.
        if not isinstance(exc.__context__, KeyboardInterrupt):
            raise
        click.echo(err=True)  # the question has not ended its line
        fail("Interrupted.", INTERRUPTED)
    except BrokenPipeError:
        # The reader of the answer is gone. Python would print another error when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(1) from None
    except OSError as exc:
        if exc.filename is None:
            raise
        fail(f"{exc.filename}: {exc.strerror}.")


@contextmanager
def dags_explained(session: Session) -> Iterator[None]:
    """Add the probable cause to an error about an unknown DAG."""
    try:
        yield
    except NotFound as exc:
        if exc.kind != "DAG":
            raise
        from asynsched.cli.lookup import why_unknown
        from asynsched.queries.serving import long_parses

        more = session.read(why_unknown, exc.name, tells_errors=session.is_passing)
        more = " ".join(filter(None, (more, *(parse.sentence for parse in long_parses(session.home)))))
        if not more and not exc.near:
            more = f"Looked in {session.place}."
        if not session.settings.dags_path.is_dir():
            more = f"{more} There is no DAG folder {session.settings.dags_path}.".lstrip()
        raise AsynschedError(f"{exc} {more}".rstrip()) from exc


def confirm(question: str, about: Iterable[str] = ()) -> None:
    """Ask the user whether to go on. Ends the command if there is no terminal.

    Raises click.Abort when the answer is no.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        fail(f"{question} There is no terminal to ask on, so nothing is done: give --yes to agree.")
    for line in about:
        note(line)
    click.confirm(question, err=True, abort=True)


def fail(message: str, code: int = 1) -> NoReturn:
    """Print why a command failed, on standard error, and end with that exit code."""
    note(f"Error: {message}")
    raise click.exceptions.Exit(code)


INSTANT_FORMS = "ISO 8601, e.g. 2026-01-31T12:00:00Z; without a zone, in the setting default_timezone."


def read_instant(text: str, default_timezone: str, option: str) -> datetime:
    """Return an instant in UTC.

    Raises:
        click.BadParameter: The text is not an instant; the message names the option.
    """
    try:
        instant = datetime.fromisoformat(text.strip())
        if instant.tzinfo is None:
            from zoneinfo import ZoneInfo  # few commands are given an instant

            instant = instant.replace(tzinfo=ZoneInfo(default_timezone))
        return instant.astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise click.BadParameter(f"{text!r} is not an instant: write {INSTANT_FORMS}", param_hint=option) from exc


def fail_on_option(code: int = 1, default: str = "", **kinds: str) -> Decorator:
    """Return the option `fail_on`, a set of kinds of problems; the arguments explain each kind in its help.

    Args:
        code: The exit code where there is such a problem, which `fail_if_wanted` is given too.
        default: The kinds where a user names none, separated by commas.
    """

    def read(_: click.Context, __: click.Parameter, text: str | None) -> frozenset[str]:
        given = [] if not text or text == NOTHING else [kind.strip() for kind in text.split(",")]
        if unknown := [kind for kind in given if kind not in kinds]:
            values = f"{', '.join(kinds)}, or {','.join(list(kinds)[:2])}"
            raise click.BadParameter(f"{unknown[0]!r} is not one of its values: write {values}")
        return frozenset(given)

    explained = " ".join(f"`{kind}`: {explanation}." for kind, explanation in kinds.items())
    help_text = f"End with code {code} on these problems, separated by commas. {explained}"
    if default:
        help_text += f" By default `{default}`; `{NOTHING}`: on none."
    return click.option("--fail-on", callback=read, metavar="LIST", default=default or None, help=help_text)


NOTHING = "nothing"
"""The value of --fail-on for no kind of problem."""


def fail_if_wanted(fail_on: frozenset[str], code: int = 1, **told: str) -> None:
    """End with a code if something that --fail-on names has gone wrong.

    Args:
        told: For each kind of problem what has gone wrong, in words; empty for nothing.
    """
    wrong = {kind: text for kind, text in told.items() if kind in fail_on and text}
    if wrong:
        named = ",".join(kind for kind in told if kind in fail_on)
        fail(f"{', '.join(wrong.values())} (--fail-on {named}).", code)
