"""`@task_group`: functions that make task groups, also mapped ones."""

from __future__ import annotations

from asynsched.authoring.mapping.expand_input import ExpandInput, ExpandKwargs, ExpandProduct, MappedArgument
from asynsched.authoring.mapping.mapped_arguments import parameters_of
from asynsched.authoring.task_group import TaskGroup
from asynsched.authoring.taskflow.decorated_function import DecoratedFunction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class TaskGroupFunction(DecoratedFunction):
    """A function decorated with `@task_group`: each call makes a group with the tasks that the function makes."""

    def __init__(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        super().__init__(function, {"group_id": function.__name__, **kwargs})
        if function.__doc__:
            self.kwargs.setdefault("tooltip", function.__doc__.strip())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse_call()
        with TaskGroup(**{"add_suffix_on_collision": True, **self.kwargs}) as group:
            made = self.function(*args, **kwargs)
        return group if made is None else made

    def override(self, **kwargs: Any) -> TaskGroupFunction:
        """Return the same, with other arguments of the task group."""
        other = TaskGroupFunction(self.function, {**self.kwargs, **kwargs})
        other.shared = self.shared
        return other

    def expand(self, **kwargs: Any) -> Any:
        """Make a mapped group: an instance of its tasks for each combination of the arguments' values.

        Raises:
            TypeError: There are no arguments, or the function has no such one, or it cannot be mapped over.
        """
        self._check_given("expand", kwargs)
        return self._mapped(ExpandProduct(self._who, kwargs), list(kwargs))

    def expand_kwargs(self, kwargs: Any) -> Any:
        """Make a mapped group: an instance of its tasks for each dict of arguments.

        Raises:
            TypeError: `kwargs` is neither a list of dicts nor the result of a task, or the function takes any arguments
                (`*` or `**`).
        """
        names, takes_any = parameters_of(self.function)
        if takes_any:
            raise TypeError(f"{self._who}: expand_kwargs() needs a function without * and **")
        return self._mapped(ExpandKwargs(self._who, kwargs), [name for name in names if name not in self.shared])

    @property
    def _who(self) -> str:
        return f"task group {self.kwargs['group_id']!r}"

    def _mapped(self, expand_input: ExpandInput, names: list[str]) -> Any:
        arguments = {name: MappedArgument(expand_input, name) for name in names}
        with MappedTaskGroup(expand_input, **{"add_suffix_on_collision": True, **self.kwargs}) as group:
            made = self.function(**self.shared, **arguments)
        return group if made is None else made


class MappedTaskGroup(TaskGroup):
    """A task group of whose tasks there are as many instances as values to map over."""

    def __init__(self, expand_input: ExpandInput, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.expand_input: ExpandInput = expand_input

    def __exit__(self, *exc_info: object) -> None:
        for operator, _ in self.expand_input.iter_references():
            operator.is_mapped_over = True
            self.set_upstream(operator)
        super().__exit__(*exc_info)
