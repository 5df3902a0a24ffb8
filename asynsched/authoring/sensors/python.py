"""PythonSensor: waits until a function returns something true."""

from __future__ import annotations

from asynsched.authoring.operators.python import call_with_context
from asynsched.authoring.sensors.base import BaseSensorOperator, PokeReturnValue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    from asynsched.authoring.running.context import Context


class PythonSensor(BaseSensorOperator):
    """Waits until a function, which may be `async def`, returns something true.

    Args:
        python_callable: The function. Of the task's context it is given what it has parameters for.
        op_args: Positional arguments. (templated)
        op_kwargs: Keyword arguments. (templated)
        templates_dict: Values given to it as `templates_dict`. (templated)
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
