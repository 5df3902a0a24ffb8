"""Questions about users, their sessions and tokens, and actions on them. Secrets are stored as hashes only."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Literal, get_args

import sqlalchemy as sa
from msgspec import UNSET, Struct, UnsetType
from sqlalchemy import Connection

from asynsched.clock import new_token
from asynsched.errors import AsynschedError, NotFound, did_you_mean
from asynsched.queries.context import Act
from asynsched.queries.paging import FIRST_PAGE, BadRequest, Page, Paging, Pattern, Sorting, select_page
from asynsched.store import users as store
from asynsched.store.dags.dags import find_dag
from asynsched.store.rows import as_struct, near_names
from asynsched.store.schema import TokenRow, UserRow, token, user

ROLES = ("viewer", "operator", "admin")
"""The roles with rights to everything. Any other name has only the rights that DAGs' `access_control` gives it."""
Scope = Literal["view", "operate", "administer"]
"""The most that a token allows: the name of a Permission."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""The least first."""
SECRET_PREFIX = "asynsched_"  # noqa: S105 - finders of leaked secrets know it by this
LONGEST_TOKEN = timedelta(days=3660)
LINK_LIFETIME = timedelta(days=1)


SORTING = Sorting({"name": user.c.name, "created_at": user.c.created_at}, key=user.c.name, usual=("name",))
_USERS: sa.Select[Any] = sa.select(user)
TOKEN_SORTING = Sorting(
    {name: token.c[name] for name in ("id", "owner", "label", "created_at", "expires_at")},
    key=token.c.id,
    usual=("owner",),
)
_TOKENS: sa.Select[Any] = sa.select(token)
MOST_SHOWN = 20
"""Roles in a message."""
SHORTEST_PASSWORD, LONGEST_PASSWORD = 8, 1000


class WrongCredentials(AsynschedError):
    """A password, a link or a session is not valid."""


class UserInfo(Struct, frozen=True, kw_only=True):
    """A user.

    Attributes:
        roles: Empty: the user is disabled.
        sign_in: How: `password`, `provider`, or `none`: only tokens and a proxy's header.
    """

    name: str
    roles: tuple[str, ...]
    sign_in: str
    created_at: datetime


class TokenInfo(Struct, frozen=True, kw_only=True):
    """A token or session, without its secret.

    Attributes:
        kind: `session` (in a browser), `personal`, `access` (of `/auth/token`) or `link` (signs in once).
        dag_ids: The only DAGs that it is for; None: all.
    """

    id: int
    kind: str
    owner: str
    label: str
    scope: str
    dag_ids: tuple[str, ...] | None
    created_at: datetime
    expires_at: datetime


class NewToken(Struct, frozen=True):
    """A token with its secret, which is shown this once. Its text does not contain it."""

    secret: str
    info: TokenInfo

    def __repr__(self) -> str:
        return f"NewToken(…, {self.info!r})"


def new_secret() -> str:
    """Return a new secret of a token: 128 random bits behind a prefix."""
    return f"{SECRET_PREFIX}{new_token()}"


def digest_of(secret: str) -> str:
    """Return the stored digest of a secret. It is random and long, so one round of a fast hash protects it."""
    return sha256(secret.encode(errors="replace")).hexdigest()


# Questions


def list_users(conn: Connection, name: Pattern, paging: Paging = FIRST_PAGE) -> Page[UserInfo]:
    """Return users of such names. Raises BadRequest."""
    rows, after = select_page(conn, _USERS.where(*name.holds_for(user.c.name)), SORTING, paging)
    return Page(tuple(_user_info(as_struct(UserRow, row)) for row in rows), after)


def get_user(conn: Connection, name: str) -> UserInfo:
    """Return a user. Raises NotFound with the nearest names."""
    return _user_info(store.get_user(conn, name))


class TokenFilter(Struct, frozen=True, kw_only=True):
    """Which tokens or sessions are wanted: those that have not expired at `now`.

    Attributes:
        owner: Only those of a user of this name; None: of all.
        user_id: Only those of this user, or, if it is None, of the home's owner, who may have a user's name.
    """

    now: datetime
    owner: str | None = None
    user_id: int | UnsetType | None = UNSET


