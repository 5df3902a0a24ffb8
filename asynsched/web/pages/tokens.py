"""`/tokens`: one's own tokens for programs, and one's own sessions in browsers: listed, made and ended."""

from datetime import timedelta
from typing import NamedTuple

from starlette.responses import Response

from asynsched.errors import AsynschedError
from asynsched.queries.paging import Page, Paging
from asynsched.queries.users import (
    LONGEST_TOKEN,
    SCOPES,
    Issuer,
    digest_of,
    end_own_session,
    issue_token,
    list_sessions,
    list_tokens,
    revoke_token,
)
from asynsched.store.users import PERSONAL, SESSION, find_holder
from asynsched.web.access import NotAllowed
from asynsched.web.endpoint import Call
from asynsched.web.pages.page import (
    NOTHING_TYPED,
    PAGE,
    RowId,
    Typed,
    form_of,
    one,
    redirect,
    refused,
    show,
    whole_number,
)
from asynsched.web.stored_access import cookie_name, is_secure, root_of

USUAL_DAYS = 90
PAGE_ROWS = 100
NO_SESSION = (
    "This page is for people who have signed in here by a password, a link or a provider. For others, `asynsched tokens"
    " create` makes a token."
)
MADE_SECONDS = 60
"""How long a browser keeps the secret of a new token for the view that shows it."""


class Made(NamedTuple):
    """A new token."""

    label: str
    secret: str


@PAGE.endpoint("GET", "/tokens")
async def tokens(call: Call, tokens_after: str = "", sessions_after: str = "") -> Response:
    """Show one's tokens and sessions, and the form of a new token; once, the secret of one that was just made."""
    answer = await _show(call, tokens_after=tokens_after, sessions_after=sessions_after)
    if call.request.cookies.get(_made_cookie(call)) is not None:
        answer.delete_cookie(_made_cookie(call), path=root_of(call.request) or "/", secure=is_secure(call.request))
    return answer


@PAGE.endpoint("POST", "/tokens")
async def create(call: Call) -> Response:
    """Make a token, and lead to the view that shows its secret once: a page that is loaded again makes no other token.

    A cookie carries the secret there, as the next request may reach another process.
    """
    issuer, fields = _issuer(call), await form_of(call)
    try:
        days = whole_number(fields, "days", least=1, most=LONGEST_TOKEN.days)
        made = await call.context.act(
            call.who.name, issue_token, issuer, one(fields, "label"), scope=one(fields, "scope"),
            dag_ids=one(fields, "dags").split() or None, now=call.context.clock.now(), lasts=timedelta(days=days),
        )  # fmt: skip
    except AsynschedError as exc:
        return await _show(call, refused(fields, exc))
    answer = redirect(call, "tokens")
    answer.set_cookie(
        _made_cookie(call), made.secret, max_age=MADE_SECONDS, path=root_of(call.request) or "/",
        secure=is_secure(call.request), httponly=True, samesite="strict",
    )  # fmt: skip
    return answer


@PAGE.endpoint("POST", "/tokens/{token_id:int}/end")
async def end_token(call: Call, token_id: RowId) -> Response:
    """End one of one's tokens at once."""
    ended = await call.context.act(call.who.name, revoke_token, _issuer(call), token_id)
    return redirect(call, "tokens", said=f"The token {ended.label or ended.id} has ended.")


@PAGE.endpoint("POST", "/sessions/{session_id:int}/end")
async def end_session(call: Call, session_id: RowId) -> Response:
    """Sign one of one's browsers out."""
    ended = await call.context.act(call.who.name, end_own_session, _issuer(call), session_id)
    return redirect(call, "tokens", said=f"The session {ended.id} has ended.")


def _issuer(call: Call) -> Issuer:
    """Return the user who has signed in as an issuer of tokens. Raises NotAllowed for a program with a token."""
    if not _has_signed_in(call):
        raise NotAllowed(NO_SESSION)
    assert call.who.issuer is not None
    return call.who.issuer


def _has_signed_in(call: Call) -> bool:
    return call.who.issuer is not None and call.who.issuer.until is None


def _made_cookie(call: Call) -> str:
    return f"{cookie_name(call.request)}_made"


async def _just_made(call: Call) -> Made | None:
    """Return the token whose secret this browser has not shown yet; None: there is none."""
    secret = call.request.cookies.get(_made_cookie(call))
    if secret is None:
        return None
    holder = await call.context.ask(find_holder, digest_of(secret), (PERSONAL,), call.context.clock.now())
    return None if holder is None or holder.token.owner != call.who.name else Made(holder.token.label, secret)


async def _show(
    call: Call, typed: Typed = NOTHING_TYPED, *, tokens_after: str = "", sessions_after: str = ""
) -> Response:
    if not _has_signed_in(call):
        return await show(call, "tokens.html", made=None, tokens=Page(()), problem=NO_SESSION)
    issuer = _issuer(call)
    own = issuer.own(call.context.clock.now())
    return await show(
        call, "tokens.html", made=await _just_made(call), problem="",
        tokens=await call.context.ask(list_tokens, own, Paging(limit=PAGE_ROWS, after=tokens_after or None)),
        sessions=await call.context.ask(list_sessions, own, Paging(limit=PAGE_ROWS, after=sessions_after or None)),
        own_id=await _own_id(call),
        scopes=SCOPES[: SCOPES.index(issuer.scope) + 1], days=USUAL_DAYS, most_days=LONGEST_TOKEN.days,
        typed=typed, status=typed.status,
    )  # fmt: skip


async def _own_id(call: Call) -> int | None:
    """Return the id of the session of the browser that asks; None for one that a proxy has signed in."""
    secret = call.request.cookies.get(cookie_name(call.request))
    if secret is None:
        return None
    holder = await call.context.ask(find_holder, digest_of(secret), (SESSION,), call.context.clock.now())
    return None if holder is None else holder.token.id
