"""`var.value.name`, `var.json.name` and `conn.name` in templates."""

from __future__ import annotations

from asynsched.authoring.connection import Connection
from asynsched.authoring.exceptions import AsynschedNotFoundException
from asynsched.authoring.params import NOTSET
from asynsched.authoring.variable import Variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class VariableAccessor:
    """Variables as attributes: as they are, or parsed as JSON."""

    def __init__(self, *, parse_json: bool) -> None:
        self._parse_json = parse_json

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Variable.get(name, deserialize_json=self._parse_json)

    def get(self, name: str, default: Any = NOTSET) -> Any:
        """Return a variable's value, or the default."""
        return Variable.get(name, default, deserialize_json=self._parse_json)


class VariableAccessors:
    """`var`: `var.value` and `var.json`, or, in Python code, `context["var"]["value"]`."""

    def __init__(self, *, value: VariableAccessor, json: VariableAccessor) -> None:
        self.value = value
        self.json = json

    def __getitem__(self, name: str) -> VariableAccessor:
        if name not in ("value", "json"):
            raise KeyError(f"var has 'value' and 'json', not {name!r}")
        accessor: VariableAccessor = getattr(self, name)
        return accessor


class ConnectionAccessor:
    """`conn`: connections as attributes."""

    def __getattr__(self, name: str) -> Connection:
        if name.startswith("__"):
            raise AttributeError(name)
        return Connection.get(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a connection, or the default."""
        try:
            return Connection.get(name)
        except AsynschedNotFoundException:
            return default
