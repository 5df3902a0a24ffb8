"""ObjectStoragePath: paths of files in object storages and elsewhere, by URLs that may name a connection.

A path is one of `universal_pathlib`, on a file system of fsspec. The file systems of `s3://`, `gs://` and so on come
from the installed providers. Nothing asks for a connection before the first use of its file system, so a DAG file may
make paths at its top level.

Needs the extra `storage`. Source of names and behaviour: Apache Airflow's `airflow.sdk.io`.
"""

from __future__ import annotations

import os
import shutil
from stat import S_IFDIR, S_IFLNK, S_IFREG
from urllib.parse import urlsplit

try:
    from upath import UPath
    from upath.extensions import ProxyUPath, classmethod_or_method
except ImportError as exc:
    raise ImportError(
        f"ObjectStoragePath needs universal-pathlib ({exc}): pip install 'asynsched[storage]'", name=exc.name
    ) from exc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

Properties = dict[str, str]
_LOCAL = ("file", "local")
_stores: dict[str, ObjectStore] = {}
_makers: dict[str, Callable[..., Any]] = {}


def get_fs(scheme: str, conn_id: str | None = None, storage_options: Properties | None = None) -> Any:
    """Return the file system of a scheme such as `s3`, which logs in by a connection if one is given.

    Raises:
        ValueError: No installed provider has a file system for the scheme.
        AttributeError: The provider's file system takes no options.
    """
    if scheme in _LOCAL:
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem(**(storage_options or {}))
    make = _registered().get(scheme)
    if make is None:
        raise ValueError(
            f"no installed provider has a file system for {scheme}://; `asynsched providers install` installs providers"
        )
    from inspect import signature

    if len(signature(make).parameters) > 1:
        return make(conn_id, storage_options or {})
    if storage_options:
        raise AttributeError(f"the file system of {scheme}:// takes no storage options: upgrade its provider")
    return make(conn_id)


def has_fs(scheme: str) -> bool:
    """Return whether there is a file system for a scheme."""
    return scheme in _LOCAL or scheme in _registered()


def _registered() -> dict[str, Callable[..., Any]]:
    """Return the functions of the installed providers that make file systems, by scheme."""
    if not _makers:
        from importlib import import_module

        from asynsched.authoring.providers import providers

        for provider in providers():
            for name in provider.info.get("filesystems", ()):
                module = import_module(name)
                _makers.update(dict.fromkeys(module.schemes, module.get_fs))
    return _makers


class ObjectStore:
    """A storage: a scheme and a connection. `fs` is its file system, made when it is first used."""

    def __init__(
        self, protocol: str, conn_id: str | None, fs: Any = None, storage_options: Properties | None = None
    ) -> None:
        self.protocol = protocol
        self.conn_id = conn_id
        self.storage_options = storage_options
        self._fs = fs

    @property
    def fs(self) -> Any:
        """The file system. Raises as `get_fs` does."""
        if self._fs is None:
            self._fs = get_fs(self.protocol, self.conn_id, self.storage_options)
        return self._fs

    @property
    def fsid(self) -> str:
        """The file system's own id, or else one of its scheme and connection."""
        try:
            return str(self.fs.fsid)
        except NotImplementedError:
            return f"{self.fs.protocol}-{self.conn_id or 'env'}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectStore):
            return NotImplemented
        return self.conn_id == other.conn_id and bool(self.fs == other.fs)

    def __hash__(self) -> int:
        return hash((self.conn_id, self.fsid))

    def __str__(self) -> str:
        return _alias(self.protocol, self.conn_id)


def _alias(protocol: str, conn_id: str | None) -> str:
    return f"{protocol}-{conn_id}" if conn_id else protocol


