"""`/pools`, `/variables`, `/connections`: shown, set and deleted. Secrets are written, and never shown."""

from typing import Any

from starlette.responses import Response

from asynsched.errors import AsynschedError, SecretsUnreadable
from asynsched.queries.paging import BadRequest, Paging, Pattern
from asynsched.queries.pools import delete_pool, list_pools, set_pool
from asynsched.queries.secrets import (
    delete_connection,
    delete_variable,
    list_connection_names,
    list_variable_names,
    list_variables,
    set_connection,
    set_variable,
)
from asynsched.web.access import Permission
from asynsched.web.endpoint import Call
from asynsched.web.pages.page import NOTHING_TYPED, PAGE, Typed, form_of, one, redirect, refused, show, whole_number

PAGE_ROWS = 100
CONNECTION_FIELDS = ("description", "host", "schema", "login", "password", "extra")


@PAGE.endpoint("GET", "/pools")
async def pools(call: Call, q: str = "", after: str = "") -> Response:
    """Show the pools whose names contain `q`, and their slots."""
    return await _show_pools(call, q, after)


async def _show_pools(call: Call, q: str = "", after: str = "", typed: Typed = NOTHING_TYPED) -> Response:
    page = await call.context.ask(list_pools, _named(q), _page(after))
    return await show(call, "pools.html", page=page, query={"q": q}, typed=typed, status=typed.status)


@PAGE.endpoint("POST", "/pools", permission=Permission.OPERATE)
async def change_pools(call: Call) -> Response:
    """Create, change or delete a pool."""
    fields = await form_of(call)
    name = one(fields, "name")
    if one(fields, "do") == "delete":
        await call.context.act(call.who.name, delete_pool, name)
        return redirect(call, "pools", said=f"The pool {name} is deleted.")
    try:
        slots = whole_number(fields, "slots", least=-1, most=2**31 - 1)
        await call.context.act(
            call.who.name, set_pool, name, slots, description=one(fields, "description"),
            include_deferred=one(fields, "include_deferred") == "yes",
        )  # fmt: skip
    except AsynschedError as exc:
        return await _show_pools(call, typed=refused(fields, exc))
    return redirect(call, "pools", said=f"The pool {name} has {slots if slots >= 0 else 'unlimited'} slots.")


@PAGE.endpoint("GET", "/variables", permission=Permission.OPERATE)
async def variables(call: Call, q: str = "", after: str = "") -> Response:
    """Show the variables whose keys contain `q`; of those whose names sound secret no value."""
    return await _show_variables(call, q, after)


async def _show_variables(call: Call, q: str = "", after: str = "", typed: Typed = NOTHING_TYPED) -> Response:
    problem = ""
    try:
        page = await call.context.ask(list_variables, _named(q), _page(after))
    except SecretsUnreadable as exc:
        problem = str(exc)
        page = await call.context.ask(list_variable_names, _named(q), _page(after))
    return await show(
        call, "variables.html", page=page, query={"q": q}, problem=problem, typed=typed, status=typed.status
    )


@PAGE.endpoint("POST", "/variables", permission=Permission.OPERATE)
async def change_variables(call: Call) -> Response:
    """Create, change or delete a variable."""
    fields = await form_of(call)
    key = one(fields, "key")
    if one(fields, "do") == "delete":
        await call.context.act(call.who.name, delete_variable, key)
        return redirect(call, "variables", said=f"The variable {key} is deleted.")
    value = fields.get("value", [""])[-1].replace("\r\n", "\n")
    try:
        await call.context.act(call.who.name, set_variable, key, value, one(fields, "description"))
    except AsynschedError as exc:
        return await _show_variables(call, typed=refused(fields, exc))
    return redirect(call, "variables", said=f"The variable {key} is set.")


@PAGE.endpoint("GET", "/connections", permission=Permission.OPERATE)
async def connections(call: Call, q: str = "", after: str = "") -> Response:
    """Show names, types and descriptions of the connections whose names contain `q`: the rest is secret."""
    return await _show_connections(call, q, after)


async def _show_connections(call: Call, q: str = "", after: str = "", typed: Typed = NOTHING_TYPED) -> Response:
    page = await call.context.ask(list_connection_names, _named(q), _page(after))
    return await show(call, "connections.html", page=page, query={"q": q}, typed=typed, status=typed.status)


@PAGE.endpoint("POST", "/connections", permission=Permission.ADMINISTER)
async def change_connections(call: Call) -> Response:
    """Create, replace or delete a connection."""
    fields = await form_of(call)
    conn_id = one(fields, "conn_id")
    if one(fields, "do") == "delete":
        await call.context.act(call.who.name, delete_connection, conn_id)
        return redirect(call, "connections", said=f"The connection {conn_id} is deleted.")
    try:
        await call.context.act(call.who.name, set_connection, conn_id, _parts(fields))
    except AsynschedError as exc:
        return await _show_connections(call, typed=refused(fields, exc))
    return redirect(call, "connections", said=f"The connection {conn_id} is set.")


def _parts(fields: dict[str, list[str]]) -> dict[str, Any]:
    port = whole_number(fields, "port", least=0, most=2**16 - 1) if one(fields, "port") else None
    if not one(fields, "conn_type"):
        raise BadRequest("A connection needs a type, such as postgres.")
    given = {name: one(fields, name) or None for name in CONNECTION_FIELDS}
    return {"conn_type": one(fields, "conn_type"), "port": port, **given}


def _named(part: str) -> Pattern:
    return Pattern(part.strip() or None)


def _page(after: str) -> Paging:
    return Paging(limit=PAGE_ROWS, after=after or None)
