"""The command line as a whole: which module has which command, imported only when that command is given."""

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from asynsched._version import __version__
from asynsched.cli.command import new_app

GROUPS = {
    # "up": "asynsched.cli.up",
    # "dags": "asynsched.cli.dags",
    # "runs": "asynsched.cli.runs",
    # "tasks": "asynsched.cli.tasks",
    # "pools": "asynsched.cli.pools",
    # "variables": "asynsched.cli.variables",
    # "connections": "asynsched.cli.connections",
    # "db": "asynsched.cli.db",
    "config": "asynsched.cli.config",
    # "check": "asynsched.cli.check",
    "version": "asynsched.cli.version",
}
"""Modules by the first word of their commands. Each has an `app`."""

SINGLE = frozenset({"up", "check", "version"})
"""Words that are commands themselves, not groups."""


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Return the app for these arguments: the group that the first one names, or all of them when it names none."""
    app = new_app("asynsched", "A scheduler for DAGs of Python tasks, of the Apache Airflow family.")
    app.callback()(_root)
    named = arguments[0] if arguments else ""
    for name, module in GROUPS.items():
        if named == name or named not in GROUPS:
            group = import_module(module).app
            app.add_typer(group, name=None if name in SINGLE else name)
    return app


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer's callback protocol
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
