"""Commands of the command line as forks of a process that has imported them: the same commands, without the imports.

A test gives dozens of commands, and most of the cost of one is imports. The server is a process of its own, without
threads, so that its forks are safe. `asynsched up`, and all that another user runs, start an interpreter as ever.
"""

import json
import os
import socket
import socketserver
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from tests.support.waiting import until

SOCKET_VARIABLE = "WARM_COMMANDS_OF_TESTS"
"""Environment variable of the test process: where the server listens. Commands find none, and no process of a site."""
CRASHED = -1
"""The exit code of a command that has ended without telling one."""


@contextmanager
def serving() -> Iterator[None]:
    """Run commands of this process as forks until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="asynsched-commands-") as folder:
        path = f"{folder}/socket"
        with subprocess.Popen([sys.executable, "-m", __name__, path], stdin=subprocess.DEVNULL) as server:
            try:
                until(lambda: Path(path).exists(), "the server of commands listens")
                os.environ[SOCKET_VARIABLE] = path
                yield
            finally:
                os.environ.pop(SOCKET_VARIABLE, None)
                server.terminate()


def run(args: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float) -> tuple[int, str, str]:
    """Run a command, and return its exit code, standard output and standard error. Raises TimeoutError."""
    with (
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
    ):
        connection.settimeout(timeout)
        connection.connect(os.environ[SOCKET_VARIABLE])
        request = json.dumps({"args": list(args), "cwd": str(cwd), "env": dict(env)}).encode() + b"\n"
        socket.send_fds(connection, [request[:1]], [stdout.fileno(), stderr.fileno()])
        connection.sendall(request[1:])
        with connection.makefile("rb") as answers:
            answer = answers.readline()
        for output in (stdout, stderr):
            output.seek(0)
        return int(answer or CRASHED), stdout.read().decode(), stderr.read().decode()


class _Command(socketserver.BaseRequestHandler):
    """One connection, in a fork of the server: one command."""

    def handle(self) -> None:
        connection: socket.socket = self.request
        first, (stdout, stderr), _, _ = socket.recv_fds(connection, 1, 2)
        with connection.makefile("rb") as requests:
            request = json.loads(first + requests.readline())
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = ["asynsched", *request["args"]]
        code = _exit_code_of_command()
        with suppress(BrokenPipeError):  # who asked has waited long enough
            connection.sendall(f"{code}\n".encode())


def _exit_code_of_command() -> int:
    from asynsched.cli import run_command

    try:
        run_command()
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        if isinstance(exc.code, str):
            sys.stderr.write(f"{exc.code}\n")
    except BaseException:  # noqa: BLE001 - as an interpreter does: shown, and exit code 1
        code = 1
        sys.excepthook(*sys.exc_info())
    else:
        code = 0
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code


class _Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """A process for each command."""

    block_on_close = False
    max_children = 100
    request_queue_size = 100


def _import_commands() -> None:
    from asynsched.cli.app import COMMANDS

    for group in COMMANDS.values():
        for place in [group] if isinstance(group, str) else group.values():
            import_module(f"asynsched.cli.{place}")
    for name in ("sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql", "rich.table"):
        import_module(name)


if __name__ == "__main__":
    _import_commands()
    with _Server(f"{sys.argv[1]}.new", _Command) as server:
        Path(f"{sys.argv[1]}.new").rename(sys.argv[1])  # only listening sockets are found
        server.serve_forever()
