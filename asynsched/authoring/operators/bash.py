"""BashOperator: a command, or a script file, run by bash."""

from __future__ import annotations

from asynsched.authoring.exceptions import AsynschedException, AsynschedSkipException
from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.running.context import context_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    import os
    import subprocess
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any, ClassVar

    from asynsched.authoring.running.context import Context


SKIP_EXIT_CODE = 99


class BashOperator(BaseOperator):
    """Runs a bash command, logs its output, and returns the last line of it.

    Args:
        bash_command: The command; or the path of a `.sh` or `.bash` file, which is rendered first. (templated)
        env: The whole environment of the command; by default it inherits the task's. (templated)
        append_env: Add `env` to the inherited environment instead of replacing it.
        output_encoding: Encoding of the output.
        skip_on_exit_code: Exit code, or codes, for which the task is skipped; None for none.
        cwd: Folder to run it in; by default a temporary one. (templated)
        output_processor: Turns the last line into what the task returns.
    """

    template_fields: Collection[str] = ("bash_command", "env", "cwd")
    template_fields_renderers: ClassVar[Mapping[str, str]] = {"bash_command": "bash", "env": "json"}
    template_ext = (".sh", ".bash")
    ui_color = "#f0ede4"

    def __init__(
        self,
        *,
        bash_command: str,
        env: dict[str, str] | None = None,
        append_env: bool = False,
        output_encoding: str = "utf-8",
        skip_on_exit_code: int | Collection[int] | None = SKIP_EXIT_CODE,
        cwd: str | None = None,
        output_processor: Callable[[str], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.bash_command = bash_command
        self.env = env
        self.append_env = append_env
        self.output_encoding = output_encoding
        who = f"task {self.task_id!r}"
        self.skip_on_exit_code = arguments.exit_codes(who, "skip_on_exit_code", skip_on_exit_code)
        self.cwd = cwd
        self.output_processor = output_processor
        self._process: LoggedProcess | None = None

    def execute(self, context: Context) -> Any:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="asynsched-") as scratch:
            exit_code, command = self._run(self._folder() or scratch, self.get_env(context))
        if exit_code in self.skip_on_exit_code:
            raise AsynschedSkipException(f"Bash command returned exit code {exit_code}. Skipping.")
        if exit_code:
            raise AsynschedException(f"Bash command failed. The command returned a non-zero exit code {exit_code}.")
        if command.is_cut and (self.do_xcom_push or self.output_processor is not None):
            raise AsynschedException(
                f"The last line that the command wrote has more than {LONGEST_LINE} bytes and cannot be the result:"
                " end the output with a shorter line, or set do_xcom_push=False."
            )
        return command.last_line if self.output_processor is None else self.output_processor(command.last_line)

    def get_env(self, context: Context) -> dict[str, str]:
        """Return the environment of the command: inherited, or `env`, and what it should know of the task."""
        import os

        env = dict(os.environ) if self.env is None or self.append_env else {}
        return {**env, **(self.env or {}), **context_variables(context)}

    def _folder(self) -> str | None:
        from pathlib import Path

        if self.cwd is not None and not Path(self.cwd).is_dir():
            raise AsynschedException(f"task {self.task_id!r}: cwd {self.cwd!r} is no folder")
        return self.cwd

    def _run(self, folder: str, env: dict[str, str]) -> tuple[int, LoggedProcess]:
        self.log.info("Running command: %s", self.bash_command)
        self._process = LoggedProcess(self.log, self.output_encoding)
        exit_code = self._process.run(bash_command_line(self.bash_command), folder=folder, env=env)
        return exit_code, self._process

    def on_kill(self) -> None:
        """End the command, if it is still running."""
        if self._process is not None:
            self._process.end()


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
