"""LocalFilesystemBackend: connections and variables in files, as JSON, YAML or lines of `name=value`."""

from __future__ import annotations

import json
from collections import namedtuple

from asynsched.airflow.exceptions import (
    AirflowFileParseException,
    AirflowUnsupportedFileTypeException,
    ConnectionNotUnique,
    VariableNotUnique,
)
from asynsched.airflow.secrets import BaseSecretsBackend
from asynsched.authoring.connection import FIELDS, Connection
from asynsched.authoring.exceptions import AsynschedException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_Error = namedtuple("_Error", "line_no message")


class LocalFilesystemBackend(BaseSecretsBackend):
    """Reads a file each time that it is asked; the ending says the format: `json`, `yaml`, `yml` or `env`.

    Args:
        variables_file_path: The file of variables.
        connections_file_path: The file of connections: a URI, JSON, or the fields of each.
        configs_file_path: The file of options.
    """

    def __init__(
        self,
        variables_file_path: str | None = None,
        connections_file_path: str | None = None,
        configs_file_path: str | None = None,
    ) -> None:
        super().__init__()
        self.variables_file = variables_file_path
        self.connections_file = connections_file_path
        self.configs_file = configs_file_path

    def get_connection(self, conn_id: str, team_name: str | None = None) -> Connection | None:
        del team_name
        return load_connections_dict(self.connections_file).get(conn_id) if self.connections_file else None

    def get_variable(self, key: str, team_name: str | None = None) -> Any:
        del team_name
        return load_variables(self.variables_file).get(key) if self.variables_file else None

    def get_config(self, key: str) -> Any:
        return load_configs_dict(self.configs_file).get(key) if self.configs_file else None


def load_variables(file_path: str) -> dict[str, Any]:
    """Return the variables in a file, by name.

    Raises:
        VariableNotUnique: One is there twice.
        AirflowFileParseException: The file has another form.
        AirflowUnsupportedFileTypeException: The ending is none of a known format.
    """
    return _single_values(file_path) if _ending(file_path) == "env" else _content(file_path)


load_configs_dict = load_variables


def load_connections_dict(file_path: str) -> dict[str, Connection]:
    """Return the connections in a file, by id.

    Raises:
        ConnectionNotUnique: One is there twice.
        AsynschedException: One is invalid.
        AirflowFileParseException: The file has another form.
        AirflowUnsupportedFileTypeException: The ending is none of a known format.
    """
    found = {}
    for conn_id, value in _content(file_path).items():
        if isinstance(value, list):
            if len(value) != 1:
                raise ConnectionNotUnique(f"{file_path}: there are {len(value)} connections {conn_id!r}")
            value = value[0]
        found[conn_id] = _connection(conn_id, value, file_path)
    return found


def values_of_files(
    variables_file: str | None, connections_file: str | None
) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Return variables as texts, and the fields of connections, by name. Raises the errors of the functions above."""
    variables = load_variables(variables_file) if variables_file else {}
    connections = load_connections_dict(connections_file) if connections_file else {}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in variables.items()}
    return texts, {name: {field: getattr(one, field) for field in FIELDS} for name, one in connections.items()}


def _connection(conn_id: str, value: Any, file_path: str) -> Connection:
    if isinstance(value, str):
        return Connection.from_text(value, conn_id)
    if not isinstance(value, dict):
        raise AsynschedException(f"{file_path}: connection {conn_id!r} must be a text or an object")
    given = dict(value)
    if "extra_dejson" in given:
        if "extra" in given:
            raise AsynschedException(f"{file_path}: connection {conn_id!r} has both extra and extra_dejson")
        given["extra"] = given.pop("extra_dejson")
    if given.pop("conn_id", conn_id) != conn_id:
        raise AsynschedException(f"{file_path}: connection {conn_id!r} has another conn_id inside")
    unknown = sorted(set(given) - {*FIELDS, "uri"})
    if unknown:
        raise AsynschedException(f"{file_path}: connection {conn_id!r} has unknown fields: {', '.join(unknown)}")
    return Connection(conn_id, **given)


def _single_values(file_path: str) -> dict[str, Any]:
    content = _content(file_path)
    twice = [name for name, values in content.items() if len(values) != 1]
    if twice:
        raise VariableNotUnique(f"{file_path}: there are several values of {', '.join(twice)}")
    return {name: values[0] for name, values in content.items()}


def _ending(file_path: str) -> str:
    return file_path.rpartition(".")[2].lower()  # also of a file that is named .env


def _content(file_path: str) -> dict[str, Any]:
    """Return the file's values by name; for `env`, a list of values for each name."""
    read = _READERS.get(_ending(file_path))
    if read is None:
        endings = ", ".join(f".{ending}" for ending in _READERS)
        raise AirflowUnsupportedFileTypeException(f"{file_path}: the file's name must end in one of {endings}")
    with open(file_path, encoding="utf-8-sig") as file:  # noqa: PTH123
        text = file.read()
    content, errors = read(text) if text else ({}, [_Error(1, "the file is empty")])
    if not errors and not isinstance(content, dict):
        errors = [_Error(1, "the file must hold an object")]
    if errors:
        raise AirflowFileParseException("The file of secrets cannot be read.", file_path, errors)
    return content


def _read_env(text: str) -> tuple[dict[str, list[str]], list[_Error]]:
    found: dict[str, list[str]] = {}
    errors = []
    for number, line in enumerate(text.splitlines(), start=1):
        name, _, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if name and value:
            found.setdefault(name, []).append(value)
        else:
            errors.append(_Error(number, "the line must be name=value"))
    return found, errors


def _read_json(text: str) -> tuple[Any, list[_Error]]:
    try:
        return json.loads(text), []
    except json.JSONDecodeError as exc:
        return {}, [_Error(exc.lineno, exc.msg)]


def _read_yaml(text: str) -> tuple[Any, list[_Error]]:
    from asynsched.airflow import yaml

    try:
        return yaml.safe_load(text), []
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 1
        return {}, [_Error(line, exc.problem or "this is not YAML")]
    except (yaml.YAMLError, ValueError) as exc:  # a control character, or a date that does not exist
        return {}, [_Error(1, str(exc))]


_READERS: dict[str, Callable[[str], tuple[Any, list[_Error]]]] = {
    "env": _read_env,
    "json": _read_json,
    "yaml": _read_yaml,
    "yml": _read_yaml,
}
