"""PythonSensor and BashSensor: wait until a function returns a true value, or a command succeeds."""

from __future__ import annotations

from asynsched.authoring.exceptions import AsynschedFailException
from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.bash import LoggedProcess, bash_command_line
from asynsched.authoring.operators.python import call_with_context
from asynsched.authoring.sensors.base import BaseSensorOperator, PokeReturnValue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    from asynsched.authoring.running.context import Context


class PythonSensor(BaseSensorOperator):
    """Waits until a function, which may be `async def`, returns a true value.

    Args:
        python_callable: The function. Its parameters also receive the values of the same name in the task's context.
        op_args: Positional arguments. (templated)
        op_kwargs: Keyword arguments. (templated)
        templates_dict: A dict passed as `templates_dict`. (templated)
    """

    template_fields: Collection[str] = ("templates_dict", "op_args", "op_kwargs")

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        templates_dict: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.python_callable = python_callable
        self.op_args: Collection[Any] = op_args or ()
        self.op_kwargs: Mapping[str, Any] = op_kwargs or {}
        self.templates_dict = templates_dict

    def poke(self, context: Context) -> bool | PokeReturnValue:
        if self.templates_dict is not None:
            context["templates_dict"] = self.templates_dict
        value = call_with_context(self.python_callable, self.op_args, self.op_kwargs, context)
        return value if isinstance(value, PokeReturnValue) else PokeReturnValue(bool(value))


class BashSensor(BaseSensorOperator):
    """Waits until a bash command ends with exit code 0.

    Args:
        bash_command: The command. (templated)
        env: The command's environment; by default that of the task. (templated)
        output_encoding: The encoding of the output.
        retry_exit_code: The exit code that means "not yet"; any other fails the task without a retry. None: every exit
            code means "not yet".
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
        if self._process is not None:
            self._process.end()
