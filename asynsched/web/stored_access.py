"""Identifies the user of a request: by the token of a program, a browser's session, or the header of a proxy."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from asynsched.queries.context import QueryContext
from asynsched.queries.users import ROLES, Issuer, digest_of
from asynsched.store.users import ACCESS, PERSONAL, SESSION, Holder, dags_of_roles, find_holder, find_user
from asynsched.web.access import Access, Identity, NotSignedIn, Permission

PERMISSION_OF_ROLE = dict(zip(ROLES, (Permission.VIEW, Permission.OPERATE, Permission.ADMINISTER), strict=True))
BEARER = "bearer"


class StoredAccess(Access):
    """The users, sessions and tokens of a database.

    Every request looks its secret up, so a session, a token or a right that was taken away no longer counts.
    """

    def __init__(self, context: QueryContext) -> None:
        self._context = context

    async def identify(self, request: Request) -> Identity:
        holder = await self.holder(request)
        if holder is None:
            return await self._named_by_proxy(request)
        token, roles = holder.token, ("admin",) if holder.roles is None else holder.roles
        if not roles:
            raise NotSignedIn(f"{token.owner} is disabled.")
        identity = await self._identity(token.owner, roles)
        until = None if token.kind == SESSION else token.expires_at
        return _with_issuer(identity.limited(Permission[token.permission.upper()], token.dag_ids), token.user_id, until)

    async def holder(self, request: Request) -> Holder | None:
        """Return the token or session that a request has; None if it has neither. Raises NotSignedIn for a wrong one.

        A token counts alone: a browser's cookie beside it is not looked at.
        """
        authorization = request.headers.get("authorization")
        if authorization is not None:
            scheme, _, secret = authorization.partition(" ")
            found = await self._find(secret.strip(), PERSONAL, ACCESS) if scheme.lower() == BEARER else None
            if found is None:
                raise NotSignedIn("The token is unknown, or it has expired.")
            return found
        secret = request.cookies.get(cookie_name(request), "")
        return await self._find(secret, SESSION) if secret else None

    async def _find(self, secret: str, *kinds: str) -> Holder | None:
        return await self._context.ask(find_holder, digest_of(secret), kinds, self._context.clock.now())

    async def _named_by_proxy(self, request: Request) -> Identity:
        """Return the user whom a trusted proxy has signed in. Raises NotSignedIn."""
        name = getattr(request.state, "user_of_proxy", None)
        if name is None:
            raise NotSignedIn
        row = await self._context.ask(find_user, name)
        roles = [self._context.settings.web.default_role] if row is None else row.roles
        if not any(roles):
            raise NotSignedIn(f"The proxy has signed in {name!r}, who has no role here.")
        identity = await self._identity(name, roles)
        return identity if row is None else _with_issuer(identity, row.id, None)

    async def _identity(self, name: str, roles: Iterable[str]) -> Identity:
        """Return a user with the rights of these roles, and with those that DAGs give to them."""
        roles = tuple(roles)
        general = max((PERMISSION_OF_ROLE.get(role, Permission.NOTHING) for role in roles), default=Permission.NOTHING)
        if general >= Permission.OPERATE:
            return Identity(name=name, permission=general)  # no DAG can give more
        given = await self._context.ask(dags_of_roles, roles)
        of_dags = {
            dag_id: max(general, *(Permission[permission.upper()] for permission in permissions))
            for dag_id, permissions in given.items()
        }
        if general is Permission.VIEW and not of_dags:
            return Identity(name=name, permission=general)
        return Identity(name=name, permission=Permission.VIEW, of_dags=of_dags, of_other_dags=general)


def _with_issuer(identity: Identity, user_id: int | None, until: datetime | None) -> Identity:
    dag_ids = None if identity.dag_ids is None else tuple(sorted(identity.dag_ids))
    issuer = Issuer(identity.name, user_id, identity.highest.name.lower(), dag_ids, until)
    return replace(identity, issuer=issuer)


# The cookie of a session


def cookie_name(request: Request) -> str:
    """Return the name of the session's cookie. Browsers share cookies among the ports of a host, so it has the port."""
    port = request.url.port
    name = f"asynsched_{port}" if port else "asynsched"
    # With this prefix, browsers take it from this very host only: no neighbour can plant a session.
    return f"__Host-{name}" if is_secure(request) and not root_of(request) else name


def is_secure(request: Request) -> bool:
    """Whether browsers reach this by HTTPS."""
    return request.url.scheme == "https" or getattr(request.state, "base_url", "").startswith("https:")


def root_of(request: Request) -> str:
    """Return the path of the application, such as `/asynsched`; empty for the root of the host."""
    root: str = getattr(request.state, "root", "")  # set by the Guard
    return root


def set_session(response: Response, request: Request, secret: str, lasts: timedelta) -> None:
    """Keep a session in the browser: unreadable for scripts, and not sent along with other sites' requests."""
    response.set_cookie(
        cookie_name(request), secret, max_age=round(lasts.total_seconds()), path=root_of(request) or "/",
        secure=is_secure(request), httponly=True, samesite="lax",
    )  # fmt: skip


def forget_session(response: Response, request: Request) -> None:
    """Remove the session from the browser."""
    response.delete_cookie(
        cookie_name(request), path=root_of(request) or "/", secure=is_secure(request), httponly=True, samesite="lax"
    )
