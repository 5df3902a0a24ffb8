"""Paths of object storages: their parts, their files, and the file systems of providers."""

import json

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from asynsched import Asset
from asynsched.airflow import object_storage
from asynsched.airflow.json import XComDecoder, XComEncoder
from asynsched.airflow.object_storage import ObjectStoragePath, attach, get_fs, has_fs
from asynsched.authoring import providers
from asynsched.authoring.providers import Provider
from asynsched.authoring.transport import from_transport, readable, to_transport


@pytest.fixture
def stores(monkeypatch):
    """Storages of which no other test knows, with the file system `memory` of a provider; return its connections."""
    used = []

    class Memory(MemoryFileSystem):
        store, pseudo_dirs = {}, [""]

    def get_fs(conn_id, storage_options):
        used.append((conn_id, storage_options))
        return Memory(skip_instance_cache=True)

    provider = Provider("of-a-test", "1", {"filesystems": ["memory_of_a_test"]})
    module = type("memory_of_a_test", (), {"schemes": ["memory"], "get_fs": staticmethod(get_fs)})
    monkeypatch.setitem(__import__("sys").modules, "memory_of_a_test", module)
    monkeypatch.setattr(providers, "_found", [provider])
    monkeypatch.setattr(object_storage, "_stores", {})
    monkeypatch.setattr(object_storage, "_makers", {})
    return used


@pytest.mark.parametrize(
    ("path", "text", "conn_id", "bucket", "key", "namespace"),
    [
        (["s3://bucket/a/b.txt"], "s3://bucket/a/b.txt", None, "bucket", "a/b.txt", "s3://bucket"),
        (["s3://me@bucket/a", "b"], "s3://me@bucket/a/b", "me", "bucket", "a/b", "s3://bucket"),
        (["file:///a/b"], "file:///a/b", None, "", "a/b", "file"),
        (["file://me@/a/b"], "file://me@/a/b", "me", "", "a/b", "file"),
        (["/a/b"], "/a/b", None, "", "a/b", ""),
    ],
)
def test_a_url_names_connection_bucket_and_key(path, text, conn_id, bucket, key, namespace):
    made = ObjectStoragePath(*path)
    assert str(made) == text
    assert (made.conn_id, made.bucket, made.key, made.namespace) == (conn_id, bucket, key, namespace)
    assert made.container == made.bucket
    for same in (ObjectStoragePath(made), ObjectStoragePath(text), from_transport(to_transport(made))):
        assert (same, hash(same), same.conn_id) == (made, hash(made), conn_id)
    assert readable(to_transport({"x": [made]})) == {"x": [text]}
    assert made != ObjectStoragePath(*path, conn_id="other")
    assert (made.parent / "c").conn_id == conn_id


def test_the_path_of_an_asset_is_its_uri(tmp_path):
    made = ObjectStoragePath(Asset("text", f"file://{tmp_path}/text"))
    made.write_text("words")
    assert (tmp_path / "text").read_text() == "words"


def test_a_connection_is_looked_up_at_the_first_use_and_once(stores):
    base = ObjectStoragePath("memory://me@bucket/folder")
    rendered = (base / "{{ ds }}.txt").rendered_with(lambda text: text.replace("{{ ds }}", "today"))
    assert stores == []
    rendered.write_text("hello")
    with (base / "raw").open("wb") as file:
        file.write(b"a,b,c")
    assert sorted(path.name for path in base.iterdir()) == ["raw", "today.txt"]
    assert {path.conn_id for path in base.glob("*")} == {"me"}
    assert (rendered.stat().st_size, rendered.size(), rendered.exists()) == (5, 5, True)
    assert (base / "raw").read_block(2, 2, b",") == b"c"
    assert stores == [("me", {})]
    assert attach("memory", "me") is attach("memory", "me")


def test_files_and_folders_move_within_and_between_storages(stores, tmp_path):
    local, remote = ObjectStoragePath(tmp_path.as_uri()), ObjectStoragePath("memory://one@bucket/a")
    other = ObjectStoragePath("memory://two@bucket/b")
    (local / "x.txt").write_text("x")
    (local / "x.txt").copy(remote / "x.txt")
    (remote / "x.txt").copy(remote / "y.txt")
    (remote / "y.txt").move(remote / "z.txt")
    other.mkdir(parents=True)
    remote.copy(other, recursive=True)
    assert sorted(path.name for path in remote.iterdir()) == ["x.txt", "z.txt"]
    (remote / "z.txt").move(str(local / "z.txt"))
    assert ((local / "z.txt").read_text(), (remote / "z.txt").exists()) == ("x", False)
    (local / "into").mkdir()
    (local / "z.txt").move_into(local / "into")
    assert (local / "into" / "z.txt").read_text() == "x"
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        (local / "x.txt").copy_into(local / "missing")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        (remote / "missing").copy(other)


def test_file_systems_come_from_providers(stores):
    assert (has_fs("file"), has_fs("memory"), has_fs("s3")) == (True, True, False)
    assert isinstance(get_fs("memory", "me", {"option": "1"}), MemoryFileSystem)
    assert stores == [("me", {"option": "1"})]
    with pytest.raises(ValueError, match="no installed provider has a file system for s3://"):
        ObjectStoragePath("s3://bucket/a").open()
    with pytest.raises(ValueError, match="no storage is attached as 'x'"):
        attach(alias="x")
    own = MemoryFileSystem()
    attach("memory", alias="x", fs=own)
    assert attach(alias="x").fs is own


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.dates() | st.binary() | st.decimals(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(VALUES)
def test_xcoms_come_back_from_their_json_text(value):
    text = json.dumps(value, cls=XComEncoder)
    assert json.loads(text, cls=XComDecoder) == value
