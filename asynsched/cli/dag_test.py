"""`asynsched dags test`: one run in the foreground, in a process of its own, without a scheduler."""

from typing import Any

import click
import msgspec

from asynsched.cli.command import command, dag_argument, fail, told_output
from asynsched.cli.dag_lookup import dag_of
from asynsched.cli.dag_trigger import conf_option, logical_date_option, read_conf
from asynsched.cli.fail_on import ERRORS, fail_if_wanted, fail_on_option
from asynsched.cli.foreground_process import run_in_process
from asynsched.cli.instants import read_instant
from asynsched.cli.rendering import Output, Record, note
from asynsched.cli.session import Session
from asynsched.cli.showing import show
from asynsched.parsing.processes.sandbox_setup import setup_of
from sandbox.foreground import ForegroundRequest
from sandbox.parsing.explain import refused_link


@command("test")
@dag_argument
@conf_option
@logical_date_option
@fail_on_option("other DAGs of the file cannot be used", "the run has failed, as without this option")
@told_output()
def run_in_foreground(
    session: Session,
    output: str,
    dag_id: str,
    conf: str | None,
    logical_date: str | None,
    fail_on: frozenset[str],
) -> None:
    """Run a DAG once in the foreground, its file as it is now, with logs on standard error. Nothing is stored.

    Exit code 0 only if the run succeeded. Ctrl-C ends the task that runs, which has lease.kill_time for that, and then
    the command; a second one kills the task. Whatever ends the command, no process of the run is left behind.
    """
    content = read_conf(conf)
    zone = session.settings.default_timezone
    request = ForegroundRequest(
        dags_folder=str(session.settings.dags_path),
        path=dag_of(session, dag_id).file_path,
        dag_id=dag_id,
        conf=content,
        logical_date=read_instant(logical_date, zone, "--logical-date") if logical_date else None,
        default_timezone=zone,
        kill_time=session.settings.lease.kill_time,
        checks_file=ERRORS in fail_on,
    )
    # A task of the file would never run: that its author can read it, from here, says nothing.
    if refused := refused_link(request.path, request.dags_folder, setup_of(session.settings).limits):
        fail(f"{request.path}: cannot be read: {refused}")
    result = run_in_process(session, request)
    if result.error:
        fail(result.error)
    tasks = [msgspec.structs.asdict(task) for task in result.tasks]
    fields: dict[str, Any] = {"dag_id": dag_id, "state": result.state, "tasks": tasks}
    show(Record(fields, sections={"tasks": ()}), Output(output))
    for error in result.file_errors:
        note(error)
    n_errors = f"{len(result.file_errors)} of the other DAGs of {request.path} cannot be used"
    fail_if_wanted(fail_on, n_errors=n_errors if result.file_errors else "", n_failed="")
    if result.state != "success":
        raise click.exceptions.Exit(1)
