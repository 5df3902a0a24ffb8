"""`--fail-on`: which of the things that went wrong make a command end with exit code 1."""

from collections.abc import Callable
from typing import Any

import click

from asynsched.cli.command import Decorator, fail

ERRORS = "errors"
FAILED = "failed"
KINDS = (ERRORS, FAILED)


def _read(_: click.Context, __: click.Parameter, text: str | None) -> frozenset[str]:
    given = [] if text is None else [kind.strip() for kind in text.split(",")]
    if unknown := [kind for kind in given if kind not in KINDS]:
        values = f"{ERRORS}, {FAILED}, or {ERRORS},{FAILED}"
        raise click.BadParameter(f"{unknown[0]!r} is none of its values: write {values}")
    return frozenset(given)


def fail_on_option(errors: str, failed: str) -> Decorator:
    """Return the option `fail_on`, a set of KINDS, with a help that says what each of them stands for."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        return click.option(
            "--fail-on",
            callback=_read,
            metavar="LIST",
            help=f"End with code 1 for what LIST names, separated by commas. `{ERRORS}`: {errors}. `{FAILED}`:"
            f" {failed}.",
        )(function)

    return add


def fail_if_wanted(fail_on: frozenset[str], *, n_errors: str, n_failed: str) -> None:
    """End with code 1 where something has gone wrong that --fail-on names.

    Args:
        fail_on: What it names.
        n_errors: How many errors there are, in words; empty for none.
        n_failed: How many runs have failed, in words; empty for none.
    """
    told = [text for kind, text in ((ERRORS, n_errors), (FAILED, n_failed)) if kind in fail_on and text]
    if told:
        fail(f"{', '.join(told)} (--fail-on {','.join(kind for kind in KINDS if kind in fail_on)}).")
