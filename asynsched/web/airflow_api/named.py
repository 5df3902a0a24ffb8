"""What `/connections`, `/pools` and `/variables` share: things with names, changed one by one or many in one request.

A request for many things is one transaction, and one entry in the audit.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Generic, NamedTuple, TypeVar

import sqlalchemy as sa
from msgspec import UNSET, Struct
from sqlalchemy import Connection

from asynsched.bell import Hint
from asynsched.errors import AsynschedError
from asynsched.queries.context import Act
from asynsched.queries.paging import BadRequest
from asynsched.store.rows import existing_names
from asynsched.web.airflow_api.bulk import (
    Action,
    BulkActionResponse,
    BulkBody,
    BulkCreateAction,
    BulkResponse,
    BulkUpdateAction,
    answering,
)
from asynsched.web.endpoint import Call, Invalid

B = TypeVar("B", bound=Struct)
T = TypeVar("T")


class Kind(NamedTuple, Generic[B, T]):
    """How things of one kind are created, changed and deleted.

    Attributes:
        word: For one of them, in sentences and in the audit.
        name: The column of their names.
        key: Returns the name in a body; None: it has none.
        create: Creates one from a body.
        change: Changes fields of the one with a name, by the names that they have in its body.
        delete: Deletes the one with a name.
        immutable: The fields of a body that never change.
    """

    word: str
    name: sa.Column[str]
    key: Callable[[Any], str | None]
    create: Callable[[Connection, B], Act[T]]
    change: Callable[[Connection, str, dict[str, Any]], Act[T]]
    delete: Callable[[Connection, str], Act[T]]
    immutable: frozenset[str]


async def create_one(call: Call, kind: Kind[B, T], body: B) -> T:
    """Create a thing. Raises Invalid, AlreadyExists, BadRequest, and StoreError for values that cannot be stored."""
    _refuse_team(body)
    return await call.context.act(call.who.name, kind.create, body)


async def change_one(call: Call, kind: Kind[Any, T], name: str, body: Struct, update_mask: Iterable[str] | None) -> T:
    """Change a thing. Raises Invalid, NotFound, BadRequest, and StoreError for values that cannot be stored."""
    if kind.key(body) not in (None, name):
        raise BadRequest(f"The body names the {kind.word} {kind.key(body)!r}, and the path {name!r}.")
    return await call.context.act(call.who.name, kind.change, name, _changed_fields(kind, body, update_mask))


async def delete_one(call: Call, kind: Kind[Any, Any], name: str) -> None:
    """Delete a thing. Raises NotFound, and BadRequest for one that stays."""
    await call.context.act(call.who.name, kind.delete, name)


async def change_many(call: Call, kind: Kind[B, Any], body: BulkBody[B]) -> BulkResponse:
    """Create, change and delete things. Raises BadRequest if there are too many."""
    return await call.context.act(call.who.name, _carry_out, kind, body)


def _changed_fields(kind: Kind[Any, Any], body: Struct, update_mask: Iterable[str] | None) -> dict[str, Any]:
    """Return the fields that a request changes: those that it has, or of them those in the mask.

    Raises Invalid if the body names a team, and BadRequest if the mask names an immutable field.
    """
    _refuse_team(body)
    mask = set(update_mask or ())
    if forbidden := sorted(mask & kind.immutable):
        raise BadRequest(f"The update mask names {', '.join(forbidden)}, which cannot be changed.")
    given = {name: getattr(body, name) for name in body.__struct_fields__ if name not in kind.immutable}
    return {name: value for name, value in given.items() if value is not UNSET and (not mask or name in mask)}


def _refuse_team(body: Struct) -> None:
    if isinstance(getattr(body, "team_name", None), str):
        raise Invalid(("body", "team_name"), "asynsched has no teams: leave out team_name.")


def _carry_out(conn: Connection, kind: Kind[B, Any], body: BulkBody[B]) -> Act[BulkResponse]:
    actions, response = answering(body)
    for action, answer in actions:
        for name, do in _steps(conn, kind, action, answer):
            try:
                do()
            except AsynschedError as exc:
                answer.refuse(str(exc), HTTPStatus.BAD_REQUEST)
            else:
                answer.success.append(name)
    done = {word: answer.success for word in response.__struct_fields__ if (answer := getattr(response, word))}
    return Act(response, f"{kind.word}.bulk", Hint(kind.word), detail=done)


def _steps(
    conn: Connection, kind: Kind[B, Any], action: Action[B], answer: BulkActionResponse
) -> list[tuple[str, Callable[[], object]]]:
    """Return the step of an action for each of its things; if the action fails, none, and report why."""
    entities: dict[str, Any] = {one if isinstance(one, str) else str(kind.key(one)): one for one in action.entities}
    existing = existing_names(conn, kind.name, sorted(entities))
    missing = [name for name in entities if name not in existing]
    if isinstance(action, BulkCreateAction):
        if existing and action.action_on_existence == "fail":
            answer.refuse(_sentence(kind, sorted(existing), "already exist"), HTTPStatus.CONFLICT)
            return []
        wanted = entities if action.action_on_existence == "overwrite" else missing
        return [(name, _setting(conn, kind, name, entities[name], exists=name in existing)) for name in wanted]
    if missing and action.action_on_non_existence == "fail":
        answer.refuse(_sentence(kind, missing, "do not exist"), HTTPStatus.NOT_FOUND)
        return []
    found = [name for name in entities if name in existing]
    if isinstance(action, BulkUpdateAction):
        return [(name, _changing(conn, kind, name, entities[name], action.update_mask)) for name in found]
    return [(name, partial(kind.delete, conn, name)) for name in found]


def _sentence(kind: Kind[Any, Any], names: Sequence[str], what: str) -> str:
    return f"These {kind.word}s {what}: {', '.join(names)}."


def _setting(conn: Connection, kind: Kind[B, Any], name: str, body: B, *, exists: bool) -> Callable[[], object]:
    _refuse_team(body)
    return _changing(conn, kind, name, body) if exists else lambda: kind.create(conn, body)


def _changing(
    conn: Connection, kind: Kind[Any, Any], name: str, body: Struct, mask: Iterable[str] | None = None
) -> Callable[[], object]:
    return lambda: kind.change(conn, name, _changed_fields(kind, body, mask))
