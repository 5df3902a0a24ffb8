"""What `@task` and `@task_group` make of a function alike: something called like it, mapped or not."""

from __future__ import annotations

from asynsched.authoring.mapping.mapped_arguments import check_names, refuse_repeated
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Self


class DecoratedFunction:
    """A decorated function. It looks like the function itself.

    Args:
        function: The function.
        kwargs: Arguments of what a call makes.

    Attributes:
        shared: Arguments of the function that all instances of what is mapped share.
    """

    def __init__(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        from functools import update_wrapper

        self.function = function
        self.kwargs = kwargs
        self.shared: dict[str, Any] = {}
        likeness: Any = self
        update_wrapper(likeness, function)

    def override(self, **kwargs: Any) -> Self:
        """Return the same, with other arguments of what a call makes."""
        raise NotImplementedError

    def partial(self, **kwargs: Any) -> Self:
        """Return the same, with arguments of the function that all instances share.

        Raises:
            TypeError: The function has no such argument, or it was given before.
        """
        self._check_given("partial", kwargs)
        other = self.override()
        other.shared = {**self.shared, **kwargs}
        return other

    @property
    def _who(self) -> str:
        """What messages call it."""
        raise NotImplementedError

    def _check_given(self, method: str, arguments: Mapping[str, Any]) -> None:
        check_names(self.function, method, arguments)
        refuse_repeated(self._who, self.shared, arguments)

    def _refuse_call(self) -> None:
        """Raise DagError for a call of what is to be mapped."""
        if self.shared:
            raise DagError(f"{self._who}: partial() is followed by expand() or expand_kwargs()")