def list_tokens(conn: Connection, wanted: TokenFilter, paging: Paging = FIRST_PAGE) -> Page[TokenInfo]:
    """Return tokens for programs, by default by their owners and ids. Raises BadRequest."""
    return _list(conn, (store.PERSONAL, store.ACCESS), wanted, paging)


def list_sessions(conn: Connection, wanted: TokenFilter, paging: Paging = FIRST_PAGE) -> Page[TokenInfo]:
    """Return sessions in browsers, by default by their owners and ids. Raises BadRequest."""
    return _list(conn, (store.SESSION,), wanted, paging)


def _list(conn: Connection, kinds: Sequence[store.TokenKind], wanted: TokenFilter, paging: Paging) -> Page[TokenInfo]:
    query = _TOKENS.where(token.c.kind.in_(kinds), token.c.expires_at > wanted.now)
    if wanted.owner is not None:
        query = query.where(token.c.owner == wanted.owner)
    if wanted.user_id is not UNSET:
        query = query.where(token.c.user_id == wanted.user_id)
    rows, after = select_page(conn, query, TOKEN_SORTING, paging)
    return Page(tuple(_token_info(as_struct(TokenRow, row)) for row in rows), after)


def about_roles(conn: Connection, roles: Sequence[str]) -> str:
    """Return a warning about roles that give no right, because no DAG names them; empty if all of them give one.

    They are accepted all the same: the DAGs may come later.
    """
    of_dags = store.roles_of_dags(conn)
    unknown = [role for role in roles if role not in of_dags and role not in ROLES]
    if not unknown:
        return ""
    known = [*ROLES, *sorted(of_dags.difference(ROLES))]
    names = ", ".join(map(repr, unknown))
    what, them = (f"The role {names} gives", "it") if len(unknown) == 1 else (f"The roles {names} give", "them")
    return (
        f"{what} no right so far: no DAG names {them} in its access_control."
        f"{did_you_mean(near_names(unknown[0], known))} Known roles: {', '.join(known[:MOST_SHOWN])}."
    )


# Actions


def create_user(
    conn: Connection, name: str, roles: Sequence[str], *, password: str | None, now: datetime
) -> Act[UserInfo]:
    """Add a user. Raises AlreadyExists, and StoreError for a name that cannot be stored.

    Args:
        password: Its hash; None: the user has none.
    """
    row = UserRow(name=name, roles=list(dict.fromkeys(roles)), password=password, created_at=now)
    store.add_user(conn, row)
    return Act(_user_info(row), "user.create", detail={"user": name, "roles": row.roles})


def set_roles(conn: Connection, name: str, roles: Sequence[str]) -> Act[UserInfo]:
    """Give a user other roles, which count from the next request on. Raises NotFound."""
    store.change_user(conn, store.get_user(conn, name).id, roles=list(dict.fromkeys(roles)))
    return Act(_user_info(store.get_user(conn, name)), "user.set_role", detail={"user": name, "roles": list(roles)})


def set_password(conn: Connection, name: str, *, password: str) -> Act[UserInfo]:
    """Give a user another password, by its hash, and end the sessions and access tokens. Raises NotFound.

    Personal tokens stay: they do not come from the password.
    """
    row = store.get_user(conn, name)
    if row.issuer:
        raise AsynschedError(f"{name!r} signs in at {row.issuer}, so there is no password to set.")
    store.change_user(conn, row.id, password=password)
    store.delete_tokens_of(conn, row.id, (store.SESSION, store.ACCESS))
    return Act(_user_info(store.get_user(conn, name)), "user.set_password", detail={"user": name})


def disable_user(conn: Connection, name: str) -> Act[UserInfo]:
    """Take all roles from a user, and end the sessions and tokens; `set_roles` undoes the former. Raises NotFound."""
    row = store.get_user(conn, name)
    store.change_user(conn, row.id, roles=[])
    store.delete_tokens_of(conn, row.id, (store.SESSION, store.ACCESS, store.PERSONAL))
    return Act(get_user(conn, name), "user.disable", detail={"user": name})


