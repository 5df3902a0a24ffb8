"""SubprocessHook, the hook of Airflow's standard provider that runs commands."""

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
