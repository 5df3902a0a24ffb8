"""FileSensor: waits for a file, or a folder with a file in it."""

from __future__ import annotations

from asynsched.authoring.exceptions import AsynschedException, AsynschedNotFoundException
from asynsched.authoring.sensors.base import BaseSensorOperator
from asynsched.authoring.triggers.file import FileTrigger, find_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from asynsched.authoring.running.context import Context

DEFAULT_CONNECTION = "fs_default"


class FileSensor(BaseSensorOperator):
    """Waits until a file exists, or a folder with a file in it at any depth.

    Args:
        filepath: The path or a glob pattern, relative to the connection's path. (templated)
        fs_conn_id: The connection whose extra has the base `path`; `fs_default` need not exist.
        recursive: Make `**` in the pattern match any number of folders.
        deferrable: Wait in a FileTrigger, without a process or pool slots.
        start_from_trigger: With `deferrable`, wait in the trigger immediately, without a first check.
        trigger_kwargs: Accepted as in Airflow; the trigger is made from the other arguments.
    """

    template_fields: Collection[str] = ("filepath",)
    ui_color = "#91818a"

    def __init__(
        self,
        *,
        filepath: Any,
        fs_conn_id: str = DEFAULT_CONNECTION,
        recursive: bool = False,
        deferrable: bool = False,
        start_from_trigger: bool = False,
        trigger_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filepath = filepath
        self.fs_conn_id = fs_conn_id
        self.recursive = recursive
        self.deferrable = deferrable
        self.waits_at_once = start_from_trigger

    @property
    def path(self) -> str:
        """The pattern joined to the connection's path."""
        from pathlib import Path

        from asynsched.authoring.connection import Connection

        try:
            base = Connection.get(self.fs_conn_id).extra_dejson.get("path", "")
        except AsynschedNotFoundException:
            if self.fs_conn_id != DEFAULT_CONNECTION:
                raise
            base = ""
        return str(Path(base) / self.filepath)

    def poke(self, context: Context) -> bool:
        pattern = self.path
        self.log.info("Poking for file %s", pattern)
        found = find_file(pattern, recursive=self.recursive)
        if found is not None:
            self.log.info("Found %s", found)
        return found is not None

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        if self.waits_at_once or not self.poke(context):
            self.defer(
                trigger=FileTrigger(self.path, recursive=self.recursive, poke_interval=self.poke_interval),
                method_name="execute_complete",
                timeout=self.timeout,
            )
        return None

    def execute_complete(self, context: Context, event: bool | None = None) -> None:
        """Continue when the trigger has found the file."""
        if not event:
            raise AsynschedException(f"task {self.task_id!r}: {self.filepath} was not found")
        self.log.info("Found %s", self.filepath)
