"""The command line as a whole: which module has which command, imported only when that command is given."""

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NamedTuple

import typer

from asynsched._version import __version__
from asynsched.cli.command import new_app


class Group(NamedTuple):
    """Commands with the same first word: a help text, and the modules that have them, each with an `app`."""

    help: str
    modules: tuple[str, ...]


GROUPS = {
    "dags": Group(
        "See and steer DAGs.",
        (
            "asynsched.cli.dags",
            "asynsched.cli.dag_control",
            "asynsched.cli.dag_trigger",
            "asynsched.cli.dag_next",
            "asynsched.cli.dag_test",
        ),
    ),
    "runs": Group("See DAG runs.", ("asynsched.cli.runs",)),
    "tasks": Group(
        "See task instances, their logs and their XComs.", ("asynsched.cli.tasks", "asynsched.cli.task_logs")
    ),
    "pools": Group("See and change pools.", ("asynsched.cli.pools",)),
    "variables": Group("See and change variables.", ("asynsched.cli.variables",)),
    "connections": Group("See and change connections.", ("asynsched.cli.connections",)),
    "db": Group("Care for the database.", ("asynsched.cli.db",)),
    "config": Group("See the settings.", ("asynsched.cli.config",)),
}
SINGLE = {
    "up": "asynsched.cli.up",
    "check": "asynsched.cli.check",
    "version": "asynsched.cli.version",
}
"""Commands of one word, and their modules."""


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Return the app for these arguments: the commands that the first one names, or all when it names none."""
    app = new_app("A scheduler for DAGs of Python tasks, of the Apache Airflow family.")
    app.callback()(_root)
    named = arguments[0] if arguments else ""
    everything = named not in SINGLE and named not in GROUPS
    for name, module in SINGLE.items():
        if everything or name == named:
            app.add_typer(import_module(module).app)
    for name, group in GROUPS.items():
        if everything or name == named:
            app.add_typer(_load(group), name=name)
    return app


def _load(group: Group) -> typer.Typer:
    app = new_app(group.help)
    for module in group.modules:
        app.add_typer(import_module(module).app)  # without a name: its commands become the group's
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Hold the options of the program itself; typer needs a function for them."""
