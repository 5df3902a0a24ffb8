"""EmptyOperator: a task that does nothing."""

from __future__ import annotations

from asynsched.authoring.operators.base import BaseOperator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asynsched.authoring.running.context import Context


class EmptyOperator(BaseOperator):
    """A task that does nothing: it joins arrows, and succeeds without a process."""

    ui_color = "#e8f7e4"

    def execute(self, context: Context) -> None:
        """Do nothing."""
