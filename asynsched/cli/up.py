"""`asynsched up`: run a scheduler until it is told to stop, is idle, or has done enough."""

from typing import Any

import click

from asynsched.cli.command import (
    LONGEST_SECONDS,
    Amount,
    configure,
    database_option,
    errors_in_one_line,
    fail_on_option,
    home_option,
    settings_located,
)


@click.command("up")
@click.argument("dags_folder", metavar="[DIR]", required=False)
@home_option
@database_option
@click.option(
    "--executor",
    metavar="NAME",
    help="local, sequential, celery, dask, slurm, kubernetes, or package.module:Class; several, by commas.",
)
@click.option("--parallelism", type=click.IntRange(min=1), metavar="N", help="Tasks at once.")
@click.option("--parse-processes", type=click.IntRange(min=1), metavar="N", help="Parses at once.")
@click.option(
    "--until-idle",
    is_flag=True,
    help="End when every file is parsed and no run is active, and show how runs have ended, why some failed, and which"
    " files have errors; with code 1 if runs are left that cannot go on. Retries, sensors and triggers are waited for;"
    " a timeout of such a run, or of a question to a person, only if it is over within a minute.",
)
@fail_on_option(errors="DAG files have errors", failed="runs have failed since the start. Needs --until-idle")
@click.option("--num-runs", type=click.IntRange(min=1), metavar="N", help="End when N runs have ended.")
@click.option("--for", "seconds", type=Amount(0, LONGEST_SECONDS), metavar="SECONDS", help="End after this time.")
@click.option(
    "--like-airflow",
    is_flag=True,
    default=None,
    help="Take Airflow's defaults, such as that new DAGs are paused, and its variables AIRFLOW__SECTION__KEY. An"
    " airflow.cfg beside the DAG folder or in AIRFLOW_HOME has the same effect, and its options count, too.",
)
@click.option("--log-format", type=click.Choice(["console", "json"]), help="For people or programs.")
@click.option("-v", "--verbose", is_flag=True, help="Log the start and end of each try; as log.level=debug.")
def up(
    *,
    until_idle: bool,
    fail_on: frozenset[str],
    num_runs: int | None,
    seconds: float | None,
    verbose: bool,
    **flags: Any,
) -> None:
    """Run a scheduler: watch a folder of DAG files, create the runs that are due, run their tasks.

    Ctrl-C, SIGTERM or a closed terminal stops it gently: running tasks may finish within the setting shutdown_grace,
    and then have lease.kill_time to end themselves. A second signal kills them at once. Neither leaves a process
    behind, and the next start begins interrupted tasks again. A third signal ends the scheduler even if the database
    does not answer: tasks whose end is not stored then are shown as running until the next start. Exit code 0 after the
    first, 1 after the others.
    """
    if fail_on and not until_idle:
        raise click.UsageError("--fail-on needs --until-idle: only then is there an end at which runs can be judged.")
    with errors_in_one_line():
        from asynsched.cli.output import of_same_place
        from asynsched.cli.serving import StopRules, serve_until_stopped  # the whole scheduler: not for --help

        for group, name in (("parse", "processes"), ("log", "format")):
            flags[f"{group}.{name}"] = flags.pop(f"{group}_{name}")
        flags["log.level"] = "debug" if verbose else None
        configuration = configure(**flags)
        rules = StopRules(until_idle, num_runs, seconds, fail_on)
        settings = configuration.settings
        like_airflow = configuration.of_airflow if settings.like_airflow else None
        with settings_located(configuration):
            options = of_same_place(flags["home"], flags["database"])
            serve_until_stopped(settings, rules, options, like_airflow, located=configuration.located)
