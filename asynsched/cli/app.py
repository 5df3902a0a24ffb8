"""The command line as a whole: where each command is. A command is imported only when it is used."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click
from click import Command, Context

from asynsched._version import __version__

COMMANDS_HERE = {
    "scheduler": "up",
    "standalone": "up",
    "dag-processor": "up",
    "triggerer": "up",
    "jobs": "check --live",
    "info": "check",
    "dags list-runs": "runs list",
    "dags list-import-errors": "dags errors",
    "dags list-jobs": "schedulers list",
    "dags details": "dags show",
    "dags state": "runs show",
    "dags next-execution": "dags next",
    "dags backfill": "backfill create",
    "dags reserialize": "dags reparse",
    "tasks states-for-dag-run": "tasks list",
    "tasks state": "tasks list",
    "tasks failed-deps": "why",
    "tasks test": "dags test",
    "pools get": "pools list",
    "config list": "config show",
    "config get-value": "config show",
    "db init": "db upgrade",
    "db migrate": "db upgrade",
    "db check-migrations": "db check",
}


GROUP_HELP = {
    "dags": "See and steer DAGs.",
    "runs": "See and steer DAG runs.",
    "tasks": "See and steer task instances, see their logs and XComs.",
    "assets": "See assets and their events, and report updates of assets.",
    "backfill": "Run a DAG for a span of the past.",
    "schedulers": "See the schedulers of the database.",
    "pools": "See and change pools.",
    "providers": "Install Airflow's provider packages, without Airflow.",
    "variables": "See and change variables.",
    "connections": "See and change connections.",
    "db": "Maintain the database.",
    "config": "See the settings.",
}


def _of_group(module: str, names: str) -> dict[str, str]:
    """Return the modules of the commands of a group: this one, unless a name has another one before a colon."""
    parts = (name.rpartition(":") for name in names.split())
    return {name: other or module for other, _, name in parts}


COMMANDS: Mapping[str, str | Mapping[str, str]] = {
    "up": "up",
    "check": "check",
    "simulate": "simulate",
    "dags": _of_group("dags", "list show errors pause unpause reparse trigger next dag_test:test"),
    "runs": _of_group("runs", "list show task_logs:logs clear mark cancel"),
    "tasks": _of_group("runs", "list task_logs:logs xcom clear mark run"),
    "assets": _of_group("assets", "list show events event materialize"),
    "backfill": _of_group("backfill", "create list show pause unpause cancel"),
    "schedulers": _of_group("schedulers", "list"),
    "pools": _of_group("pools", "list set delete"),
    "providers": _of_group("providers", "list install"),
    "variables": _of_group("secrets", "list get set delete import export"),
    "connections": _of_group("secrets", "list get add delete import export"),
    "db": _of_group("db", "upgrade check clean rotate-key"),
    "why": "why",
    "config": _of_group("check", "show"),
    "version": "check",
}
"""The module of each command, or of each command of a group, in this package. `dags list` is its `dags_list`."""


class LazyGroup(click.Group):
    """A group that imports a command when it is used. `members` is the part of COMMANDS that is this group."""

    def __init__(self, members: Mapping[str, str | Mapping[str, str]], **attributes: Any) -> None:
        super().__init__(no_args_is_help=True, **attributes)
        self.members = members

    def list_commands(self, ctx: Context) -> list[str]:
        return list(self.members)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        where = self.members.get(cmd_name)
        if where is None:
            return None
        if not isinstance(where, str):
            return LazyGroup(where, name=cmd_name, help=GROUP_HELP[cmd_name])
        path = cmd_name if self.name == "asynsched" else f"{self.name}_{cmd_name}"
        command: Command = getattr(import_module(f"asynsched.cli.{where}"), path.replace("-", "_"))
        return command

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        if args[0] not in self.members and not args[0].startswith("-") and not ctx.resilient_parsing:
            group = "" if ctx.parent is None else f"{ctx.info_name} "
            if (here := COMMANDS_HERE.get(f"{group}{args[0]}")) is not None:
                raise click.UsageError(f"Airflow's `{group}{args[0]}` is `asynsched {here}` here.", ctx)
            raise click.NoSuchCommand(args[0], possibilities=self.members, ctx=ctx)
        return super().resolve_command(ctx, args)


def build_app() -> click.Group:
    """Return the whole command line."""
    app = LazyGroup(
        COMMANDS,
        name="asynsched",
        help="A scheduler for DAGs of Python tasks, of the Apache Airflow family.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    return click.version_option(__version__, message="%(version)s")(app)
