"""Connections as URIs and JSON."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynsched import AsynschedException, Connection, Variable
from asynsched.authoring import providers

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)


@given(
    st.builds(
        Connection,
        conn_id=st.just("c"),
        conn_type=st.sampled_from(["postgres", "http", "google_cloud_platform", "fs"]),
        host=st.none() | st.sampled_from(["localhost", "10.0.0.1", "Db.Example.com", "a b"]),
        login=st.none() | texts,
        password=st.none() | texts,
        schema=st.none() | texts,
        port=st.none() | st.integers(1, 65535),
        extra=st.none() | st.dictionaries(texts, texts | st.integers() | st.lists(texts), min_size=1, max_size=3),
    )
)
def test_what_a_uri_was_made_of_is_read_from_it(connection):
    read = Connection.from_uri(asyncio.run(connection.aget_uri()), "c")
    for field in ("conn_type", "login", "password", "port", "extra_dejson"):
        assert getattr(read, field) == getattr(connection, field), connection.get_uri()
    assert (read.host or None, read.schema or None) == (connection.host, connection.schema)
    assert Connection.from_json(connection.as_json(), "c") == connection
    assert Connection(**connection.to_dict(prune_empty=True)) == connection


def test_the_extra_is_an_object_in_the_json_of_a_connection():
    connection = Connection("c", "http", extra={"a": [1]})
    assert connection.as_json() == '{"conn_type": "http", "extra": {"a": [1]}}'
    assert connection.get_extra() == '{"a": [1]}'


def test_a_connection_is_tested_by_its_hook_though_it_is_not_stored(monkeypatch, tmp_path):
    class Hook:
        conn_name_attr = "name"

        def __init__(self, name):
            self.path = Connection.get(name).extra_dejson["path"]

        def test_connection(self):
            return Path(self.path).exists(), "looked"

    monkeypatch.setattr(providers, "hook_paths", lambda: {"own": ("hooks.Hook", "")})
    monkeypatch.setitem(sys.modules, "hooks", SimpleNamespace(Hook=Hook))
    there, gone = ({"path": str(path)} for path in (tmp_path, tmp_path / "gone"))
    assert Connection("c", "own", extra=there).test_connection() == (True, "looked")
    assert Connection("c", "own", extra=gone).test_connection() == (False, "looked")
    worked, why = Connection("c", "none").test_connection()
    assert (worked, "has a hook for connections of type 'none'" in why) == (False, True)


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("postgresql://u:p@h:5432/db", ("postgres", "h", "db")),
        ("http://https://h.org:80/x", ("http", "https://h.org", "x")),
        ("aws://?region_name=eu", ("aws", "", "")),
        ("my-type://h", ("my_type", "h", "")),
    ],
)
def test_airflows_uris_are_understood(uri, parts):
    connection = Connection.from_uri(uri, "c")
    assert (connection.conn_type, connection.host, connection.schema) == parts


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Connection.from_uri("no uri secret", "c"), "must look like"),
        (lambda: Connection.from_uri("x://u:secret@h:port", "c"), "quote special characters"),
        (lambda: Connection("c", host="h", uri="x://h"), "not both"),
        (lambda: Connection.from_json("secret", "c"), "not a JSON object"),
        (lambda: Connection.from_json('{"pasword": "secret"}', "c"), "unknown fields: pasword"),
    ],
)
def test_a_bad_connection_is_named_without_its_secrets(make, words):
    with pytest.raises(AsynschedException, match=words) as caught:
        make()
    assert "'c'" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_port_out_of_range_is_refused():
    with pytest.raises(ValueError, match="between 0 and 65535"):
        Connection("c", port=70000)


@pytest.mark.parametrize("name", [None, 7])
@pytest.mark.parametrize(("get", "words"), [(Connection.get, "a conn_id"), (Variable.get, "the key of a variable")])
def test_a_name_that_is_no_text_is_told_as_such(get, words, name):
    with pytest.raises(AsynschedException, match=f"{words} must be a text, not {name!r}"):
        get(name)
