"""BaseHook and BaseNotifier, to subclass: access to outside systems, and messages about what happened to a task."""

from __future__ import annotations

from asynsched.authoring.connection import Connection
from asynsched.authoring.operators.templated import Templater

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Collection
    from typing import Any

    from asynsched.authoring.context import Context


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
    """A callback with templates: `on_failure_callback=MyNotifier(text="{{ ti.task_id }} failed")`."""

    template_fields: Collection[str] = ()

    def notify(self, context: Context) -> None:
        """Send the message. Subclasses write this."""
        raise NotImplementedError(f"{type(self).__name__} has no notify()")

    def __call__(self, context: Context) -> None:
        """Render the template fields, then notify."""
        from copy import copy

        rendered = copy(self)
        rendered.render_template_fields(context)
        rendered.notify(context)
