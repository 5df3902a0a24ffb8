"""A command that a task starts: its output goes to the task's log, and it ends with the task."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    import os
    import subprocess
    from collections.abc import Mapping, Sequence

TERMINATE_GRACE_SECONDS = 5.0
LONGEST_LINE = 16 * 1024 * 1024
"""Bytes of a line that are kept; more than a result may have."""


class LoggedProcess:
    """Runs a command and logs what it writes, line by line.

    Attributes:
        last_line: Of what the command has written; LONGEST_LINE bytes of it at most.
        is_cut: Whether the last line has more than that.
    """

    def __init__(self, log: logging.Logger, encoding: str = "utf-8") -> None:
        self._log = log
        self._encoding = encoding
        self._process: subprocess.Popen[bytes] | None = None
        self.last_line = ""
        self.is_cut = False

    def run(
        self, command: Sequence[str], *, folder: str | os.PathLike[str], env: Mapping[str, str] | None = None
    ) -> int:
        """Run a command to its end, and return its exit code.

        Args:
            command: Program and arguments.
            folder: Where it runs.
            env: The whole environment; None for that of the task.
        """
        import subprocess

        # The child stays in the task's process group: what ends the task ends it, too.
        self._process = subprocess.Popen(  # noqa: S603 - running commands is what it is for
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=env,
        )
        self.last_line, self.is_cut = "", False
        try:
            assert self._process.stdout is not None
            goes_on = False
            while raw := self._process.stdout.readline(LONGEST_LINE):
                text = raw.decode(self._encoding, errors="backslashreplace").rstrip()
                self._log.info("%s", text)
                # The rest of a long line is logged, and not kept.
                self.last_line, self.is_cut = (self.last_line, True) if goes_on else (text, False)
                goes_on = not raw.endswith(b"\n")
            exit_code = self._process.wait()
            self._log.info("Command exited with return code %s", exit_code)
        finally:
            self.end()
        return exit_code

    def end(self) -> None:
        """End the command, if it is still running."""
        import subprocess

        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(TERMINATE_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()


def bash_command_line(command: str) -> list[str]:
    """Return how bash is called with a command."""
    import shutil

    return [shutil.which("bash") or "bash", "-c", command]
