"""`asynsched dags test`: one run in the foreground, in a process of its own, without a scheduler.

That process is not told where the database is: it asks this one for stored variables and connections.
"""

import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

import click
import msgspec

from asynsched.cli.command import command, dag_argument, fail, told_output
from asynsched.cli.dag_lookup import dag_of
from asynsched.cli.dag_trigger import conf_option, logical_date_option, read_conf
from asynsched.cli.instants import read_instant
from asynsched.cli.rendering import Output, Record
from asynsched.cli.session import Session
from asynsched.cli.showing import show
from asynsched.errors import NotFound, StoreError
from asynsched.parsing.processes.sandbox_setup import setup_of
from asynsched.store.connections import get_connection
from asynsched.store.variables import get_variable
from sandbox.foreground import ForegroundRequest, ForegroundResult
from sandbox.frames import FrameReader, encode_frame
from sandbox.parsing.explain import refused_link
from sandbox.protocol import Reply, Request

READ_BYTES = 64 * 1024


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
    # A task of the file would never run: that its author can read it, from here, says nothing.
    if refused := refused_link(request.path, request.dags_folder, setup_of(session.settings).limits):
        fail(f"{request.path}: cannot be read: {refused}")
    result = _run(session, request)
    if result.error:
        fail(result.error)
    tasks = [msgspec.structs.asdict(task) for task in result.tasks]
    fields: dict[str, Any] = {"dag_id": dag_id, "state": result.state, "tasks": tasks}
    show(Record(fields, sections={"tasks": ()}), Output(output))
    if result.state != "success":
        raise click.exceptions.Exit(1)


def _run(session: Session, request: ForegroundRequest) -> ForegroundResult:
    """Run the DAG in a process that has none of asynsched's own environment. What it prints goes to standard error."""
    ours, theirs = socket.socketpair()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ASYNSCHED_")}
    argument = msgspec.json.encode(request).decode()
    with ours:
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - this very Python, and a module of ours
                [sys.executable, "-P", "-m", "sandbox.foreground", str(theirs.fileno()), argument],
                env=environ,
                pass_fds=(theirs.fileno(),),
                stdout=sys.stderr.fileno(),
            )
        with process:
            result = _converse(session, ours)
    return result or ForegroundResult(
        error=f"{request.path}: the process ended with {process.returncode} before the run did."
    )


def _converse(session: Session, ours: socket.socket) -> ForegroundResult | None:
    """Answer the process's questions until it says how the run ended; None when it is gone without a word."""
    reader = FrameReader(Request | ForegroundResult)
    # A process that has died with an answer unread resets the connection.
    with suppress(ConnectionError):
        while data := ours.recv(READ_BYTES):
            for message in reader.feed(data):
                if isinstance(message, ForegroundResult):
                    return message
                ours.sendall(encode_frame(_answer(session, message)))
    return None


def _answer(session: Session, asked: Request) -> Reply:
    try:
        if asked.operation == "max_map_length":
            value: Any = session.settings.max_map_length
        elif asked.operation == "variable_get":
            value = session.read(get_variable, asked.arguments["key"]).value
        else:
            value = msgspec.structs.asdict(session.read(get_connection, asked.arguments["conn_id"]))
    except NotFound as exc:
        return Reply(asked.token, asked.request_id, found=False, error=str(exc))
    except StoreError as exc:
        return Reply(asked.token, asked.request_id, error=str(exc))
    return Reply(asked.token, asked.request_id, value)
