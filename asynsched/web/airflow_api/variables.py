"""`/variables`."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import Connection

from asynsched.queries.context import Act
from asynsched.queries.paging import Pattern
from asynsched.queries.secrets import (
    VariableInfo,
    change_variable,
    count_variables,
    create_variable,
    delete_variable,
    get_variable,
    list_variables,
)
from asynsched.store.schema import ID_LENGTH, variable
from asynsched.web.access import Permission
from asynsched.web.airflow_api.api import AIRFLOW_API, Names, OrderBy, PageQuery, listed, paging
from asynsched.web.airflow_api.bulk import BulkBody, BulkResponse
from asynsched.web.airflow_api.named import Kind, change_many, change_one, create_one, delete_one
from asynsched.web.endpoint import Call

Key = Annotated[str, Meta(min_length=1, max_length=ID_LENGTH)]
SORT_NAMES = {"key": "key", "id": "key", "variable_key": "key", "is_encrypted": "key", "team_name": "key"}


class VariableResponse(Struct, frozen=True, kw_only=True):
    """A variable; the mask `***` stands for secrets."""

    key: str
    value: str | None
    description: str | None
    is_encrypted: bool = True
    team_name: str | None = None


class VariableCollectionResponse(Struct, frozen=True):
    """A page of variables; a long value is null here."""

    variables: tuple[VariableResponse, ...]
    total_entries: int


class VariableBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A variable to create, or its changes. A value that is not a text is stored as JSON."""

    key: Key
    value: Any
    description: str | UnsetType | None = UNSET
    team_name: str | UnsetType | None = UNSET


def _create(conn: Connection, body: VariableBody) -> Act[VariableInfo]:
    return create_variable(conn, body.key, _text(body.value), body.description or "")


def _change(conn: Connection, key: str, fields: dict[str, Any]) -> Act[VariableInfo]:
    value = _text(fields["value"]) if "value" in fields else None
    description = (fields["description"] or "") if "description" in fields else None
    return change_variable(conn, key, value=value, description=description)


def _text(value: Any) -> str:
    """Return the text that stands for a value, as Airflow writes it."""
    return value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


KIND: Kind[VariableBody, VariableInfo] = Kind(
    "variable", variable.c.key, key=lambda body: body.key, create=_create, change=_change, delete=delete_variable,
    immutable=frozenset({"key", "team_name"}),
)  # fmt: skip


@AIRFLOW_API.endpoint("GET", "/variables", permission=Permission.OPERATE)
async def get_variables(
    call: Call,
    page: PageQuery,
    order_by: OrderBy = ("key",),
    variable_key_pattern: str | None = None,
    variable_key_prefix_pattern: str | None = None,
) -> VariableCollectionResponse:
    """List the variables."""
    key = Pattern(variable_key_pattern, variable_key_prefix_pattern)
    questions, asked = (list_variables, count_variables), paging(page, order_by, SORT_NAMES)
    return VariableCollectionResponse(*await listed(call, questions, key, page=asked, shown=variable_response))


@AIRFLOW_API.endpoint("GET", "/variables/{variable_key:path}", permission=Permission.OPERATE, errors=(404,))
async def get_one_variable(call: Call, variable_key: str) -> VariableResponse:
    """Show a variable."""
    return variable_response(await call.context.ask(get_variable, variable_key))


@AIRFLOW_API.endpoint("POST", "/variables", permission=Permission.OPERATE, status=201, errors=(409,))
async def post_variable(call: Call, body: VariableBody) -> VariableResponse:
    """Create a variable."""
    return variable_response(await create_one(call, KIND, body))


@AIRFLOW_API.endpoint("PATCH", "/variables/{variable_key:path}", permission=Permission.OPERATE, errors=(404,))
async def patch_variable(
    call: Call, variable_key: str, body: VariableBody, update_mask: Names | None = None
) -> VariableResponse:
    """Change a variable. The mask instead of a secret keeps it."""
    return variable_response(await change_one(call, KIND, variable_key, body, update_mask))


@AIRFLOW_API.endpoint(
    "DELETE", "/variables/{variable_key:path}", permission=Permission.OPERATE, status=204, errors=(404,)
)
async def remove_variable(call: Call, variable_key: str) -> None:
    """Delete a variable."""
    await delete_one(call, KIND, variable_key)


@AIRFLOW_API.endpoint("PATCH", "/variables", permission=Permission.OPERATE)
async def bulk_variables(call: Call, body: BulkBody[VariableBody]) -> BulkResponse:
    """Create, change and delete variables."""
    return await change_many(call, KIND, body)


def variable_response(info: VariableInfo) -> VariableResponse:
    """Return a variable in Airflow's form."""
    return VariableResponse(key=info.key, value=info.value, description=info.description or None)