def attach(
    protocol: str | None = None,
    conn_id: str | None = None,
    alias: str | None = None,
    encryption_type: str | None = "",
    fs: Any = None,
    **kwargs: Any,
) -> ObjectStore:
    """Return the storage of a scheme and a connection, or of an alias; the same one each time in a process.

    Args:
        protocol: The scheme, such as `s3`.
        conn_id: The connection.
        alias: Another name for the storage.
        encryption_type: Has no effect, as in Airflow.
        fs: The file system; by default the provider's.
        kwargs: `storage_options` of the file system.

    Raises:
        ValueError: Neither a scheme nor a known alias is given.
    """
    del encryption_type
    if alias and alias in _stores:
        return _stores[alias]
    if not protocol:
        raise ValueError(f"no storage is attached as {alias!r}" if alias else "give a protocol or an alias")
    alias = alias or _alias(protocol, conn_id)
    if alias not in _stores:
        _stores[alias] = ObjectStore(protocol, conn_id, fs=fs, **kwargs)
    return _stores[alias]


class stat_result(dict[str, "Any"]):  # noqa: N801 - as in `os` and Airflow
    """A file system's facts about a file; the common ones have the names of `os.stat_result`."""

    st_dev = 0
    st_size = property(lambda self: self.get("size", 0))
    st_gid = property(lambda self: self.get("gid", 0))
    st_uid = property(lambda self: self.get("uid", 0))
    st_ino = property(lambda self: self.get("ino", 0))
    st_nlink = property(lambda self: self.get("nlink", 0))

    @property
    def st_mtime(self) -> Any:
        """When the file was changed, in seconds since 1970; 0 if that is unknown."""
        if "LastModified" in self:
            return self["LastModified"].timestamp()
        return self.get("mtime", 0)

    @property
    def st_mode(self) -> int:
        """The file's kind and permissions."""
        kind = S_IFLNK if self.get("isLink") else {"file": S_IFREG, "directory": S_IFDIR}.get(self.get("type", ""), 0)
        return int(self.get("mode", kind))


