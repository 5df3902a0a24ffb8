"""Commands of the command line as forks of a process that has imported them: the same commands, without the imports.

A test gives dozens of commands and starts some schedulers, and most of the cost of both is imports. The server is a
process of its own, without threads, so that its forks are safe. What another user runs starts an interpreter as ever,
and so does `asynsched up` in modules that test its process. The keeper, and the server of parses, always do.
"""

import json
import os
import select
import signal
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
COLD_VARIABLE = "COLD_SCHEDULERS_OF_TESTS"
"""Environment variable of the test process: if set, each `asynsched up` starts an interpreter."""
IMPORTED_LATER = (
    "anyio._backends._asyncio", "asynsched.cli.serving", "asynsched.executors.local", "asynsched.queries.run_edits",
    "asynsched.store.engines.postgres", "asynsched.store.engines.sqlite_database", "cryptography.fernet",
    "rich.table", "sqlalchemy.dialects.postgresql.asyncpg", "sqlalchemy.dialects.sqlite",
)  # fmt: skip
"""What commands import when they run."""
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
    """Run a command, and return its exit code, standard output and standard error. Raises TimeoutExpired."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = WarmProcess(args, cwd=cwd, env=env, stdout=stdout.fileno(), stderr=stderr.fileno())
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        for output in (stdout, stderr):
            output.seek(0)
        return code, stdout.read().decode(), stderr.read().decode()


class WarmProcess:
    """A command that runs, with the part of the interface of `subprocess.Popen` that tests use.

    It leads a session of its own, and its standard input is empty.
    """

    def __init__(self, args: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdout: int, stderr: int) -> None:
        self._command = args
        self._code: int | None = None
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.connect(os.environ[SOCKET_VARIABLE])
        request = json.dumps({"args": list(args), "cwd": str(cwd), "env": dict(env)}).encode() + b"\n"
        socket.send_fds(self._connection, [request[:1]], [stdout, stderr])
        self._connection.sendall(request[1:])
        self._answers = self._connection.makefile("rb")
        self.pid = int(self._answers.readline())
        self._pidfd = os.pidfd_open(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once it has ended. Raises TimeoutExpired."""
        if self._code is None:
            ending = select.poll()
            ending.register(self._pidfd, select.POLLIN)
            if not ending.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self._command, timeout or 0.0)
            self._connection.setblocking(False)
            self._code = int(self._answers.readline() or CRASHED)
            self._answers.close()
            self._connection.close()
            os.close(self._pidfd)
        return self._code

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Command(socketserver.BaseRequestHandler):
    """One connection, in a fork of the server: one command."""

    def handle(self) -> None:
        connection: socket.socket = self.request
        first, (stdout, stderr), _, _ = socket.recv_fds(connection, 1, 2)
        with connection.makefile("rb") as requests:
            request = json.loads(first + requests.readline())
        os.setsid()
        connection.sendall(f"{os.getpid()}\n".encode())
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
    for name in IMPORTED_LATER:
        import_module(name)


if __name__ == "__main__":
    _import_commands()
    with _Server(f"{sys.argv[1]}.new", _Command) as server:
        Path(f"{sys.argv[1]}.new").rename(sys.argv[1])  # only listening sockets are found
        server.serve_forever()