def delete_user(conn: Connection, name: str) -> Act[None]:
    """Delete a user, with all sessions and tokens. Raises NotFound."""
    store.delete_user(conn, store.get_user(conn, name).id)
    return Act(None, "user.delete", detail={"user": name})


def sign_in(
    conn: Connection, secret: str, owner: str, *, user_id: int | None, now: datetime, lasts: timedelta,
    verified: UserRow | None = None,
) -> Act[None]:  # fmt: skip
    """Begin a session of a user, or of the home's owner (no `user_id`), whose secret is in a browser's cookie.

    Args:
        verified: The user whose password was right.

    Raises:
        WrongCredentials: This user has another password by now, or is disabled.
    """
    _hold(conn, verified)
    row = _token(secret, store.SESSION, owner, user_id=user_id, now=now, lasts=lasts)
    store.add_token(conn, row)
    return Act(None, "user.sign_in", detail={"user": owner})


def _hold(conn: Connection, verified: UserRow | None) -> None:
    """Keep a user as they were when their password was verified, which takes a while, to the end of the transaction."""
    if verified is None:
        return
    found = store.hold_user(conn, verified.id)
    if found is None or found.password != verified.password or not found.roles:
        raise WrongCredentials("The password was changed, or the user disabled, at this moment.")


def sign_in_from_provider(
    conn: Connection, secret: str, issuer: str, subject: str, name: str, roles: Sequence[str], *, now: datetime,
    lasts: timedelta,
) -> Act[None]:  # fmt: skip
    """Begin a session of a user whom a provider has named; a new user is added.

    Args:
        roles: Those that the provider gives now, which replace the former ones, unless the user is disabled.

    Raises:
        WrongCredentials: Somebody else has this name here, or the user is disabled.
    """
    row = store.user_of_subject(conn, issuer, subject)
    if row is None:
        if store.find_user(conn, name) is not None:
            raise WrongCredentials(f"There is another user {name!r} here, who does not sign in at {issuer}.")
        new = UserRow(name=name, roles=list(roles), issuer=issuer, subject=subject, created_at=now)
        return sign_in(conn, secret, name, user_id=store.add_user(conn, new), now=now, lasts=lasts)
    if not row.roles:
        raise WrongCredentials(f"{row.name} is disabled.")
    if row.roles != list(roles):
        store.change_user(conn, row.id, roles=list(roles))
    return sign_in(conn, secret, row.name, user_id=row.id, now=now, lasts=lasts)


def use_link(conn: Connection, link: str, secret: str, *, now: datetime, lasts: timedelta) -> Act[None]:
    """Begin a session of the home's owner by the secret of a link, which ends with that. Raises WrongCredentials."""
    holder = store.find_holder(conn, digest_of(link), (store.LINK,), now)
    if holder is None or not store.delete_tokens(conn, [holder.token.id]):
        raise WrongCredentials("The link was used at this moment by another browser.")
    return sign_in(conn, secret, holder.token.owner, user_id=None, now=now, lasts=lasts)


def sign_out(conn: Connection, secret: str, *, now: datetime) -> Act[None]:
    """End the session of a secret. Raises WrongCredentials if there is none."""
    holder = store.find_holder(conn, digest_of(secret), (store.SESSION,), now)
    if holder is None:
        raise WrongCredentials("The session has ended already.")
    store.delete_tokens(conn, [holder.token.id])
    return Act(None, "user.sign_out", detail={"user": holder.token.owner})


def create_link(conn: Connection, secret: str, owner: str, *, now: datetime) -> Act[None]:
    """Make a link that signs the home's owner in, once. A user who may write the database may do everything anyway."""
    store.add_token(conn, _token(secret, store.LINK, owner, user_id=None, now=now, lasts=LINK_LIFETIME))
    return Act(None, "user.create_link", detail={"user": owner})


