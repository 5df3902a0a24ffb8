"""Variable: a named value that tasks can read and write."""

from __future__ import annotations

import os

from asynsched.authoring.exceptions import AsynschedNotFoundException
from asynsched.authoring.params import NOTSET
from asynsched.authoring.supervisor import SupervisorNotFound, ask, current_supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENVIRONMENT_PREFIX = "AIRFLOW_VAR_"


class Variable:
    """A named string or JSON value that the scheduler stores.

    As in Airflow, the environment variable `AIRFLOW_VAR_<key>` overrides the stored value, and can also be read while a
    DAG file is parsed. Stored values are available only to tasks: a DAG file that is parsed sees the default.
    """

    def __init__(self, key: str, value: Any = None, description: str | None = None) -> None:
        self.key = key
        self.value = value
        self.description = description

    @classmethod
    def get(cls, key: str, default: Any = NOTSET, deserialize_json: bool = False) -> Any:
        """Return the value of a variable.

        Args:
            key: The variable's name.
            default: The result if the variable does not exist; also while a DAG file is parsed, even if it exists.
            deserialize_json: Parse the value as JSON.

        Raises:
            AsynschedNotFoundException: The variable does not exist, and there is no default.
            SupervisorError: A DAG file is being parsed, and there is no default; or the scheduler cannot answer.
        """
        value = os.environ.get(ENVIRONMENT_PREFIX + key.upper())
        if value is None:
            if default is not NOTSET and current_supervisor() is None:
                return default
            try:
                value = ask("variable_get", key=key)
            except SupervisorNotFound:
                if default is not NOTSET:
                    return default
                raise AsynschedNotFoundException(f"there is no variable {key!r}") from None
        if deserialize_json:
            import json

            return json.loads(value)
        return value

    @classmethod
    def set(cls, key: str, value: Any, description: str | None = None, serialize_json: bool = False) -> None:
        """Store a variable.

        Args:
            key: The variable's name.
            value: The value; stored as `str(value)`.
            description: A description for people.
            serialize_json: Store the value as JSON.

        Raises:
            SupervisorError: A DAG file is being parsed.
        """
        if serialize_json:
            import json

            value = json.dumps(value, indent=2)
        ask("variable_set", key=key, value=str(value), description=description)

    @classmethod
    def delete(cls, key: str) -> None:
        """Delete a variable. Raises SupervisorError if a DAG file is being parsed."""
        ask("variable_delete", key=key)

    def __repr__(self) -> str:
        return f"Variable({self.key!r})"