class _FileSystemOf:
    """The file system of a connection, which is looked up when it is first used."""

    def __init__(self, protocol: str, conn_id: str) -> None:
        self._place = (protocol, conn_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(attach(*self._place).fs, name)


class ObjectStoragePath(ProxyUPath):  # type: ignore[misc] # where mypy knows nothing of it
    """A path in an object storage, or in another file system: `ObjectStoragePath("s3://connection@bucket/key")`.

    It has the methods of `pathlib.Path`, and can be an XCom, an argument of a task, and a template.

    Args:
        args: The URL, and further parts of the path.
        protocol: The scheme; by default the URL's.
        conn_id: The connection; by default the URL's.
        storage_options: Options of the file system.
    """

    __slots__ = ("_conn_id",)
    sep = "/"
    root_marker = "/"

    def __init__(
        self, *args: Any, protocol: str | None = None, conn_id: str | None = None, **storage_options: Any
    ) -> None:
        first, *rest = args or ("",)
        if isinstance(first, ObjectStoragePath):
            conn_id = conn_id or first.conn_id
            first = first.__wrapped__
        elif not isinstance(first, UPath):
            first = os.fspath(first) if isinstance(first, os.PathLike) else str(first)  # an asset is one, too
            url = urlsplit(first)
            user, _, host = url.netloc.rpartition("@")
            conn_id = conn_id or user or None
            if user:
                first = url._replace(netloc=host).geturl()
            protocol = protocol or url.scheme
        self._conn_id = conn_id
        super().__init__(first, *rest, protocol=protocol, **storage_options)
        self._use_connection()

    @classmethod_or_method  # type: ignore[untyped-decorator]
    def _from_upath(cls_or_self: Any, upath: UPath, /) -> Any:  # noqa: N805 - both, says the decorator
        """Return a path that a method of `__wrapped__` has made, with this path's connection."""
        cls = cls_or_self if isinstance(cls_or_self, type) else type(cls_or_self)
        if isinstance(upath, cls):
            return upath
        made: Any = object.__new__(cls)
        made.__wrapped__ = upath
        made._conn_id = None if cls_or_self is cls else cls_or_self.conn_id  # noqa: SLF001 - this class's own
        made._use_connection()  # noqa: SLF001
        return made

    def _use_connection(self) -> None:
        if self._conn_id is not None:
            # The paths that methods of `__wrapped__` make get it from there.
            self.__wrapped__._fs_cached = _FileSystemOf(self.protocol or "file", self._conn_id)  # noqa: SLF001

    @property
    def conn_id(self) -> str | None:
        """The connection; None if the URL names none."""
        found: str | None = self._conn_id
        return found

    @property
    def fs(self) -> Any:
        """The file system. Raises as `get_fs` does."""
        return attach(self.protocol or "file", self.conn_id, storage_options=dict(self.storage_options) or None).fs

    @property
    def bucket(self) -> str:
        """The bucket, or the part of the URL in its place."""
        return urlsplit(str(self.__wrapped__)).netloc

    container = bucket

    @property
    def key(self) -> str:
        """The path in the bucket, without a slash at its beginning."""
        return urlsplit(str(self.__wrapped__)).path.lstrip(self.sep)

    @property
    def namespace(self) -> str:
        """The scheme and the bucket."""
        return f"{self.protocol}://{self.bucket}" if self.bucket else self.protocol

    def open(self, mode: str = "r", **kwargs: Any) -> Any:
        """Open the file. `kwargs` are arguments of fsspec's `open`, such as `compression`."""
        kwargs.setdefault("block_size", kwargs.pop("buffering", None))
        return self.fs.open(self.path, mode=mode, **kwargs)

    def stat(self, **_of_pathlib: Any) -> Any:
        """Return the file system's facts about the file, a stat_result."""
        return stat_result(self.fs.stat(self.path), protocol=self.protocol, conn_id=self.conn_id)

    @classmethod
    def cwd(cls) -> Any:
        """Return the current folder."""
        return cls._from_upath(UPath.cwd())

    @classmethod
    def home(cls) -> Any:
        """Return the user's home."""
        return cls._from_upath(UPath.home())

    def samestore(self, other: Any) -> bool:
        """Return whether another path is in the same storage."""
        is_path = isinstance(other, ObjectStoragePath)
        return is_path and (self.protocol, self.conn_id) == (other.protocol, other.conn_id)

    def samefile(self, other_path: Any) -> bool:
        """Return whether another path is that of the same file."""
        return self.samestore(other_path) and self.stat().get("ino") == other_path.stat().get("ino")

    def replace(self, target: Any) -> Any:
        """Rename the file, also where the target exists. Returns the new path."""
        return self.rename(target)

    def ukey(self) -> str:
        """Return a text that changes when the file does."""
        return str(self.fs.ukey(self.path))

    def checksum(self) -> int:
        """Return a checksum of the file."""
        return int(self.fs.checksum(self.path))

    def read_block(self, offset: int, length: int | None, delimiter: bytes | None = None) -> bytes:
        """Return a part of the file, from the first delimiter at or after `offset` on, if there is a delimiter."""
        return bytes(self.fs.read_block(self.path, offset=offset, length=length, delimiter=delimiter))

    def sign(self, expiration: int = 100, **kwargs: Any) -> str:
        """Return a signed URL that is valid for some seconds. Raises NotImplementedError if the storage has none."""
        return str(self.fs.sign(self.path, expiration=expiration, **kwargs))

    def size(self) -> int:
        """Return the size of the file, in bytes."""
        return int(self.fs.size(self.path))

    def copy(self, dst: Any, recursive: bool = False, **kwargs: Any) -> None:
        """Copy the file, or the folder, to another path, perhaps of another storage.

        From one storage to another, a folder's files keep their keys, which are appended to the target.

        Raises:
            FileNotFoundError: There is no such file or folder.
            ValueError: A folder would be copied to a file.
        """
        dst = _path(dst)
        if self.samestore(dst):
            self.fs.copy(self.path, dst.path, recursive=recursive, **kwargs)
        elif self.protocol in ("", *_LOCAL):
            dst.fs.put(self.path, dst.path, recursive=recursive, **kwargs)
        elif dst.protocol in ("", *_LOCAL):
            self.fs.get(self.path, dst.path, recursive=recursive, **kwargs)
        elif not self.exists():
            raise FileNotFoundError(f"{self} does not exist")
        elif not self.is_dir():
            self._copy_file(dst)
        elif dst.is_file():
            raise ValueError(f"{self} is a folder, and {dst} a file")
        else:
            dst.mkdir(exist_ok=True, parents=True)
            for path in self.fs.expand_path(self.path, recursive=True, **kwargs):
                source = ObjectStoragePath(path, protocol=self.protocol, conn_id=self.conn_id)
                if path != self.path and not source.is_dir():
                    source._copy_file(dst)

    def copy_into(self, target_dir: Any, recursive: bool = False, **kwargs: Any) -> None:
        """Copy the file, or the folder, into a folder. Raises NotADirectoryError if that is none."""
        self.copy(_folder(target_dir) / self.name, recursive=recursive, **kwargs)

    def move(self, path: Any, recursive: bool = False, **kwargs: Any) -> None:
        """Move the file, or the folder, to another path, perhaps of another storage. Raises as `copy` does."""
        path = _path(path)
        if self.samestore(path):
            self.fs.move(self.path, path.path, recursive=recursive, **kwargs)
        else:
            self.copy(path, recursive=recursive, **kwargs)
            self.unlink()

    def move_into(self, target_dir: Any, recursive: bool = False, **kwargs: Any) -> None:
        """Move the file, or the folder, into a folder. Raises NotADirectoryError if that is none."""
        self.move(_folder(target_dir) / self.name, recursive=recursive, **kwargs)

    def _copy_file(self, dst: ObjectStoragePath) -> None:
        """Copy the file in pieces, through this process."""
        if dst.key.endswith(self.sep) or not dst.key:
            dst.mkdir(exist_ok=True, parents=True)
            dst = dst / self.key
        elif dst.is_dir():
            dst = dst / self.key
        with self.open("rb") as source, dst.open("wb") as target:
            shutil.copyfileobj(source, target)

    def rendered_with(self, render: Callable[[str], Any]) -> ObjectStoragePath:
        """Return the path with its templates rendered."""
        return path_of({**self.serialize(), "path": render(str(self))})

    def serialize(self) -> dict[str, Any]:
        """Return the path as data, from which `deserialize` makes it again."""
        return {"path": str(self), "conn_id": self.conn_id, "kwargs": dict(self.storage_options)}

    @classmethod
    def deserialize(cls, data: dict[str, Any], version: int = 1) -> ObjectStoragePath:
        """Return the path of `serialize`'s data. Raises ValueError for a version of data that is not known."""
        if version > 1:
            raise ValueError(f"version {version} of the data of an ObjectStoragePath is not known here")
        return path_of(data)

    def __str__(self) -> str:
        if not (self.protocol and self.conn_id):
            return str(self.__wrapped__)
        return f"{self.protocol}://{self.conn_id}@{self.path}"

    def __eq__(self, other: object) -> bool:
        return self.samestore(other) and str(self) == str(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(str(self))


def _path(given: Any) -> ObjectStoragePath:
    return given if isinstance(given, ObjectStoragePath) else ObjectStoragePath(given)


def _folder(given: Any) -> ObjectStoragePath:
    folder = _path(given)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    return folder


def path_of(data: dict[str, Any]) -> ObjectStoragePath:
    """Return the path that `ObjectStoragePath.serialize` describes."""
    return ObjectStoragePath(data["path"], conn_id=data["conn_id"], **data["kwargs"])
