"""The values outside of a DAG file on which the result of its parse depends."""

from typing import Literal

from msgspec import Struct


class AskedName(Struct, frozen=True):
    """A variable, a connection, or an option of Airflow's configuration for which the parse of a file has asked.

    `digest` changes with the value; it is empty if there was none. No value can be found from it, because that of a
    stored value is taken of its encrypted text.
    """

    kind: Literal["variable", "connection", "option"]
    name: str
    digest: str = ""
