"""`asynsched dags test`: one run in the foreground, in a process of its own, without a scheduler or a database."""

import os
import subprocess
import sys
from typing import Any

import click
import msgspec

from asynsched.cli.command import command, dag_argument, fail, told_output
from asynsched.cli.dag_lookup import dag_of
from asynsched.cli.dag_trigger import conf_option, logical_date_option, read_conf
from asynsched.cli.instants import read_instant
from asynsched.cli.rendering import Output, Record, show
from asynsched.cli.session import Session
from sandbox.foreground import ForegroundRequest, ForegroundResult


@command("test")
@dag_argument
@conf_option
@logical_date_option
@told_output()
def run_in_foreground(session: Session, output: str, dag_id: str, conf: str | None, logical_date: str | None) -> None:
    """Run a DAG once in the foreground, its file as it is now, with logs on standard error. Nothing is stored.

    Exit code 0 only if the run succeeded.
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
    )
    result = _run(request)
    if result.error:
        fail(result.error)
    tasks = [{"task_id": task_id, "state": state} for task_id, state in result.tasks.items()]
    fields: dict[str, Any] = {"dag_id": dag_id, "state": result.state, "tasks": tasks}
    show(Record(fields, sections={"tasks": ()}), Output(output))
    if result.state != "success":
        raise click.exceptions.Exit(1)


def _run(request: ForegroundRequest) -> ForegroundResult:
    """Run the DAG in a process that has none of asynsched's own environment. What it prints goes to standard error."""
    reading, writing = os.pipe()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ASYNSCHED_")}
    argument = msgspec.json.encode(request).decode()
    with os.fdopen(reading, "rb") as answer:
        try:
            process = subprocess.Popen(  # noqa: S603 - this very Python, and a module of ours
                [sys.executable, "-P", "-m", "sandbox.foreground", str(writing), argument],
                env=environ,
                pass_fds=(writing,),
                stdout=sys.stderr.fileno(),
            )
        finally:
            os.close(writing)
        with process:
            text = answer.read()
    if not text:
        return ForegroundResult(
            error=f"{request.path}: the process ended with {process.returncode} before the run did."
        )
    return msgspec.json.decode(text, type=ForegroundResult)
