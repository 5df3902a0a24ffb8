"""The hooks of Airflow's standard provider: for folders, commands and package indexes."""

from __future__ import annotations

import os
from collections import namedtuple
from contextlib import contextmanager

from asynsched.authoring.connection import BaseHook

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from typing import Any

    from asynsched.authoring.connection import Connection

SubprocessResult = namedtuple("SubprocessResult", "exit_code output")
"""The exit code of a command, and the last line of its output."""


@contextmanager
def working_directory(cwd: str | None = None) -> Iterator[str]:
    """Return this folder, or without one a temporary folder, for a block."""
    if cwd is not None:
        yield cwd
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="asynsched-") as folder:
        yield folder


class FSHook(BaseHook):
    """A folder: the `path` in a connection's extra."""

    conn_name_attr = "fs_conn_id"
    default_conn_name = "fs_default"
    conn_type = "fs"
    hook_name = "File (path)"

    def __init__(self, fs_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conn = self.get_connection(fs_conn_id)
        self.basepath: str = self.conn.extra_dejson.get("path", "")

    def get_conn(self) -> None:
        """Do nothing: a folder needs no client."""

    def get_path(self) -> str:
        """Return the folder's path; empty if the connection has none."""
        return self.basepath

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the folder is there, and a message."""
        if not self.basepath:
            return False, "The connection's extra has no path."
        exists = os.path.exists(self.basepath)  # noqa: PTH110 - pathlib would be loaded for this
        return exists, f"The path {self.basepath} {'exists' if exists else 'does not exist'}."


class SubprocessHook(BaseHook):
    """Runs commands, and logs their output."""

    def __init__(self, **kwargs: Any) -> None:
        self.sub_process: subprocess.Popen[bytes] | None = None
        super().__init__(**kwargs)

    def run_command(
        self,
        command: list[str],
        env: dict[str, str] | None = None,
        output_encoding: str = "utf-8",
        cwd: str | None = None,
    ) -> SubprocessResult:
        """Run a command to its end.

        Args:
            env: The command's whole environment; None for this process's environment.
            output_encoding: The encoding of its output.
            cwd: The folder that it runs in; None for a temporary one.
        """
        import subprocess

        with working_directory(cwd) as folder:
            self.log.info("Running command: %s", command)
            self.sub_process = process = subprocess.Popen(  # noqa: S603 - the caller's command
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=os.environ if env is None else env,
                start_new_session=True,
            )
            assert process.stdout is not None
            line = ""
            # Not `with process`: a timeout must reach on_kill(), and not wait here for the command.
            for read in process.stdout:
                line = read.decode(output_encoding, errors="backslashreplace").rstrip()
                self.log.info("%s", line)
            code = process.wait()
            process.stdout.close()
        self.log.info("Command exited with return code %s", code)
        return SubprocessResult(exit_code=code, output=line)

    def send_sigterm(self) -> None:
        """Ask the running command, if there is one, and the commands that it started, to end."""
        import signal

        if self.sub_process is not None and self.sub_process.poll() is None:
            self.log.info("Sending SIGTERM signal to process group")
            os.killpg(self.sub_process.pid, signal.SIGTERM)


class PackageIndexHook(BaseHook):
    """An index of Python packages: the URL is a connection's host."""

    conn_name_attr = "pi_conn_id"
    default_conn_name = "package_index_default"
    conn_type = "package_index"
    hook_name = "Package Index (Python)"

    def __init__(self, pi_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pi_conn_id = pi_conn_id
        self.conn: Connection | None = None

    def get_conn(self) -> str:
        """Return the URL of the index: see `get_connection_url`."""
        return self.get_connection_url()

    def get_connection_url(self) -> str:
        """Return the URL of the index, with the connection's login and password.

        Raises:
            ValueError: The connection has no host.
        """
        from urllib.parse import quote, urlsplit

        connection = self.get_connection(self.pi_conn_id)
        if not connection.host:
            raise ValueError(f"connection {self.pi_conn_id!r}: its host must be the URL of a package index")
        url = urlsplit(connection.host)
        address = url.netloc.rpartition("@")[2]
        if connection.login:
            password = f":{quote(connection.password, safe='')}" if connection.password else ""
            address = f"{quote(connection.login, safe='')}{password}@{address}"
        return url._replace(netloc=address).geturl()