def create_access_token(
    conn: Connection, secret: str, owner: str, *, user_id: int | None, scope: str, dag_ids: Sequence[str] | None,
    now: datetime, lasts: timedelta, verified: UserRow | None = None,
) -> Act[None]:  # fmt: skip
    """Make a token of `/auth/token`, as Airflow's clients ask for it.

    `verified`, and the error of a user who has changed: as in `sign_in`.
    """
    _hold(conn, verified)
    row = _token(secret, store.ACCESS, owner, user_id=user_id, scope=scope, dag_ids=dag_ids, now=now, lasts=lasts)
    store.add_token(conn, row)
    return Act(None, "token.create", detail={"user": owner, "kind": row.kind})


def create_token(
    conn: Connection, owner: str, label: str, *, user_id: int | None, scope: str, dag_ids: Sequence[str] | None,
    now: datetime, lasts: timedelta,
) -> Act[NewToken]:  # fmt: skip
    """Make a personal token, and return it with its secret.

    Raises:
        NotFound: There is no such DAG.
        AsynschedError: The scope is none, or the time is not above 0 and at most ten years.
    """
    if scope not in SCOPES:
        raise AsynschedError(f"A token's scope is {', '.join(SCOPES)}, not {scope!r}.")
    if not timedelta() < lasts <= LONGEST_TOKEN:
        raise AsynschedError(f"A token lasts up to {LONGEST_TOKEN.days} days.")
    for dag_id in dag_ids or ():
        find_dag(conn, dag_id)
    secret = new_secret()
    row = _token(
        secret, store.PERSONAL, owner, user_id=user_id, label=label, scope=scope, dag_ids=dag_ids, now=now, lasts=lasts
    )
    token_id = store.add_token(conn, row)
    detail = {"user": owner, "id": token_id, "label": label, "scope": scope, "dag_ids": row.dag_ids}
    return Act(NewToken(secret, _token_info(row, token_id)), "token.create", detail=detail)


def create_token_of(
    conn: Connection, name: str, label: str, *, scope: str, dag_ids: Sequence[str] | None, now: datetime,
    lasts: timedelta,
) -> Act[NewToken]:  # fmt: skip
    """Make a personal token of a user. Raises NotFound with the nearest names, and the errors of `create_token`."""
    user_id = store.get_user(conn, name).id
    return create_token(conn, name, label, user_id=user_id, scope=scope, dag_ids=dag_ids, now=now, lasts=lasts)


class Issuer(Struct, frozen=True):
    """A user who makes tokens, and the most that these may allow, by the user's own rights and credential.

    Attributes:
        user_id: None: the owner of the home, or the program that embeds the scheduler.
        dag_ids: Only for these DAGs; None: for all.
        until: When the user's own token ends; None: the user has none, but a session.
    """

    owner: str
    user_id: int | None
    scope: str
    dag_ids: tuple[str, ...] | None = None
    until: datetime | None = None

    def own(self, now: datetime) -> TokenFilter:
        """Return the filter for the issuer's own tokens or sessions."""
        return TokenFilter(now=now, owner=self.owner, user_id=self.user_id)

    def allows(self, scope: str, dag_ids: Collection[str] | None) -> bool:
        """Return whether a token of this scope, for these DAGs, allows no more than this user may."""
        is_within = self.dag_ids is None or (dag_ids is not None and set(dag_ids) <= set(self.dag_ids))
        return SCOPES.index(scope) <= SCOPES.index(self.scope) and is_within


def issue_token(
    conn: Connection, issuer: Issuer, label: str, *, scope: str, dag_ids: Sequence[str] | None, now: datetime,
    lasts: timedelta,
) -> Act[NewToken]:  # fmt: skip
    """Make a personal token for its issuer. If the issuer uses a token, the new one expires no later than that.

    Args:
        dag_ids: None: all that the issuer may see.

    Raises:
        BadRequest: The token would allow more than the issuer may.
        NotFound, AsynschedError: As `create_token`.
    """
    among = issuer.dag_ids if dag_ids is None else dag_ids
    if scope in SCOPES and not issuer.allows(scope, among):
        most = "" if issuer.dag_ids is None else f", with the DAGs {', '.join(issuer.dag_ids) or 'of nobody'}"
        raise BadRequest(f"A token that you make allows what you may yourself: at most {issuer.scope}{most}.")
    if issuer.until is not None:
        lasts = min(lasts, issuer.until - now)
    return create_token(
        conn, issuer.owner, label, user_id=issuer.user_id, scope=scope, dag_ids=among, now=now, lasts=lasts
    )


