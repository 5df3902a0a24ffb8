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
    "webserver": "web",
    "api-server": "web",
    "triggerer": "up",
    "celery": "worker celery",
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
    "tasks render": "tasks rendered",
    "pools get": "pools list",
    "config list": "config show",
    "config get-value": "config show",
    "db init": "db upgrade",
    "db migrate": "db upgrade",
    "db check-migrations": "db check",
    "users add-role": "users set-role",
    "users remove-role": "users set-role",
    "users reset-password": "users set-password",
}


WITHOUT_COUNTERPART = {
    "kubernetes": "the setting executor = kubernetes runs tasks in pods, and deletes pods that have ended",
    "edge": "`asynsched worker` runs tasks on other machines, for the executors celery, dask, slurm and kubernetes",
    "roles": "`asynsched users set-role` gives roles, and a DAG's `access_control` gives rights to them",
    "sync-perm": "a DAG's `access_control` counts as soon as its file is parsed",
    "tasks test": "`asynsched dags test DAG` runs a whole DAG in the foreground, and stores nothing",
}
"""Commands of Airflow that asynsched does not have, and advice for each."""


GROUP_HELP = {
    "worker": "Run tries on this machine for schedulers elsewhere.",
    "dags": "Show and control DAGs.",
    "runs": "Show and control DAG runs.",
    "tasks": "Show and control task instances; show their logs and XComs.",
    "assets": "Show assets and their events, and report updates of assets.",
    "backfill": "Run a DAG for a span of the past.",
    "deadlines": "Show by when runs should have succeeded.",
    "schedulers": "Show the schedulers of the database.",
    "audit": "Show who did what.",
    "pools": "Show and change pools.",
    "plugins": "Show plugins and policies.",
    "providers": "Install Airflow's provider packages, without Airflow.",
    "variables": "Show and change variables.",
    "connections": "Show and change connections.",
    "users": "Show and change the users of the page and the REST APIs, and their sessions.",
    "tokens": "Show and change the tokens with which programs use the REST APIs.",
    "db": "Maintain the database.",
    "config": "Show the settings.",
}


def _of_group(module: str, names: str) -> dict[str, str]:
    """Return the modules of the commands of a group: this one, unless a name has another one before a colon."""
    parts = (name.rpartition(":") for name in names.split())
    return {name: other or module for other, _, name in parts}


COMMANDS: Mapping[str, str | Mapping[str, str]] = {
    "up": "up",
    "web": "web",
    "worker": _of_group("worker", "run celery"),
    "check": "check",
    "python": "python",
    "simulate": "simulate",
    "preview": "preview",
    "migrate": "migrate",
    "dags": _of_group(
        "dags", "list show errors pause unpause reparse trigger next versions source tags delete dag_test:test"
    ),
    "runs": _of_group("runs", "list show task_logs:logs clear mark cancel note delete"),
    "tasks": _of_group(
        "runs",
        "list hitl:awaiting hitl:answer task_logs:logs xcoms:xcom xcoms:set-xcom xcoms:delete-xcom rendered"
        " links clear mark note run",
    ),
    "assets": _of_group("assets", "list show events event materialize queued unqueue"),
    "backfill": _of_group("backfill", "create list show pause unpause cancel"),
    "deadlines": _of_group("deadlines", "list"),
    "schedulers": _of_group("schedulers", "list"),
    "audit": _of_group("audit", "list"),
    "pools": _of_group("pools", "list set delete"),
    "plugins": _of_group("plugins", "list"),
    "providers": _of_group("providers", "list install"),
    "variables": _of_group("secrets", "list get set delete import export"),
    "connections": _of_group("secrets", "list get add change delete import export"),
    "users": _of_group("users", "create list set-role set-password disable delete sessions end-session link"),
    "tokens": _of_group("users", "create list delete"),
    "db": _of_group("db", "upgrade check clean rotate-key"),
    "why": "why",
    "events": "events",
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
            if (why := WITHOUT_COUNTERPART.get(f"{group}{args[0]}")) is not None:
                raise click.UsageError(f"Airflow's `{group}{args[0]}` has no counterpart: {why}.", ctx)
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
