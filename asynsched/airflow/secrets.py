"""The base class of secrets backends. asynsched asks none; tasks can use the classes of providers themselves."""

from __future__ import annotations

from asynsched.authoring.connection import Connection


class BaseSecretsBackend:
    """Base class of a store for connections and variables.

    Subclasses implement `get_conn_value` and `get_variable`.
    """

    @staticmethod
    def build_path(path_prefix: str, secret_id: str, sep: str = "/") -> str:
        """Return the place of a secret: prefix, separator, id."""
        return f"{path_prefix}{sep}{secret_id}"

    def get_conn_value(self, conn_id: str, team_name: str | None = None) -> str | None:
        """Return a connection as a URI or as JSON; None if there is none. Subclasses implement this."""
        raise NotImplementedError(f"{type(self).__name__} has no get_conn_value()")

    def get_variable(self, key: str, team_name: str | None = None) -> str | None:
        """Return a variable; None if there is none. Subclasses implement this."""
        raise NotImplementedError(f"{type(self).__name__} has no get_variable()")

    def get_config(self, key: str) -> str | None:
        """Return an option of the configuration; None if there is none."""
        del key
        return None

    def deserialize_connection(self, conn_id: str, value: str) -> Connection:
        """Return the connection that a URI or JSON describes. Raises AsynschedException if it is neither."""
        return Connection.from_text(value.strip(), conn_id)

    def get_connection(self, conn_id: str, team_name: str | None = None) -> Connection | None:
        """Return a connection; None if there is none."""
        # Backends that were written before Airflow 3.2 know no teams.
        value = self.get_conn_value(conn_id) if team_name is None else self.get_conn_value(conn_id, team_name)
        return self.deserialize_connection(conn_id, value) if value else None
