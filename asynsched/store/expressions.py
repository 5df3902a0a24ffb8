"""Expressions that each database writes in its own way: lengths of time, texts in JSON, the tasks in versions."""

from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from asynsched.store.schema import dag_version

T = TypeVar("T")


class _PerDatabase(FunctionElement[T]):
    """An expression in the SQL of each database. `{0}` stands for its first part."""

    sqlite: str
    postgresql: str


@compiles(_PerDatabase, "sqlite", "postgresql")
def _compiled(element: Any, compiler: Any, **options: Any) -> str:
    template: str = getattr(element, compiler.dialect.name)
    return template.format(*(compiler.process(part, **options) for part in element.clauses))


class seconds_between(_PerDatabase[float]):  # noqa: N801 - it reads as the function that it is
    """The seconds from one instant's column to another's; NULL if one of them is."""

    type = sa.Float()
    inherit_cache = True
    sqlite = "(({1} - {0}) / 1000000.0)"
    postgresql = "CAST(EXTRACT(EPOCH FROM ({1} - {0})) AS DOUBLE PRECISION)"


class as_text(_PerDatabase[str]):  # noqa: N801 - as above
    """The JSON of a column as a text."""

    type = sa.Text()
    inherit_cache = True
    sqlite = "CAST({0} AS TEXT)"
    postgresql = "convert_from({0}, 'UTF8')"


class json_item(_PerDatabase[str]):  # noqa: N801 - as above
    """The item of a name in the JSON object of a column, as a text; NULL if there is none."""

    type = sa.Text()
    inherit_cache = True
    sqlite = "CAST(json_extract({0}, '$.' || {1}) AS TEXT)"
    postgresql = "(CAST({0} AS jsonb) ->> {1})"

    def __init__(self, column: sa.ColumnElement[Any], name: str) -> None:
        super().__init__(as_text(column), sa.literal(name, sa.Text()))


class lists_text(_PerDatabase[bool]):  # noqa: N801 - as above
    """Whether the JSON list of a column, given as a text, has a text."""

    type = sa.Boolean()
    inherit_cache = True
    sqlite = "EXISTS (SELECT 1 FROM json_each({0}) AS item WHERE item.value = {1})"
    postgresql = "(CAST({0} AS jsonb) @> to_jsonb(CAST({1} AS text)))"


def has_text(column: sa.ColumnElement[Any], text: str) -> sa.ColumnElement[bool]:
    """Return the condition that the JSON list of a column has a text."""
    return lists_text(as_text(column), sa.literal(text, sa.Text()))


_OF_TASK = ("task_id", "operator", "group_id", "operator_name", "display_name")
_TASKS = {
    "sqlite": "SELECT v.id AS version_id, json_extract(t.value, '$.task_id') AS task_id,"
    " json_extract(t.value, '$.task_type') AS operator, json_extract(t.value, '$.group_id') AS group_id,"
    " coalesce(json_extract(t.value, '$.operator_name'), json_extract(t.value, '$.task_type')) AS operator_name,"
    " coalesce(json_extract(t.value, '$.display_name'), json_extract(t.value, '$.task_id')) AS display_name"
    " FROM dag_version AS v, json_each(CAST(v.serialized AS TEXT), '$.tasks') AS t",
    "postgresql": "SELECT v.id AS version_id, t ->> 'task_id' AS task_id, t ->> 'task_type' AS operator,"
    " t ->> 'group_id' AS group_id, coalesce(t ->> 'operator_name', t ->> 'task_type') AS operator_name,"
    " coalesce(t ->> 'display_name', t ->> 'task_id') AS display_name"
    " FROM dag_version AS v, jsonb_array_elements(CAST(convert_from(v.serialized, 'UTF8') AS jsonb) -> 'tasks') AS t",
}


def tasks_of_versions(dialect: str) -> sa.Subquery:
    """Return the tasks of all versions: `version_id` and the columns of `_OF_TASK`.

    The database reads them from the JSON of versions: nobody decodes a whole one to know the class of a task. Name
    versions in the query, or it reads all of them.
    """
    columns = {"version_id": dag_version.c.id.type, **dict.fromkeys(_OF_TASK, sa.Text())}
    return sa.text(_TASKS[dialect]).columns(**columns).subquery("task_of_version")
