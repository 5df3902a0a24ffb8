"""Connections and variables, which the scheduler stores and tasks read; and BaseHook, which uses a connection."""

from __future__ import annotations

import os
from contextvars import ContextVar

from asynsched.authoring.exceptions import AsynschedException, AsynschedNotFoundException
from asynsched.authoring.params import NOTSET
from asynsched.authoring.supervisor import (
    SupervisorError,
    SupervisorNotFound,
    ask,
    ask_or_none,
    current_supervisor,
    runs_tasks,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from typing import Any, Protocol
else:
    # `typing` is not worth its import to every DAG file.
    Protocol = object

CONNECTION_PREFIX = "AIRFLOW_CONN_"
VARIABLE_PREFIX = "AIRFLOW_VAR_"
"""Of environment variables with a connection or a variable."""
_BACKENDS = ("AIRFLOW__WORKERS__SECRETS_BACKEND", "AIRFLOW__SECRETS__BACKEND")
"""Environment variables that name the class of a secrets backend."""
EXTRA_KEY = "__extra__"
MAX_PORT = 65535
FIELDS = ("conn_type", "description", "host", "schema", "login", "password", "port", "extra")
_tested: ContextVar[Connection | None] = ContextVar("tested", default=None)
"""The connection that its own hook tests: it need not be stored."""


class Connection:
    """A connection, given in parts or as a URI.

    Args:
        conn_type: The kind of system, e.g. `postgres`.
        host: The host name or address.
        schema: The database, or its equivalent.
        login: The user name.
        password: The password; never shown.
        extra: Further parameters, as JSON.
        uri: `type://login:password@host:port/schema?extra`, instead of the parts.

    Raises:
        AsynschedException: The URI is invalid, or both a URI and parts are given.
        ValueError: The port is invalid.
    """

    def __init__(
        self,
        conn_id: str = "",
        conn_type: str | None = None,
        description: str | None = None,
        host: str | None = None,
        login: str | None = None,
        password: str | None = None,
        schema: str | None = None,
        port: int | str | None = None,
        extra: str | dict[str, Any] | None = None,
        uri: str | None = None,
    ) -> None:
        self.conn_id = conn_id
        if uri is not None:
            if any(part is not None for part in (conn_type, host, login, password, schema, port, extra)):
                raise AsynschedException(f"connection {conn_id!r}: give its uri, or its parts, not both")
            parts = _parts_of_uri(uri, conn_id)
            conn_type, host, login, password = parts["conn_type"], parts["host"], parts["login"], parts["password"]
            schema, port, extra = parts["schema"], parts["port"], parts["extra"]
        self.conn_type = conn_type
        self.description = description
        self.host = host
        self.schema = schema
        self.login = login
        self.password = password
        self.port = _port(port)
        if isinstance(extra, dict):
            import json

            extra = json.dumps(extra)
        self.extra = extra

    @classmethod
    def get(cls, conn_id: str) -> Connection:
        """Return a connection: from the environment variable `AIRFLOW_CONN_<conn_id>` (a URI or JSON), or as stored.

        A secrets backend, if one is configured, is asked first.

        Raises AsynschedNotFoundException if the connection does not exist, and SupervisorError if the scheduler cannot
        answer, or a DAG file is being parsed and the setting `parse.connections` does not allow the connection.
        Raises AsynschedException if the conn_id is no text.
        """
        _check_name("a conn_id", conn_id)
        tested = _tested.get()
        if tested is not None and tested.conn_id == conn_id:
            return tested
        backend = _secrets_backend()
        if backend is not None and (of_backend := backend.connection_of_backend(conn_id)) is not None:
            return of_backend
        text = os.environ.get(CONNECTION_PREFIX + conn_id.upper())
        if text is not None:
            return cls.from_text(text, conn_id)
        found = ask_or_none("connection_get", conn_id=conn_id)
        if found is None:
            raise AsynschedNotFoundException(f"there is no connection {conn_id!r}")
        return cls(conn_id, **{field: found.get(field) for field in FIELDS})

    get_connection_from_secrets = get

    @classmethod
    async def async_get(cls, conn_id: str) -> Connection:
        """Do as `get`, in a thread: for coroutines."""
        import asyncio

        return await asyncio.to_thread(cls.get, conn_id)

    @classmethod
    def from_text(cls, text: str, conn_id: str = "") -> Connection:
        """Return the connection that a JSON object or a URI describes. Raises AsynschedException if it is neither."""
        return cls.from_json(text, conn_id) if text.lstrip().startswith("{") else cls.from_uri(text, conn_id)

    @classmethod
    def from_uri(cls, uri: str, conn_id: str) -> Connection:
        """Return the connection that a URI describes. Raises AsynschedException if it is invalid."""
        return cls(conn_id, uri=uri)

    @classmethod
    def from_json(cls, value: str, conn_id: str = "") -> Connection:
        """Return the connection that a JSON object describes. Raises AsynschedException if it is invalid."""
        import json

        try:
            fields = json.loads(value)
        except ValueError:
            fields = None
        # The text is not shown: it may hold a password.
        if not isinstance(fields, dict):
            raise AsynschedException(f"connection {conn_id!r} is not a JSON object")
        unknown = sorted(set(fields) - {*FIELDS, "conn_id"})
        if unknown:
            raise AsynschedException(f"connection {conn_id!r} has unknown fields: {', '.join(unknown)}")
        fields.pop("conn_id", None)
        return cls(conn_id, **fields)

    @property
    def extra_dejson(self) -> dict[str, Any]:
        """`extra` as a dict; empty if it is not a JSON object."""
        import json

        try:
            value = json.loads(self.extra) if self.extra else {}
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def get_extra_dejson(self) -> dict[str, Any]:
        """Return `extra_dejson`."""
        return self.extra_dejson

    async def aextra_dejson(self) -> dict[str, Any]:
        """Return `extra_dejson`."""
        return self.extra_dejson

    def get_hook(self, *, hook_params: dict[str, Any] | None = None) -> Any:
        """Return the hook of an installed provider for this type of connection.

        Args:
            hook_params: Further arguments of the hook.

        Raises:
            AsynschedException: No installed provider has a hook for the type.
        """
        from asynsched.authoring.class_paths import imported
        from asynsched.authoring.providers import hook_paths

        path, _ = hook_paths().get(self.conn_type or "", ("", ""))
        if not path:
            raise AsynschedException(
                f"connection {self.conn_id!r}: no installed provider has a hook for connections of type"
                f" {self.conn_type!r}; `asynsched providers list` shows the types"
            )
        hook_class = imported(path)
        return hook_class(**{hook_class.conn_name_attr: self.conn_id}, **(hook_params or {}))

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the connection works, and a message, as its hook finds out. The hook gets this connection."""
        reset = _tested.set(self)
        try:
            hook = self.get_hook()
            if not hasattr(hook, "test_connection"):
                return False, f"the hook {type(hook).__name__} cannot test connections"
            worked: tuple[bool, str] = hook.test_connection()
        except Exception as exc:  # noqa: BLE001 - the message is the answer, as in Airflow
            return False, str(exc)
        finally:
            _tested.reset(reset)
        return worked

    async def aget_uri(self) -> str:
        """Return `get_uri()`."""
        return self.get_uri()

    def get_uri(self) -> str:
        """Return the connection as a URI.

        Source: Apache Airflow's `Connection.get_uri`.
        """
        from urllib.parse import quote

        text = f"{self.conn_type.lower().replace('_', '-')}://" if self.conn_type else "//"
        protocol, separator, host = (self.host or "").rpartition("://")
        if separator and protocol != self.conn_type:
            text += protocol + separator
        elif separator:
            host = self.host or ""
        authority = "" if self.login is None else quote(self.login, safe="")
        authority += "" if self.password is None else ":" + quote(self.password, safe="")
        if authority:
            authority += "@"
        address = quote(host, safe="") if host else ""
        if self.port is not None:
            address = f"{address or ('' if authority else '@')}:{self.port}"
        schema = f"/{quote(self.schema, safe='')}" if self.schema else ""
        return text + authority + address + schema + self._query()

    def _query(self) -> str:
        if not self.extra:
            return ""
        from urllib.parse import parse_qsl, urlencode

        extra = self.extra_dejson
        query = urlencode(extra) if all(isinstance(value, str) for value in extra.values()) else ""
        if not query or dict(parse_qsl(query, keep_blank_values=True)) != extra:
            query = urlencode({EXTRA_KEY: self.extra})
        return ("?" if self.schema else "/?") + query

    def to_dict(self, *, prune_empty: bool = False, validate: bool = True) -> dict[str, Any]:
        """Return the fields, with the extra as a dict; with `prune_empty`, without those that are None."""
        fields = {"conn_id": self.conn_id, **{name: getattr(self, name) for name in FIELDS if name != "extra"}}
        fields["extra"] = self.extra_dejson or ({} if not prune_empty else None)
        return {name: value for name, value in fields.items() if not (prune_empty and value is None)}

    def get_password(self) -> str | None:
        """Return the password."""
        return self.password

    def get_extra(self) -> str | None:
        """Return the extra, as JSON."""
        return self.extra

    def as_json(self) -> str:
        """Return the parts as JSON, without the conn_id; the extra is an object in it, as in Airflow."""
        import json

        return json.dumps({name: value for name, value in self.to_dict(prune_empty=True).items() if name != "conn_id"})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Connection):
            return NotImplemented
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Connection({self.conn_id!r}, conn_type={self.conn_type!r}, host={self.host!r})"


def _parts_of_uri(uri: str, conn_id: str) -> dict[str, Any]:
    from urllib.parse import parse_qsl, unquote, urlsplit

    scheme, separator, rest = uri.partition("://")
    if not separator or rest.count("://") > 1:
        raise AsynschedException(
            f"connection {conn_id!r}: its URI must look like type://login:password@host:port/schema"
        )
    protocol, separator, remainder = rest.partition("://")
    # `type://https://host` names the host's protocol; a later `://` is part of something else.
    has_protocol = bool(separator) and protocol.isalnum()
    try:
        split = urlsplit("//" + (remainder if has_protocol else rest))
        port = split.port
    except ValueError as exc:
        raise AsynschedException(f"connection {conn_id!r}: its URI is invalid; quote special characters") from exc
    host = unquote(_hostname(split.netloc))
    query = dict(parse_qsl(split.query, keep_blank_values=True))
    return {
        "conn_type": "postgres" if scheme == "postgresql" else scheme.replace("-", "_"),
        "host": f"{protocol}://{host}" if has_protocol and host else host,
        "login": unquote(split.username) if split.username else None,
        "password": unquote(split.password) if split.password else None,
        "schema": unquote(split.path[1:]),
        "port": port,
        "extra": query.get(EXTRA_KEY, query) or None,
    }


def _hostname(netloc: str) -> str:
    """Return the host as written; `urlsplit().hostname` is in lower case."""
    address = netloc.rpartition("@")[2]
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0]


def _port(port: int | str | None) -> int | None:
    if port is None or port == "":
        return None
    try:
        number = int(port)
    except ValueError:
        raise ValueError(f"a port must be a number, not {port!r}") from None
    if not 0 <= number <= MAX_PORT:
        raise ValueError(f"a port must be between 0 and {MAX_PORT}, not {number}")
    return number


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str):
        raise AsynschedException(f"{what} must be a text, not {name!r}")


class SecretsBackend(Protocol):
    """Asks the store of connections and variables that a user has configured; each answer is None if it has none."""

    def connection_of_backend(self, conn_id: str) -> Connection | None:
        """Return a connection."""

    def variable_of_backend(self, key: str) -> str | None:
        """Return the value of a variable."""


_load_backend: Callable[[], SecretsBackend] | None = None


def set_secrets_backend(load: Callable[[], SecretsBackend]) -> None:
    """Set what this process loads to ask a secrets backend, once a connection or a variable needs one."""
    global _load_backend
    _load_backend = load


def _secrets_backend() -> SecretsBackend | None:
    """Return the secrets backend to ask; None if none is configured.

    The top level of a DAG file gets none of its values, because a parse cannot, and tasks have to see the same DAG.
    """
    if _load_backend is None or not runs_tasks() or not any(map(os.environ.get, _BACKENDS)):
        return None
    return _load_backend()


class Variable:
    """A named string or JSON value that the scheduler stores.

    As in Airflow, a secrets backend and the environment variable `AIRFLOW_VAR_<key>` override the stored value. A DAG
    file can read a stored value at its top level, too, if the setting `parse.variables` allows that; a new value parses
    it again.
    """

    def __init__(self, key: str, value: Any = None, description: str | None = None) -> None:
        self.key = key
        self.value = value
        self.description = description

    @classmethod
    def get(cls, key: str, default: Any = NOTSET, deserialize_json: bool = False, *, default_var: Any = NOTSET) -> Any:
        """Return the value of a variable.

        Args:
            default: The result if the variable does not exist.
            deserialize_json: Parse the value as JSON.
            default_var: The name that Airflow 2 has for `default`.

        Raises:
            AsynschedNotFoundException: The variable does not exist, and there is no default.
            SupervisorError: The scheduler cannot answer, or a parse may not read it; or nothing can be asked, as in a
                program that imports a DAG file, and there is no default.
            AsynschedException: The key is no text.
        """
        _check_name("the key of a variable", key)
        if default_var is not NOTSET:
            from asynsched.authoring.airflow_2 import warn

            warn("default_var of Variable.get is now default")
            default = default_var
        backend = _secrets_backend()
        value = None if backend is None else backend.variable_of_backend(key)
        if value is None:
            value = os.environ.get(VARIABLE_PREFIX + key.upper())
        if value is None:
            if current_supervisor() is None:
                if default is not NOTSET:
                    return default
                raise SupervisorError(
                    f"the variable {key!r} cannot be asked for in this program: set the environment variable"
                    f" {VARIABLE_PREFIX}{key.upper()}, or give a default (`Variable.get({key!r}, default=…)`)"
                )
            try:
                value = ask("variable_get", key=key)
            except SupervisorNotFound:
                if default is not NOTSET:
                    return default
                raise AsynschedNotFoundException(
                    f"there is no variable {key!r}: set it (`asynsched variables set {key} VALUE`), or give a default"
                ) from None
        if deserialize_json:
            import json

            return json.loads(value)
        return value

    @classmethod
    def set(cls, key: str, value: Any, description: str | None = None, serialize_json: bool = False) -> None:
        """Store a variable.

        Args:
            value: The value; stored as `str(value)`.
            serialize_json: Store the value as JSON.

        Raises:
            SupervisorError: A DAG file is being parsed.
        """
        if serialize_json:
            import json

            value = json.dumps(value, indent=2)
        ask("variable_set", key=key, value=str(value), description=description)

    @classmethod
    def setdefault(cls, key: str, default: Any, description: str | None = None, deserialize_json: bool = False) -> Any:
        """Return the value of a variable; store `default` and return it if the variable does not exist.

        Args:
            deserialize_json: Parse a stored value, and store the default, as JSON.

        Raises:
            ValueError: The variable does not exist, and the default is None.
            SupervisorError: A DAG file is being parsed, and the variable does not exist.

        Source:
            `airflow.models.Variable.setdefault`; Airflow's SDK does not have it.
        """
        value = cls.get(key, default=None, deserialize_json=deserialize_json)
        if value is not None:
            return value
        if default is None:
            raise ValueError("Default Value must be set")
        cls.set(key, default, description=description, serialize_json=deserialize_json)
        return default

    @classmethod
    def keys(cls, prefix: str | None = None) -> list[str]:
        """Return the keys of the stored variables, or of those that begin so, sorted; no secrets backend is asked.

        Raises SupervisorError if a DAG file is being parsed.
        """
        keys: list[str] = ask("variable_keys", prefix=prefix or "")
        return keys

    @classmethod
    def delete(cls, key: str) -> None:
        """Delete a variable. Raises SupervisorError if a DAG file is being parsed."""
        ask("variable_delete", key=key)

    def __repr__(self) -> str:
        return f"Variable({self.key!r})"


class BaseHook:
    """Access to an external system through a connection."""

    _logger_name: str | None = None
    """For subclasses that do not call `__init__`, as some of the providers."""

    def __init__(self, logger_name: str | None = None) -> None:
        super().__init__()
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

    @classmethod
    async def aget_connection(cls, conn_id: str) -> Connection:
        """Do as `get_connection`, in a thread: for coroutines."""
        import asyncio

        return await asyncio.to_thread(cls.get_connection, conn_id)

    @classmethod
    def get_hook(cls, conn_id: str, hook_params: dict[str, Any] | None = None) -> Any:
        """Return the hook of an installed provider for a connection. Raises the errors of `Connection.get_hook`."""
        return cls.get_connection(conn_id).get_hook(hook_params=hook_params)

    @classmethod
    async def aget_hook(cls, conn_id: str, hook_params: dict[str, Any] | None = None) -> Any:
        """Do as `get_hook`: for coroutines."""
        return (await cls.aget_connection(conn_id)).get_hook(hook_params=hook_params)

    def get_conn(self) -> Any:
        """Return a client of the system. Subclasses implement this."""
        raise NotImplementedError(f"{type(self).__name__} has no get_conn()")

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Return nothing. Hooks override this for Airflow's form of connections, and call this one by `super()`."""
        return {}

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return nothing, as `get_connection_form_widgets` does."""
        return {}
