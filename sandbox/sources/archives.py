"""Reads the Python files in a zip archive of DAGs, and imports from it, without trusting the archive.

Everything that is read is bounded: an archive made to unpack into gigabytes is an error of that archive.
"""

import importlib.machinery
import posixpath
import zipfile
import zlib
from types import CodeType
from typing import TYPE_CHECKING, cast

from asynsched.errors import DagImportError
from sandbox.sources.local_imports import Note

if TYPE_CHECKING:
    from importlib.abc import Loader

MAX_ENTRIES = 20_000
MAX_SOURCE_BYTES = 16 * 1024**2
MAX_TOTAL_BYTES = 256 * 1024**2


class ArchiveError(DagImportError):
    """A zip archive of DAGs is damaged, hostile or too large."""


class Archive:
    """An open zip archive, checked.

    Raises:
        ArchiveError: It is not a zip archive, has names that lead out of it, or would unpack into too much.
        OSError: It cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as exc:
            raise ArchiveError(f"{path} is not a zip archive that can be read: {exc}") from exc
        entries = self._zip.infolist()
        if len(entries) > MAX_ENTRIES:
            raise ArchiveError(f"{path} has {len(entries)} entries; at most {MAX_ENTRIES} are allowed")
        if sum(entry.file_size for entry in entries) > MAX_TOTAL_BYTES:
            raise ArchiveError(f"{path} unpacks into more than {MAX_TOTAL_BYTES // 1024**2} MiB")
        for entry in entries:
            self._check_name(entry.filename)
        self._entries = {entry.filename: entry for entry in entries}
        self._folders = {folder for name in self._entries for folder in _parents(name)}

    def _check_name(self, name: str) -> None:
        if name.startswith("/") or "\\" in name or ".." in name.split("/"):
            raise ArchiveError(f"{self.path} has an entry {name!r} that leads out of the archive; pack it again")

    def dag_files(self) -> list[str]:
        """Return the names of the Python files at the archive's root, sorted."""
        return sorted(name for name in self._entries if name.endswith(".py") and "/" not in name)

    def has(self, name: str) -> bool:
        return name in self._entries

    def has_folder(self, name: str) -> bool:
        """Whether a file lies below this folder."""
        return name in self._folders

    def read(self, name: str) -> bytes:
        """Return a file's bytes. Raises FileNotFoundError, or ArchiveError when it is damaged or too large."""
        if name not in self._entries:
            raise FileNotFoundError(f"{self.path} has no {name}")
        try:
            with self._zip.open(name) as stream:
                data = stream.read(MAX_SOURCE_BYTES + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as exc:
            raise ArchiveError(f"{self.path}/{name} cannot be unpacked: {exc}") from exc
        if len(data) > MAX_SOURCE_BYTES:
            raise ArchiveError(f"{self.path}/{name} is larger than {MAX_SOURCE_BYTES // 1024**2} MiB")
        return data


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


class ArchiveLoader:
    """Loads one module of an archive: a loader of `importlib`."""

    def __init__(self, archive: Archive, name: str, note: Note) -> None:
        self._archive = archive
        self._name = name
        self._note = note

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave it to the import system."""
        """Leave it to the import system."""

    def exec_module(self, module: object) -> None:
        exec(self.get_code(module.__name__), module.__dict__)  # type: ignore[attr-defined]  # noqa: S102 - an import

    def get_code(self, fullname: str) -> CodeType:
        text = self.get_source(fullname)
        return compile(text, self.get_filename(fullname), "exec", dont_inherit=True)

    def get_source(self, fullname: str) -> str:
        return self._note(fullname, self.get_filename(fullname), self._archive.read(self._name))

    def get_filename(self, _fullname: str) -> str:
        return f"{self._archive.path}/{self._name}"

    def is_package(self, _fullname: str) -> bool:
        return self._name.endswith("__init__.py")

    def get_data(self, path: str) -> bytes:
        return self._archive.read(posixpath.relpath(path, self._archive.path))


class ArchiveFinder:
    """Finds modules in one folder of an archive; an entry of `sys.path` or of a package's `__path__`."""

    def __init__(self, archive: Archive, folder: str, note: Note) -> None:
        self._archive = archive
        self._folder = f"{folder}/" if folder else ""
        self._note = note

    def find_spec(self, fullname: str, _target: object = None) -> importlib.machinery.ModuleSpec | None:
        stem = self._folder + fullname.rpartition(".")[2]
        for name in (f"{stem}/__init__.py", f"{stem}.py"):
            if self._archive.has(name):
                return self._spec(fullname, name)
        if self._archive.has_folder(stem):
            spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [f"{self._archive.path}/{stem}"]
            return spec
        return None

    def _spec(self, fullname: str, name: str) -> importlib.machinery.ModuleSpec:
        loader = ArchiveLoader(self._archive, name, self._note)
        spec = importlib.machinery.ModuleSpec(
            fullname,
            cast("Loader", loader),
            origin=loader.get_filename(fullname),
            is_package=loader.is_package(fullname),
        )
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(posixpath.dirname(loader.get_filename(fullname)))
        return spec

    def invalidate_caches(self) -> None:
        """Nothing is cached: the archive was opened once."""
