"""`asynsched up`: run a scheduler until it is told to stop, is idle, or has done enough."""

import sys
from typing import Annotated

import typer

from asynsched.cli.command import DatabaseOption, HomeOption, configure, errors_in_one_line, fail, new_app

app = new_app()


@app.command("up")
def up(
    dags_folder: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="Folder of DAG files.  [default: dags]", show_default=False)
    ] = None,
    *,
    home: HomeOption = None,
    database: DatabaseOption = None,
    executor: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="local, sequential, or package.module:Class.", show_default=False),
    ] = None,
    parallelism: Annotated[int | None, typer.Option(min=1, help="Tasks at once.", show_default=False)] = None,
    parse_processes: Annotated[int | None, typer.Option(min=1, help="Parses at once.", show_default=False)] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when every file is parsed and no run is active.")
    ] = False,
    num_runs: Annotated[
        int | None, typer.Option("--num-runs", min=1, help="End when so many runs have ended.", show_default=False)
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0, metavar="SECONDS", help="End after this time.", show_default=False)
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="console or json.", show_default=False)
    ] = None,
) -> None:
    """Run a scheduler: watch a folder of DAG files, create the runs that are due, run their tasks.

    Ctrl-C or SIGTERM stops it gently: what runs may finish within the setting shutdown_grace. A second one stops it at
    once. Neither leaves a process behind.
    """
    with errors_in_one_line():
        if sys.platform == "win32":
            fail("asynsched runs on Linux and macOS; on Windows, use it in WSL 2.")
        from asynsched.cli.serving import StopRules, serve_until_stopped  # the whole scheduler: not for --help

        configuration = configure(
            **{
                "dags_folder": dags_folder,
                "home": home,
                "database": database,
                "executor": executor,
                "parallelism": parallelism,
                "parse.processes": parse_processes,
                "log.format": log_format,
            }
        )
        serve_until_stopped(configuration.settings, StopRules(until_idle, num_runs, seconds))
