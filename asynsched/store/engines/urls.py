"""Database URLs: reads them, and shows them without secrets."""

import os
import re
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from asynsched.errors import SettingsError

FORMS = "sqlite:///PATH or postgresql://USER@HOST/NAME"
PORT = re.compile(r"(?:^[^\[\]]*|\]):([^:\[\]]+)$")
"""Of a host; brackets are around an IPv6 address."""
TARGETS = ("any", "primary", "standby", "read-write", "read-only", "prefer-standby")
"""Of libpq's parameter `target_session_attrs`, the usual one first."""
_SECRET_PARAMETERS = frozenset({"password", "sslpassword"})


class DatabaseUrl(NamedTuple):
    """A database that asynsched can use.

    Attributes:
        backend: The kind of database.
        dsn: The URL for the PostgreSQL driver, with secrets; empty for SQLite.
        path: The SQLite file; None for a database in memory, or PostgreSQL.
        shown: The URL without secrets, for messages.
    """

    backend: Literal["sqlite", "postgresql"]
    dsn: str
    path: Path | None
    shown: str


def parse_url(url: str) -> DatabaseUrl:
    """Return the database that a URL names.

    `sqlite:///relative.db`, `sqlite:////absolute.db` and `sqlite://` (in memory), or libpq's form
    `postgresql://user:password@host:port/name?sslmode=require`, also with `?host=/socket/folder`.

    Raises:
        SettingsError: The text names no database of these kinds. Its secrets are not in the message.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise SettingsError(f"database: {without_secrets(url)!r} is not a URL; write {FORMS}")
    if scheme.partition("+")[0] == "sqlite":
        return _sqlite(url, rest)
    if is_postgresql(url):
        return _postgresql(rest)
    raise SettingsError(f"database: {scheme!r} databases are not supported; write {FORMS}")


def is_postgresql(url: str) -> bool:
    """Whether a URL, well formed or not, is for PostgreSQL."""
    scheme = url.partition("://")[0]
    return scheme.partition("+")[0] in {"postgresql", "postgres"}


def hurried(url: str, seconds: float) -> str:
    """Return the URL with a statement timeout for the server, unless it has one already."""
    if parse_url(url).backend != "postgresql":
        return url
    base, _, query = url.partition("?")
    limits = {"connect_timeout": f"{seconds:g}", "statement_timeout": f"{max(1, round(seconds * 1000))}ms"}
    return f"{base}?{urlencode(limits | dict(parse_qsl(query)))}"


def without_secrets(url: str) -> str:
    """Return a URL, well formed or not, with its passwords as `***`."""
    # Up to the last @: a password with an unescaped @ must not be shown in part.
    hidden = re.sub(r"^((?:[^:/]*://)?+)([^/?#@:]*):.*@", r"\1\2:***@", url, flags=re.DOTALL)
    base, separator, query = hidden.partition("?")
    if not separator:
        return hidden
    shown = [(name, "***" if name in _SECRET_PARAMETERS else value) for name, value in parse_qsl(query)]
    return f"{base}?{urlencode(shown, safe='/*:,', quote_via=quote)}"


def _sqlite(url: str, rest: str) -> DatabaseUrl:
    if rest in {"", "/", "/:memory:"}:
        return DatabaseUrl("sqlite", "", None, "sqlite://")
    if not rest.startswith("/"):
        raise SettingsError(
            f"database: {without_secrets(url)!r} needs three slashes before a relative path, four before an absolute"
            f" one: sqlite:///{rest}"
        )
    path = Path(os.path.expanduser(rest[1:]))  # noqa: PTH111 - pathlib raises for a user that there is not
    return DatabaseUrl("sqlite", "", path.absolute(), f"sqlite:///{path}")


def anchored(url: str) -> str:
    """Return a URL that means the same database when the program has changed its working folder."""
    path = parse_url(url).path if url.startswith("sqlite") else None
    return url if path is None else f"sqlite:///{path}"


def _postgresql(rest: str) -> DatabaseUrl:
    dsn = f"postgresql://{rest}"
    shown = without_secrets(dsn)
    place, _, query = rest.partition("?")
    if not _has_clear_parts(place, query):
        raise SettingsError(
            f"database: {shown!r} is not a URL: a port is a number, and in a user, a password and a name the characters"
            " / # @ ? : are written %2F %23 %40 %3F %3A"
        )
    try:
        urlsplit(dsn)
    except ValueError as exc:
        raise SettingsError(f"database: {shown!r} is not a URL: {exc}") from exc
    attributes = dict(parse_qsl(query)).get("target_session_attrs", TARGETS[0])
    if attributes not in TARGETS:
        raise SettingsError(f"database: target_session_attrs is one of {', '.join(TARGETS)}, not {attributes!r}")
    return DatabaseUrl("postgresql", dsn, None, shown)


def _has_clear_parts(place: str, query: str) -> bool:
    """Whether no character of a password, written as it is, makes a part of it a host, a port, a name or a query."""
    authority = place.partition("/")[0]
    ports = [found[1] for host in authority.rpartition("@")[2].split(",") if (found := PORT.search(host))]
    return (
        "#" not in place + query
        and authority.count("@") <= 1
        and "@" not in place[len(authority) :]
        and not (authority == place and "@" in query)
        and all(port.isdecimal() for port in ports)
    )
