"""`/users`: who may use this, with roles, sessions and tokens; for administrators."""

from collections.abc import Mapping

from anyio.to_thread import run_sync
from starlette.responses import Response

from asynsched.errors import AsynschedError
from asynsched.queries.paging import BadRequest, Paging, Pattern
from asynsched.queries.users import (
    LONGEST_PASSWORD,
    ROLES,
    SHORTEST_PASSWORD,
    TokenFilter,
    about_roles,
    create_user,
    delete_token,
    delete_user,
    disable_user,
    end_session,
    get_user,
    hash_password,
    list_sessions,
    list_tokens,
    list_users,
    set_password,
    set_roles,
)
from asynsched.web.access import Permission
from asynsched.web.endpoint import Call
from asynsched.web.pages.page import NOTHING_TYPED, PAGE, Typed, form_of, one, redirect, refused, show, whole_number

PAGE_ROWS = 100
MOST_ID = 2**63 - 1


@PAGE.endpoint("GET", "/users", permission=Permission.ADMINISTER)
async def users(call: Call, q: str = "", after: str = "") -> Response:
    """Show the users, and the form of a new one."""
    return await _show_users(call, q, after)


async def _show_users(call: Call, q: str = "", after: str = "", typed: Typed = NOTHING_TYPED) -> Response:
    paging = Paging(limit=PAGE_ROWS, after=after or None)
    page = await call.context.ask(list_users, Pattern(q.strip() or None), paging)
    return await show(
        call, "users.html", page=page, query={"q": q}, roles=ROLES, shortest=SHORTEST_PASSWORD,
        longest=LONGEST_PASSWORD, typed=typed, chosen=_roles(typed.fields) if typed.fields else ROLES[:1],
        status=typed.status,
    )  # fmt: skip


@PAGE.endpoint("POST", "/users", permission=Permission.ADMINISTER)
async def create(call: Call) -> Response:
    """Add a user."""
    fields = await form_of(call)
    name = one(fields, "name")
    try:
        if not name:
            raise BadRequest("A user needs a name.")
        await call.context.act(
            call.who.name,
            create_user,
            name,
            _roles(fields),
            password=await _hashed(fields),
            now=call.context.clock.now(),
        )
    except AsynschedError as exc:
        return await _show_users(call, typed=refused(fields, exc))
    warning = await call.context.ask(about_roles, _roles(fields))
    return redirect(call, "users", name, said=f"The user {name} is added. {warning}".rstrip())


@PAGE.endpoint("GET", "/users/{name:path}", permission=Permission.ADMINISTER)
async def user(call: Call, name: str, sessions_after: str = "", tokens_after: str = "") -> Response:
    """Show a user's roles, sessions and tokens."""
    info, wanted = await call.context.ask(get_user, name), TokenFilter(now=call.context.clock.now(), owner=name)
    return await show(
        call, "user.html", user=info, roles=ROLES, shortest=SHORTEST_PASSWORD, longest=LONGEST_PASSWORD,
        sessions=await call.context.ask(list_sessions, wanted, Paging(limit=PAGE_ROWS, after=sessions_after or None)),
        tokens=await call.context.ask(list_tokens, wanted, Paging(limit=PAGE_ROWS, after=tokens_after or None)),
    )  # fmt: skip


@PAGE.endpoint("POST", "/users/{name:path}", permission=Permission.ADMINISTER)
async def change(call: Call, name: str) -> Response:
    """Give a user other roles or another password, end a session or token, disable or delete the user."""
    fields = await form_of(call)
    where, said = ["users", name], await _change(call, name, fields)
    return redirect(call, *(where[:1] if one(fields, "do") == "delete" else where), said=said)


async def _change(call: Call, name: str, fields: dict[str, list[str]]) -> str:
    """Do what a form says, and return it as a sentence. Raises BadRequest."""
    act, who = call.context.act, call.who.name
    match one(fields, "do"):
        case "roles" if roles := _roles(fields):
            await act(who, set_roles, name, roles)
            return f"{name} has the roles {', '.join(roles)}. {await call.context.ask(about_roles, roles)}".rstrip()
        case "roles" | "disable":
            await act(who, disable_user, name)
            return f"{name} is disabled."
        case "password":
            hashed = await _hashed(fields)
            if hashed is None:
                raise BadRequest("The new password is empty.")
            await act(who, set_password, name, password=hashed)
            return f"{name} has another password, and is signed out."
        case "session":
            ended = await act(who, end_session, _id(fields), name)
            return f"The session {ended.id} of {name} has ended."
        case "token":
            ended = await act(who, delete_token, _id(fields), name)
            return f"The token {ended.label or ended.id} of {name} has ended."
        case "delete":
            await act(who, delete_user, name)
            return f"The user {name} is deleted."
    raise BadRequest("Choose what to do with the user.")


def _roles(fields: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Return the roles that are ticked, and those that are typed."""
    return tuple(dict.fromkeys([*fields.get("role", []), *one(fields, "others").replace(",", " ").split()]))


def _id(fields: dict[str, list[str]]) -> int:
    return whole_number(fields, "id", least=1, most=MOST_ID)


async def _hashed(fields: dict[str, list[str]]) -> str | None:
    """Return the hash of the password in a form; None: there is none. Raises AsynschedError for a short one."""
    password = fields.get("password", [""])[-1]
    return await run_sync(hash_password, password) if password else None
