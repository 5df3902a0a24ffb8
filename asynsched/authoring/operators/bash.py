"""BashOperator, and the subprocesses of tasks: their output goes to the task's log, and they end with the task."""

from __future__ import annotations

from functools import cached_property

from asynsched.authoring.exceptions import AsynschedException, AsynschedSkipException
from asynsched.authoring.masking import CUT
from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.running.context import context_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    import subprocess
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any, ClassVar, Unpack

    from asynsched.authoring.keywords import TaskKeywords
    from asynsched.authoring.operators.subprocess_hook import SubprocessHook
    from asynsched.authoring.running.context import Context

SKIP_EXIT_CODE = 99
TERMINATE_GRACE_SECONDS = 5.0
LONGEST_LINE = 16 * 1024 * 1024
"""How many bytes of a line are kept: more than a result may have."""


class CommandOperator(BaseOperator):
    """Runs commands, one at a time, logs their output line by line, and ends them with the task.

    Attributes:
        last_line: The last line of the output, at most LONGEST_LINE bytes of it.
        is_cut: Whether the last line is longer than that.
    """

    last_line = ""
    is_cut = False
    _process: subprocess.Popen[bytes] | None = None

    def run_command(
        self,
        command: Sequence[str],
        *,
        folder: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        encoding: str = "utf-8",
    ) -> int:
        """Run a command to its end and return its exit code; None for `env` means the task's environment."""
        import subprocess

        # The child stays in the task's process group, so that it ends with the task.
        self._process = subprocess.Popen(  # noqa: S603 - running commands is its purpose
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, env=env
        )
        self.last_line, self.is_cut = "", False
        try:
            assert self._process.stdout is not None
            goes_on = False
            while raw := self._process.stdout.readline(LONGEST_LINE):
                text = raw.decode(encoding, errors="backslashreplace").rstrip()
                is_whole = raw.endswith(b"\n") or len(raw) < LONGEST_LINE
                # The keeper masks what a cut has left of a secret beside the mark of a cut.
                self.log.info("%s%s%s", CUT if goes_on else "", text, "" if is_whole else CUT)
                # The rest of a long line is logged but not kept.
                self.last_line, self.is_cut = (self.last_line, True) if goes_on else (text, False)
                goes_on = not is_whole
            exit_code = self._process.wait()
            self.log.info("Command exited with return code %s", exit_code)
        finally:
            self._end_command()
        return exit_code

    def on_kill(self) -> None:
        self._end_command()

    def _end_command(self) -> None:
        """End the command if it is still running."""
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


class BashOperator(CommandOperator):
    """Runs a bash command, logs its output, and returns the last line of the output.

    Args:
        bash_command: The command, or the path of a `.sh` or `.bash` file, which is rendered first. (templated)
        env: The command's environment; by default that of the task. (templated)
        append_env: Add `env` to the task's environment instead of replacing it.
        skip_on_exit_code: The exit code, or codes, that skip the task; None for none.
        cwd: The folder to run in; by default a temporary one. (templated)
        output_processor: Converts the last line to the task's return value.
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
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(**kwargs)
        self.bash_command = bash_command
        self.env = env
        self.append_env = append_env
        self.output_encoding = output_encoding
        who = f"task {self.task_id!r}"
        self.skip_on_exit_code = arguments.exit_codes(who, skip_on_exit_code)
        self.cwd = cwd
        self.output_processor = output_processor

    def execute(self, context: Context) -> Any:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="asynsched-") as scratch:
            folder, env = self._folder() or scratch, self.get_env(context)
            self.log.info("Running command: %s", self.bash_command)
            command = bash_command_line(self.bash_command)
            exit_code = self.run_command(command, folder=folder, env=env, encoding=self.output_encoding)
        if exit_code in self.skip_on_exit_code:
            raise AsynschedSkipException(f"Bash command returned exit code {exit_code}. Skipping.")
        if exit_code:
            raise AsynschedException(f"Bash command failed. The command returned a non-zero exit code {exit_code}.")
        if self.is_cut and (self.do_xcom_push or self.output_processor is not None):
            raise AsynschedException(
                f"The last line of the command's output has more than {LONGEST_LINE} bytes and cannot be the result:"
                " end the output with a shorter line, or set do_xcom_push=False."
            )
        return self.last_line if self.output_processor is None else self.output_processor(self.last_line)

    def get_env(self, context: Context) -> dict[str, str]:
        """Return the command's environment: the task's, `env`, or both, and variables that describe the task."""
        import os

        env = dict(os.environ) if self.env is None or self.append_env else {}
        return {**env, **(self.env or {}), **context_variables(context)}

    @cached_property
    def subprocess_hook(self) -> SubprocessHook:
        """Runs commands for subclasses that are written for Airflow; the operator itself does without it."""
        from asynsched.authoring.operators.subprocess_hook import SubprocessHook

        return SubprocessHook()

    def on_kill(self) -> None:
        super().on_kill()
        if "subprocess_hook" in vars(self):
            self.subprocess_hook.send_sigterm()

    def _folder(self) -> str | None:
        from pathlib import Path

        if self.cwd is not None and not Path(self.cwd).is_dir():
            raise AsynschedException(f"task {self.task_id!r}: cwd {self.cwd!r} is not a folder")
        return self.cwd


def bash_command_line(command: str) -> list[str]:
    """Return the command line that runs a bash command."""
    import shutil

    return [shutil.which("bash") or "bash", "-c", command]
