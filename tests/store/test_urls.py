"""Database URLs: valid ones, invalid ones, and that their secrets are never shown."""

from pathlib import Path

import pytest

from asynsched.errors import SettingsError
from asynsched.store.engines.postgres import ServerOrder
from asynsched.store.engines.urls import hurried, parse_url, without_secrets


@pytest.mark.parametrize(
    ("url", "backend", "path"),
    [
        ("sqlite:////var/lib/a b?#%41.db", "sqlite", Path("/var/lib/a b?#%41.db")),
        ("sqlite:///a.db", "sqlite", Path("a.db").absolute()),
        ("sqlite+aiosqlite:///a.db", "sqlite", Path("a.db").absolute()),
        ("sqlite://", "sqlite", None),
        ("sqlite:///:memory:", "sqlite", None),
        ("postgresql://me@host/db", "postgresql", None),
        ("postgresql://me:a%2Fb%40c@[::1]:5432/db", "postgresql", None),
        ("postgresql:///db?host=/run/postgres&user=me@here", "postgresql", None),
        ("postgres://me@one:1,two:2/db?target_session_attrs=primary", "postgresql", None),
    ],
)
def test_urls_of_both_kinds_are_understood(url, backend, path):
    parsed = parse_url(url)
    assert (parsed.backend, parsed.path) == (backend, path)
    assert parsed.dsn.startswith("postgresql://") == (backend == "postgresql")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("asynsched.db", "is not a URL"),
        ("sqlite://asynsched.db", "three slashes.*sqlite:///asynsched.db"),
        ("mysql://me:hunter2@host/db", "'mysql' databases are not supported"),
        ("postgresql://me:hunter2@[host/db", "is not a URL"),
        ("me:hunter2@host", "is not a URL"),
        ("postgresql://me:hunter2/x@host/db", "%2F"),
        ("postgresql://me:hunter2#x@host/db", "%23"),
        ("postgresql://me:x@hunter2@host/db", "%40"),
        ("postgresql://me:hunter2?x@host/db", "%3F"),
        ("postgresql://me:123?hunter2@host/db", "%3F"),
        ("postgresql://host:none/db", "a port is a number"),
        ("postgresql://host/db?target_session_attrs=foo", "is one of any, primary, .*, not 'foo'"),
    ],
)
def test_a_wrong_url_is_refused_with_what_to_write_instead(url, says):
    with pytest.raises(SettingsError, match=says) as raised:
        parse_url(url)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgresql://me:hunt@er2@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:hun@ter2:x/hunter2?@host/db", "postgresql://me:***@host/db"),
        ("postgresql://host/db?user=me&password=hunter2", "postgresql://host/db?user=me&password=***"),
        ("postgresql:///db?host=/run/postgres&sslpassword=hunter2", "postgresql:///db?host=/run/postgres&sslpassword=***"),
        ("sqlite:////home/me/a.db", "sqlite:////home/me/a.db"),
    ],
)  # fmt: skip
def test_secrets_are_never_shown(url, shown):
    assert without_secrets(url) == shown


@pytest.mark.parametrize(
    ("url", "hasty"),
    [
        ("sqlite:////home/me/a.db", "sqlite:////home/me/a.db"),
        ("postgresql://me@host/db", "postgresql://me@host/db?connect_timeout=2.5&statement_timeout=2500ms"),
        ("postgresql:///db?host=%2Frun&statement_timeout=9s", "postgresql:///db?connect_timeout=2.5&statement_timeout=9s&host=%2Frun"),
    ],
)  # fmt: skip
def test_a_server_can_be_given_up_sooner_unless_its_url_says_otherwise(url, hasty):
    assert hurried(url, 2.5) == hasty


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("postgresql://me@host:1/db?a=b", ["postgresql://me@host:1/db?a=b"]),
        ("postgresql:///db?host=/run", ["postgresql:///db?host=/run"]),
        (
            "postgresql://me:p,w@one:1,[::1]:2/db",
            ["postgresql://me:p,w@one:1/db?target_session_attrs=read-write", "postgresql://me:p,w@[::1]:2/db?target_session_attrs=read-write"],
        ),
        (
            "postgresql:///db?host=/a,/b&port=5,6&target_session_attrs=any",
            ["postgresql:///db?target_session_attrs=any&host=%2Fa&port=5", "postgresql:///db?target_session_attrs=any&host=%2Fb&port=6"],
        ),
        ("postgresql://one,two/db?target_session_attrs=primary", ["postgresql://one/db?target_session_attrs=primary", "postgresql://two/db?target_session_attrs=primary"]),
    ],
)  # fmt: skip
def test_the_server_that_answered_last_is_asked_first(url, servers):
    order = ServerOrder()
    assert order.of(url) == servers
    order.answered(servers[-1])
    assert order.of(url) == [*servers[-1:], *servers[:-1]]
    assert ServerOrder().of(url) == servers, "another engine finds out on its own"
