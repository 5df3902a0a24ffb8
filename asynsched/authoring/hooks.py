"""BaseHook and BaseNotifier, to subclass: access to outside systems, and messages about what happened to a task."""

from __future__ import annotations

from asynsched.authoring.connection import Connection
from asynsched.authoring.operators.base import Templater

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Collection, Generator, Mapping
    from typing import Any, Self

    from asynsched.authoring.running.context import Context


class BaseHook:
    """Access to an outside system, through a connection."""

    def __init__(self, logger_name: str | None = None) -> None:
        self._logger_name = logger_name

    @property
    def log(self) -> logging.Logger:
        """The hook's logger."""
        import logging

        name = self._logger_name or f"{type(self).__module__}.{type(self).__qualname__}"
        return logging.getLogger(f"asynsched.task.hooks.{name}")

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        """Return a connection. Raises AsynschedNotFoundException when there is none."""
        return Connection.get(conn_id)

    def get_conn(self) -> Any:
        """Return what speaks with the system. Subclasses write this."""
        raise NotImplementedError(f"{type(self).__name__} has no get_conn()")


class BaseNotifier(Templater):
    """A callback with templates: `on_failure_callback=MyNotifier(text="{{ ti.task_id }} failed")`.

    Subclasses write `notify`, and `async_notify` where it is to be used in an AsyncCallback. The attributes that
    `template_fields` names are rendered before.
    """

    template_fields: Collection[str] = ()
    context: Mapping[str, Any] | None = None

    def __init__(self, *, context: Mapping[str, Any] | None = None) -> None:
        """Take the context of an asynchronous call; every other one gives its own."""
        self.context = context

    def notify(self, context: Context) -> None:
        """Send the message. Subclasses write this."""
        raise NotImplementedError(f"{type(self).__name__} has no notify()")

    async def async_notify(self, context: Context) -> None:
        """Send the message, for an AsyncCallback. Subclasses write this where they can wait."""
        raise NotImplementedError(f"{type(self).__name__} has no async_notify()")

    def rendered(self, context: Context) -> Self:
        """Return a copy with the template fields rendered."""
        from copy import copy

        notifier = copy(self)
        notifier.render_template_fields(context)
        return notifier

    def __call__(self, context: Context) -> None:
        """Render the template fields, then notify."""
        self.rendered(context).notify(context)

    def __await__(self) -> Generator[Any, Any, None]:
        """Render the template fields, then notify, with the context that it was made with."""
        from asynsched.authoring.running.context import Context

        context = Context(self.context or {})
        return self.rendered(context).async_notify(context).__await__()
