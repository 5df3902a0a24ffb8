"""Queries of `user` and `token`: who may sign in, and the secrets that stand for them."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Literal, get_args

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import AlreadyExists, NotFound
from asynsched.store.rows import as_new, as_struct, check_name, fetch_one, get_named, insert
from asynsched.store.schema import ID_LENGTH, TokenRow, UserRow, dag, token, user

TokenKind = Literal["session", "personal", "access", "link"]
SESSION, PERSONAL, ACCESS, LINK = get_args(TokenKind)
_PORTION = 1000
"""Expired tokens that one statement deletes."""


class Holder(Struct, frozen=True):
    """A token, and the roles of its user at this moment; None: the owner of the home."""

    token: TokenRow
    roles: tuple[str, ...] | None


def add_user(conn: Connection, row: UserRow) -> int:
    """Add a user, and return its id. Raises AlreadyExists, and StoreError for a name that cannot be stored."""
    check_name("user's name", row.name, ID_LENGTH)
    for role in row.roles:
        check_name("role", role, ID_LENGTH)
    if find_user(conn, row.name) is not None:
        raise AlreadyExists(f"There is a user {row.name!r} already.")
    return insert(conn, user, as_new(row))


def find_user(conn: Connection, name: str) -> UserRow | None:
    """Return a user; None if there is none of this name."""
    return fetch_one(conn, UserRow, sa.select(user).where(user.c.name == name))


def get_user(conn: Connection, name: str) -> UserRow:
    """Return a user. Raises NotFound with the nearest names."""
    return as_struct(UserRow, get_named(conn, "user", user.c.name, name))


def user_of_subject(conn: Connection, issuer: str, subject: str) -> UserRow | None:
    """Return the user whom a provider knows by this subject; None if there is none."""
    return fetch_one(conn, UserRow, sa.select(user).where(user.c.issuer == issuer, user.c.subject == subject))


def hold_user(conn: Connection, user_id: int) -> UserRow | None:
    """Return a user who stays the same until the end of this transaction; None if there is none by now."""
    return fetch_one(conn, UserRow, sa.select(user).where(user.c.id == user_id).with_for_update(read=True))


def change_user(conn: Connection, user_id: int, **values: object) -> None:
    """Set columns of a user."""
    conn.execute(sa.update(user).where(user.c.id == user_id).values(**values))


def delete_user(conn: Connection, user_id: int) -> None:
    """Delete a user, with all tokens and sessions."""
    conn.execute(sa.delete(user).where(user.c.id == user_id))


def add_token(conn: Connection, row: TokenRow) -> int:
    """Add a token, and return its id. Expired ones are deleted meanwhile."""
    check_name("token's owner", row.owner, ID_LENGTH)
    if row.label:
        check_name("token's label", row.label, ID_LENGTH)
    expired = sa.select(token.c.id).where(token.c.expires_at <= row.created_at).order_by(token.c.id).limit(_PORTION)
    conn.execute(sa.delete(token).where(token.c.id.in_(expired)))
    return insert(conn, token, as_new(row))


def find_holder(conn: Connection, digest: str, kinds: Collection[str], now: datetime) -> Holder | None:
    """Return the token of a secret with its user's roles; None if there is none, or it has expired."""
    row = conn.execute(
        sa.select(token, user.c.roles)
        .outerjoin_from(token, user, user.c.id == token.c.user_id)
        .where(token.c.digest == digest, token.c.kind.in_(kinds), token.c.expires_at > now)
    ).first()
    if row is None:
        return None
    found = TokenRow(**{name: getattr(row, name) for name in TokenRow.__struct_fields__})
    return Holder(found, None if found.user_id is None else tuple(row.roles))


def get_token(conn: Connection, token_id: int, kinds: Collection[str], owner: str | None) -> TokenRow:
    """Return a token of these kinds, of this user if one is named. Raises NotFound."""
    found = fetch_one(conn, TokenRow, sa.select(token).where(token.c.id == token_id, token.c.kind.in_(kinds)))
    if found is None or (owner is not None and found.owner != owner):
        raise NotFound("session" if SESSION in kinds else "token", str(token_id))
    return found


def delete_tokens(conn: Connection, token_ids: Sequence[int]) -> int:
    """Delete tokens. Returns how many there were."""
    return conn.execute(sa.delete(token).where(token.c.id.in_(token_ids))).rowcount


def delete_tokens_of(conn: Connection, user_id: int, kinds: Collection[str]) -> None:
    """Delete a user's tokens of these kinds."""
    conn.execute(sa.delete(token).where(token.c.user_id == user_id, token.c.kind.in_(kinds)))


def dags_of_roles(conn: Connection, roles: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Return what DAGs' `access_control` allows to these roles: the permissions, by dag_id, without other DAGs."""
    query = sa.select(dag.c.dag_id, dag.c.access_control).where(dag.c.access_control.is_not(None))
    allowed = {
        dag_id: tuple(access_control[role] for role in roles if role in access_control)
        for dag_id, access_control in conn.execute(query)
    }
    return {dag_id: permissions for dag_id, permissions in allowed.items() if permissions}


def roles_of_dags(conn: Connection) -> set[str]:
    """Return the roles that DAGs name in their `access_control`."""
    query = sa.select(dag.c.access_control).where(dag.c.access_control.is_not(None))
    return {role for access_control in conn.execute(query).scalars() for role in access_control}
