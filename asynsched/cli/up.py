"""`asynsched up`: run a scheduler until it is told to stop, is idle, or has done enough."""

from typing import Any

import click

from asynsched.cli.command import configure, database_option, errors_in_one_line, home_option


@click.command("up")
@click.argument("dags_folder", metavar="[DIR]", required=False)
@home_option
@database_option
@click.option("--executor", metavar="NAME", help="local, sequential, or package.module:Class.")
@click.option("--parallelism", type=click.IntRange(min=1), metavar="N", help="Tasks at once.")
@click.option("--parse-processes", type=click.IntRange(min=1), metavar="N", help="Parses at once.")
@click.option(
    "--until-idle",
    is_flag=True,
    help="End when every file is parsed and no run is active, and say which files have errors and how many runs have"
    " failed; with code 1 if runs are left that cannot go on.",
)
@click.option("--num-runs", type=click.IntRange(min=1), metavar="N", help="End when so many runs have ended.")
@click.option("--for", "seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="End after this time.")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="For people or programs.")
def up(*, until_idle: bool, num_runs: int | None, seconds: float | None, **flags: Any) -> None:
    """Run a scheduler: watch a folder of DAG files, create the runs that are due, run their tasks.

    Ctrl-C or SIGTERM stops it gently: what runs may finish within the setting shutdown_grace, and then has
    lease.kill_time to end itself. A second one kills what runs at once. What was interrupted is begun anew by the next
    start. Neither leaves a process behind. Exit code 0 after the first, 1 after the second.
    """
    with errors_in_one_line():
        from asynsched.cli.serving import StopRules, serve_until_stopped  # the whole scheduler: not for --help

        for group, name in (("parse", "processes"), ("log", "format")):
            flags[f"{group}.{name}"] = flags.pop(f"{group}_{name}")
        configuration = configure(**flags)
        serve_until_stopped(configuration.settings, StopRules(until_idle, num_runs, seconds))
