"""`asynsched python`: run a Python file in this process, with Airflow's names."""

import os
import runpy
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from asynsched.airflow import installation
from asynsched.airflow.finder import serve_airflow
from asynsched.authoring.supervisor import set_supervisor
from asynsched.authoring.timezone import set_default_timezone
from asynsched.cli import live_on
from asynsched.cli.command import configure, errors_in_one_line, home_option
from asynsched.cli.configuration import with_served_folder
from asynsched.foreground.home_supervisor import supervisor_of_database


@click.command("python", context_settings={"allow_interspersed_args": False}, options_metavar="[--home DIR]")
@home_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def python(file: Path, arguments: tuple[str, ...], **flags: Any) -> None:
    """Run a Python file as `python FILE` does, with Airflow's names: `import airflow` works without Airflow.

    So a DAG file that ends with `dag.test()` runs its tasks in this process, where breakpoint() stops, and so do the
    breakpoints of an IDE that starts `python -m asynsched python FILE`. Plugins and the modules of the DAG folder can
    be imported, and stored variables and connections read.
    """
    with errors_in_one_line():
        settings = with_served_folder(configure(**flags)).settings
        os.environ["ASYNSCHED_HOME"] = str(settings.home_path)  # so that `dag.test()` never asks another home
        set_default_timezone(settings.default_timezone)
        options = installation.options_of_processes(settings.airflow_options, settings.airflow_cfg_path)
        serve_airflow(settings.airflow, options)
        sys.path[:0] = [str(file.absolute().parent)]
        sys.path.append(str(settings.dags_path))
        set_supervisor(supervisor_of_database(settings), loads_file=True)
        installation.load()
    live_on()
    sys.argv = [str(file), *arguments]
    try:
        runpy.run_path(str(file), run_name="__main__")
    except Exception as exc:  # noqa: BLE001 - shown as Python shows it, without the frames of this command
        trace = _within(str(file), exc.__traceback__)
        sys.excepthook(type(exc), exc.with_traceback(trace), trace)
        sys.exit(1)


def _within(file: str, trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in a file; None without one, as for an error of its syntax."""
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return trace
