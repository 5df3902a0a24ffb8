"""BaseHook and BaseNotifier, to subclass for access to external systems and for notifications about tasks."""

from __future__ import annotations

from asynsched.authoring.connection import Connection
from asynsched.authoring.running.templating import Templater

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Collection, Generator, Mapping
    from typing import Any, Self

    from asynsched.authoring.running.context import Context


class BaseHook:
    """Access to an external system through a connection."""

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
        """Return a connection. Raises AsynschedNotFoundException if it does not exist."""
        return Connection.get(conn_id)

    def get_conn(self) -> Any:
        """Return a client of the system. Subclasses implement this."""
        raise NotImplementedError(f"{type(self).__name__} has no get_conn()")


class BaseNotifier(Templater):
    """A callback with templates: `on_failure_callback=MyNotifier(text="{{ ti.task_id }} failed")`.

    Subclasses implement `notify`, and `async_notify` for use in an AsyncCallback. The attributes named by
    `template_fields` are rendered first.

    Args:
        context: The context for `await`ing the notifier; other calls pass a context.
    """

    template_fields: Collection[str] = ()
    context: Mapping[str, Any] | None = None

    def __init__(self, *, context: Mapping[str, Any] | None = None) -> None:
        self.context = context

    def notify(self, context: Context) -> None:
        """Send the notification. Subclasses implement this."""
        raise NotImplementedError(f"{type(self).__name__} has no notify()")

    async def async_notify(self, context: Context) -> None:
        """Send the notification for an AsyncCallback."""
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
        """Render the template fields, then notify, with the context given to the constructor."""
        from asynsched.authoring.running.context import Context

        context = Context(self.context or {})
        return self.rendered(context).async_notify(context).__await__()
