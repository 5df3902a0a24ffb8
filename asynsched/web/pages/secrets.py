"""`/pools`, `/variables`, `/connections`: shown, set and deleted. Secrets are written, and never shown."""

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from asynsched.errors import SecretsUnreadable
from asynsched.queries.paging import MOST_ROWS, BadRequest, Paging
from asynsched.queries.pools import delete_pool, list_pools, set_pool
from asynsched.queries.secrets import (
    VariableInfo,
    delete_connection,
    delete_variable,
    list_variables,
    set_connection,
    set_variable,
)
from asynsched.store.secrets import connection_names, variable_names
from asynsched.web.access import Permission
from asynsched.web.endpoint import Call
from asynsched.web.pages.page import PAGE, form_of, one, redirect, show, whole_number

CONNECTION_FIELDS = ("description", "host", "schema", "login", "password", "extra")
ALL = Paging(limit=MOST_ROWS)


@PAGE.endpoint("GET", "/pools")
async def pools(call: Call) -> Response:
    """Show the pools and their slots."""
    page = await call.place.ask(list_pools, paging=ALL)
    return await show(call, "pools.html", pools=page.items)


@PAGE.endpoint("POST", "/pools", permission=Permission.OPERATE)
async def change_pools(call: Call) -> Response:
    """Create, change or delete a pool."""
    fields = await form_of(call)
    name = one(fields, "name")
    if one(fields, "do") == "delete":
        await call.place.act(call.who.name, delete_pool, name)
        return redirect(call, "pools", said=f"The pool {name} is deleted.")
    slots = whole_number(fields, "slots", least=-1, most=2**31 - 1)
    await call.place.act(
        call.who.name, set_pool, name, slots, description=one(fields, "description"),
        include_deferred=one(fields, "include_deferred") == "yes",
    )  # fmt: skip
    return redirect(call, "pools", said=f"The pool {name} has {slots if slots >= 0 else 'unlimited'} slots.")


@PAGE.endpoint("GET", "/variables", permission=Permission.OPERATE)
async def variables(call: Call) -> Response:
    """Show the variables; of those whose names sound secret no value."""
    problem = ""
    rows: Sequence[VariableInfo]
    try:
        rows = (await call.place.ask(list_variables, paging=ALL)).items
    except SecretsUnreadable as exc:
        problem = str(exc)
        names = (await call.place.ask(variable_names))[:MOST_ROWS]
        rows = [VariableInfo(key, None, description) for key, description in names]
    return await show(call, "variables.html", rows=rows, problem=problem)


@PAGE.endpoint("POST", "/variables", permission=Permission.OPERATE)
async def change_variables(call: Call) -> Response:
    """Create, change or delete a variable."""
    fields = await form_of(call)
    key = one(fields, "key")
    if one(fields, "do") == "delete":
        await call.place.act(call.who.name, delete_variable, key)
        return redirect(call, "variables", said=f"The variable {key} is deleted.")
    value = fields.get("value", [""])[-1].replace("\r\n", "\n")
    await call.place.act(call.who.name, set_variable, key, value, one(fields, "description"))
    return redirect(call, "variables", said=f"The variable {key} is set.")


@PAGE.endpoint("GET", "/connections", permission=Permission.OPERATE)
async def connections(call: Call) -> Response:
    """Show names, types and descriptions of the connections: the rest is secret."""
    return await show(call, "connections.html", rows=(await call.place.ask(connection_names))[:MOST_ROWS])


@PAGE.endpoint("POST", "/connections", permission=Permission.ADMINISTER)
async def change_connections(call: Call) -> Response:
    """Create, replace or delete a connection."""
    fields = await form_of(call)
    conn_id = one(fields, "conn_id")
    if one(fields, "do") == "delete":
        await call.place.act(call.who.name, delete_connection, conn_id)
        return redirect(call, "connections", said=f"The connection {conn_id} is deleted.")
    await call.place.act(call.who.name, set_connection, conn_id, _parts(fields))
    return redirect(call, "connections", said=f"The connection {conn_id} is set.")


def _parts(fields: dict[str, list[str]]) -> dict[str, Any]:
    port = whole_number(fields, "port", least=0, most=2**16 - 1) if one(fields, "port") else None
    if not one(fields, "conn_type"):
        raise BadRequest("A connection needs a type, such as postgres.")
    given = {name: one(fields, name) or None for name in CONNECTION_FIELDS}
    return {"conn_type": one(fields, "conn_type"), "port": port, **given}
