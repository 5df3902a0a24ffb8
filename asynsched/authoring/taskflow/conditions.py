"""`@task.run_if` and `@task.skip_if`: a condition, checked when the task's turn has come, that may skip it."""

from __future__ import annotations

from asynsched.authoring.exceptions import AsynschedSkipException
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from asynsched.authoring.running.context import Context


def run_if(condition: Callable[[Context], Any], skip_message: str | None = None) -> Callable[[Any], Any]:
    """Skip the task below unless `condition`, called with its context, is true.

    Args:
        condition: Returns a bool, or a bool and a message.
        skip_message: Message when it is skipped, if the condition gives none.
    """
    return _guard(condition, skip_message, runs_when=True)


def skip_if(condition: Callable[[Context], Any], skip_message: str | None = None) -> Callable[[Any], Any]:
    """Skip the task below if `condition`, called with its context, is true; arguments as for `run_if`."""
    return _guard(condition, skip_message, runs_when=False)


def _guard(condition: Callable[[Context], Any], skip_message: str | None, *, runs_when: bool) -> Callable[[Any], Any]:
    def decorate(task_function: Any) -> Any:
        if not hasattr(task_function, "override"):
            raise DagError("@task.run_if and @task.skip_if must be written above @task")
        earlier = task_function.kwargs.get("pre_execute")

        def pre_execute(context: Context) -> None:
            answer = condition(context)
            is_true, message = answer if isinstance(answer, tuple) else (answer, None)
            if bool(is_true) is not runs_when:
                raise AsynschedSkipException(
                    message or skip_message or f"the condition says {'not to run' if runs_when else 'to skip'}"
                )
            if earlier is not None:
                earlier(context)

        return task_function.override(pre_execute=pre_execute)

    return decorate
