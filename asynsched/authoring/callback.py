"""What a missed deadline calls: a function, or a notifier, with its arguments.

Source: Apache Airflow's `airflow.sdk.definitions.callback`.
"""

from __future__ import annotations

from asynsched.authoring.hooks import BaseNotifier
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from asynsched.authoring.running.context import Context

COROUTINE_FUNCTION = 0x80
"""CO_COROUTINE of `inspect`, which is not worth its import."""


class Callback:
    """What SyncCallback and AsyncCallback have in common."""

    def __init__(self, callback_callable: Callable[..., Any] | str, kwargs: dict[str, Any] | None = None) -> None:
        if kwargs is not None and not isinstance(kwargs, dict):
            raise DagError(f"{self._who}: kwargs must be a dict, not {type(kwargs).__name__}")
        if kwargs and "context" in kwargs:
            raise DagError(f"{self._who}: context is given by the scheduler, and cannot be one of the kwargs")
        self.kwargs = dict(kwargs or {})
        self.callback_callable = callback_callable
        if isinstance(callback_callable, str):
            self.__name__ = self.path = callback_callable.strip()
            if not all(part.isidentifier() for part in self.path.split(".")) or "." not in self.path:
                raise DagError(f"{self._who}: {callback_callable!r} is no dotted name, such as 'package.module.name'")
        elif callable(callback_callable):
            self.__name__ = getattr(callback_callable, "__qualname__", repr(callback_callable))
            self.path = f"{callback_callable.__module__}.{self.__name__}"
            self._check(callback_callable)
        else:
            raise DagError(f"{self._who}: a function or its dotted name is needed, not {callback_callable!r}")

    @property
    def _who(self) -> str:
        return type(self).__name__

    def _check(self, function: Callable[..., Any]) -> None:
        """Raise DagError for a function that is not of this callback's kind."""

    def __call__(self, context: Context) -> None:
        """Call it, and wait until it has ended. Raises whatever it raises."""
        from asynsched.authoring.operators.python import finished, keyword_arguments

        function = self._found()
        is_notifier = isinstance(function, type) and issubclass(function, BaseNotifier)
        if is_notifier:
            finished(self._notify(function(**self.kwargs), context))
            return
        wanted = keyword_arguments(function, (), {}, {"context": context})
        finished(function(**self.kwargs, **wanted))

    def _notify(self, notifier: BaseNotifier, context: Context) -> Any:
        return notifier(context)

    def _found(self) -> Callable[..., Any]:
        if not isinstance(self.callback_callable, str):
            return self.callback_callable
        from importlib import import_module

        module, _, name = self.path.rpartition(".")
        function: Callable[..., Any] = getattr(import_module(module), name)
        self._check(function)
        return function


class SyncCallback(Callback):
    """What a missed deadline calls: an ordinary function, or a notifier's `notify`.

    It is given the context as well, where it has a parameter `context`.

    Args:
        callback_callable: A function, a subclass of BaseNotifier, or the dotted name of one, which is imported only
            when it is called.
        kwargs: Its arguments. In those of a notifier, the fields that it has as templates are rendered.
        executor: Accepted, and without effect.

    Raises:
        DagError: It cannot be called so.
    """

    def __init__(
        self,
        callback_callable: Callable[..., Any] | str,
        kwargs: dict[str, Any] | None = None,
        executor: str | None = None,
    ) -> None:
        super().__init__(callback_callable, kwargs)
        self.executor = executor


class AsyncCallback(Callback):
    """What a missed deadline calls: an `async def` function, or a notifier's `async_notify`.

    It is given the context as well, where it has a parameter `context`.

    Args:
        callback_callable: An `async def` function, a subclass of BaseNotifier, or the dotted name of one, which is
            imported only when it is called.
        kwargs: Its arguments. In those of a notifier, the fields that it has as templates are rendered.

    Raises:
        DagError: It cannot be called so.
    """

    def _check(self, function: Callable[..., Any]) -> None:
        code = getattr(function, "__code__", None)
        is_coroutine = code is not None and code.co_flags & COROUTINE_FUNCTION
        if not is_coroutine and not hasattr(function, "__await__"):
            raise DagError(f"AsyncCallback: {self.__name__} is no async function; use SyncCallback, or make it one")

    def _notify(self, notifier: BaseNotifier, context: Context) -> Any:
        return notifier.rendered(context).async_notify(context)
