"""The hooks of Airflow's standard provider for folders and package indexes."""

from __future__ import annotations

import os

from asynsched.authoring.connection import BaseHook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asynsched.authoring.connection import Connection


class FSHook(BaseHook):
    """A folder: the `path` in a connection's extra."""

    conn_name_attr = "fs_conn_id"
    default_conn_name = "fs_default"
    conn_type = "fs"
    hook_name = "File (path)"

    def __init__(self, fs_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conn = self.get_connection(fs_conn_id)
        self.basepath: str = self.conn.extra_dejson.get("path", "")

    def get_conn(self) -> None:
        """Do nothing: a folder needs no client."""

    def get_path(self) -> str:
        """Return the folder's path; empty if the connection has none."""
        return self.basepath

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the folder is there, and a message."""
        if not self.basepath:
            return False, "The connection's extra has no path."
        exists = os.path.exists(self.basepath)  # noqa: PTH110 - pathlib would be loaded for this
        return exists, f"The path {self.basepath} {'exists' if exists else 'does not exist'}."


class PackageIndexHook(BaseHook):
    """An index of Python packages: the URL is a connection's host."""

    conn_name_attr = "pi_conn_id"
    default_conn_name = "package_index_default"
    conn_type = "package_index"
    hook_name = "Package Index (Python)"

    def __init__(self, pi_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pi_conn_id = pi_conn_id
        self.conn: Connection | None = None

    def get_conn(self) -> str:
        """Return the URL of the index: see `get_connection_url`."""
        return self.get_connection_url()

    def get_connection_url(self) -> str:
        """Return the URL of the index, with the connection's login and password.

        Raises:
            ValueError: The connection has no host.
        """
        from urllib.parse import quote, urlsplit

        connection = self.get_connection(self.pi_conn_id)
        if not connection.host:
            raise ValueError(f"connection {self.pi_conn_id!r}: its host must be the URL of a package index")
        url = urlsplit(connection.host)
        address = url.netloc.rpartition("@")[2]
        if connection.login:
            password = f":{quote(connection.password, safe='')}" if connection.password else ""
            address = f"{quote(connection.login, safe='')}{password}@{address}"
        return url._replace(netloc=address).geturl()