def revoke_token(conn: Connection, issuer: Issuer, token_id: int) -> Act[TokenInfo]:
    """End a token of the issuer. Raises NotFound, and BadRequest if it allows more than the issuer's own token."""
    row = store.get_token(conn, token_id, (store.PERSONAL, store.ACCESS), issuer.owner)
    if row.user_id != issuer.user_id:
        raise NotFound("token", str(token_id))
    if issuer.until is not None and not issuer.allows(row.permission, row.dag_ids):
        raise BadRequest(f"The token {token_id} allows more than the one that you use, which cannot end it.")
    return delete_token(conn, token_id, issuer.owner)


def end_own_session(conn: Connection, issuer: Issuer, session_id: int) -> Act[TokenInfo]:
    """Sign out one of the issuer's browsers. Raises the errors of `revoke_token`."""
    row = store.get_token(conn, session_id, (store.SESSION,), issuer.owner)
    if row.user_id != issuer.user_id:
        # The owner of the home and a user may have the same name.
        raise NotFound("session", str(session_id))
    if issuer.until is not None and not issuer.allows(row.permission, row.dag_ids):
        raise BadRequest(f"The session {session_id} allows more than the token that you use, which cannot end it.")
    return end_session(conn, session_id, issuer.owner)


def hash_password(password: str) -> str:
    """Return the Argon2id hash of a password. Blocks for tens of milliseconds. Raises AsynschedError."""
    from argon2 import PasswordHasher  # loaded only where a password is set

    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise AsynschedError(f"A password has {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters.")
    return PasswordHasher().hash(password)


def delete_token(conn: Connection, token_id: int, owner: str | None = None) -> Act[TokenInfo]:
    """End a token at once; if an owner is named, only one of theirs. Raises NotFound."""
    row = store.get_token(conn, token_id, (store.PERSONAL, store.ACCESS), owner)
    store.delete_tokens(conn, [row.id])
    return Act(_token_info(row), "token.delete", detail={"user": row.owner, "id": row.id, "label": row.label})


def end_session(conn: Connection, session_id: int, owner: str | None = None) -> Act[TokenInfo]:
    """Sign a browser out; if an owner is named, only one of theirs. Raises NotFound."""
    row = store.get_token(conn, session_id, (store.SESSION,), owner)
    store.delete_tokens(conn, [row.id])
    return Act(_token_info(row), "user.end_session", detail={"user": row.owner, "id": row.id})


def _token(
    secret: str, kind: store.TokenKind, owner: str, *, user_id: int | None, now: datetime, lasts: timedelta,
    label: str = "", scope: str = SCOPES[-1], dag_ids: Sequence[str] | None = None,
) -> TokenRow:  # fmt: skip
    return TokenRow(
        digest=digest_of(secret), kind=kind, user_id=user_id, owner=owner, label=label, permission=scope,
        dag_ids=None if dag_ids is None else sorted(set(dag_ids)), created_at=now, expires_at=now + lasts,
    )  # fmt: skip


def _user_info(row: UserRow) -> UserInfo:
    sign_in = "provider" if row.issuer else "password" if row.password else "none"
    return UserInfo(name=row.name, roles=tuple(row.roles), sign_in=sign_in, created_at=row.created_at)


def _token_info(row: TokenRow, token_id: int | None = None) -> TokenInfo:
    return TokenInfo(
        id=row.id if token_id is None else token_id, kind=row.kind, owner=row.owner, label=row.label,
        scope=row.permission, dag_ids=None if row.dag_ids is None else tuple(row.dag_ids), created_at=row.created_at,
        expires_at=row.expires_at,
    )  # fmt: skip
