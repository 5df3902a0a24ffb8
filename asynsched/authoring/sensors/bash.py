"""BashSensor: waits until a command succeeds."""

from __future__ import annotations

from asynsched.authoring.exceptions import AsynschedFailException
from asynsched.authoring.operators import arguments
from asynsched.authoring.sensors.base import BaseSensorOperator
from asynsched.authoring.subprocesses import LoggedProcess, bash_command_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from asynsched.authoring.running.context import Context


class BashSensor(BaseSensorOperator):
    """Waits until a bash command ends with exit code 0.

    Args:
        bash_command: The command. (templated)
        env: The whole environment of the command; by default it inherits the task's. (templated)
        output_encoding: Encoding of the output.
        retry_exit_code: Exit code for which it looks again later; any other fails the task, without a retry. None: it
            looks again after any.
    """

    template_fields: Collection[str] = ("bash_command", "env")

    def __init__(
        self,
        *,
        bash_command: str,
        env: dict[str, str] | None = None,
        output_encoding: str = "utf-8",
        retry_exit_code: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.bash_command = bash_command
        self.env = env
        self.output_encoding = output_encoding
        who = f"task {self.task_id!r}"
        is_any = retry_exit_code is None
        self.retry_exit_code = None if is_any else arguments.whole_number(who, "retry_exit_code", retry_exit_code)
        self._process: LoggedProcess | None = None

    def poke(self, context: Context) -> bool:
        import tempfile

        self.log.info("Running command: %s", self.bash_command)
        self._process = LoggedProcess(self.log, self.output_encoding)
        with tempfile.TemporaryDirectory(prefix="asynsched-") as scratch:
            code = self._process.run(bash_command_line(self.bash_command), folder=scratch, env=self.env)
        if code and self.retry_exit_code not in (None, code):
            raise AsynschedFailException(f"Command exited with return code {code}")
        return code == 0

    def on_kill(self) -> None:
        """End the command, if it is still running."""
        if self._process is not None:
            self._process.end()
