"""FileSensor: waits for a file or a folder with files in it."""

from __future__ import annotations

from asynsched.authoring.exceptions import AsynschedNotFoundException
from asynsched.authoring.sensors.base import BaseSensorOperator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from asynsched.authoring.context import Context

DEFAULT_CONNECTION = "fs_default"


class FileSensor(BaseSensorOperator):
    """Waits until a file is there, or a folder that has a file in it at any depth.

    Args:
        filepath: Path, or glob pattern, relative to the connection's. (templated)
        fs_conn_id: Connection whose extra has the base `path`; `fs_default` need not exist.
        recursive: Let `**` in the pattern match any number of folders.
        deferrable: Taken as Airflow's argument of that name, but without effect: the sensor pokes, in its `mode`.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filepath = filepath
        self.fs_conn_id = fs_conn_id
        self.recursive = recursive
        self.deferrable = deferrable

    @property
    def path(self) -> str:
        """The pattern, joined to the connection's path."""
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
        import glob
        from pathlib import Path

        pattern = self.path
        self.log.info("Poking for file %s", pattern)
        for found in map(Path, glob.iglob(pattern, recursive=self.recursive)):  # noqa: PTH207 - absolute patterns
            if found.is_file() or any(inside.is_file() for inside in found.rglob("*")):
                self.log.info("Found %s", found)
                return True
        return False
