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
    "variables": "See and change variables.",
    "connections": "See and change connections.",
    "db": "Maintain the database.",
    "config": "See the settings.",
}
COMMANDS: Mapping[str, str | Mapping[str, str]] = {
    "up": "up:up",
    "check": "check:check",
    "simulate": "simulate:simulate",
    "dags": {
        "list": "dags:show_dags",
        "show": "dags:show_dag",
        "errors": "dags:show_errors",
        "pause": "dags:pause_dag",
        "unpause": "dags:unpause_dag",
        "reparse": "dags:reparse_dag",
        "trigger": "dag_runs:trigger_dag",
        "next": "dag_runs:show_next_runs",
        "test": "dag_test:run_in_foreground",
    },
    "runs": {
        "list": "runs:show_runs",
        "show": "runs:show_run",
        "logs": "task_logs:show_run_logs",
        "clear": "runs:clear_run",
        "mark": "runs:mark_run",
        "cancel": "runs:cancel_run",
    },
    "tasks": {
        "list": "tasks:show_tasks",
        "logs": "task_logs:show_logs",
        "xcom": "tasks:show_xcoms",
        "clear": "tasks:clear_tasks",
        "mark": "tasks:mark_tasks",
        "run": "tasks:force_task",
    },
    "assets": {
        "list": "assets:show_assets",
        "show": "assets:show_asset",
        "events": "assets:show_events",
        "event": "assets:add_event",
        "materialize": "assets:materialize",
    },
    "backfill": {
        "create": "backfill:create",
        "list": "backfill:show_backfills",
        "show": "backfill:show_backfill",
        "pause": "backfill:pause",
        "unpause": "backfill:unpause",
        "cancel": "backfill:cancel",
    },
    "schedulers": {"list": "schedulers:show_schedulers"},
    "pools": {"list": "pools:show_pools", "set": "pools:set_pool", "delete": "pools:delete_pool"},
    "variables": {
        "list": "variables:show_variables",
        "get": "variables:show_variable",
        "set": "variables:set_variable",
        "delete": "variables:delete_variable",
        "import": "variables:import_variables",
        "export": "variables:export_variables",
    },
    "connections": {
        "list": "connections:show_connections",
        "get": "connections:show_connection",
        "add": "connections:add_connection",
        "delete": "connections:delete_connection",
        "import": "connections:import_connections",
        "export": "connections:export_connections",
    },
    "db": {
        "upgrade": "db:upgrade_database",
        "check": "db:check_database",
        "clean": "db:clean_database",
        "rotate-key": "db:rotate_key",
    },
    "why": "why:explain",
    "config": {"show": "config:show_config"},
    "version": "config:show_version",
}
"""Every command: its module in this package and its name there, or the commands of a group."""


class LazyGroup(click.Group):
    """A group that imports a command when it is used.

    Args:
        members: The part of COMMANDS that is this group.
    """

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
        module, _, name = where.partition(":")
        command: Command = getattr(import_module(f"asynsched.cli.{module}"), name)
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
