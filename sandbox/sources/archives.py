"""Reads the Python files in a zip archive of DAGs, and imports from it, without trusting the archive.

Everything that is read is bounded: an archive made to unpack into gigabytes is an error of that archive.
"""

import posixpath
import zipfile
import zlib
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import PurePosixPath

from asynsched.errors import DagImportError
from sandbox.sources.local_imports import LocalLoader, Note

MAX_ENTRIES = 20_000
MAX_SOURCE_BYTES = 16 * 1024**2
MAX_TOTAL_BYTES = 256 * 1024**2


class ArchiveError(DagImportError):
    """A zip archive of DAGs is damaged, hostile or too large."""


class Archive:
    """An open zip archive, checked.

    Raises OSError, or ArchiveError for a file that is no zip archive, has names that lead out of it, or would unpack
    into too much.
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
        self._entries = {entry.filename: entry for entry in entries}
        for name in self._entries:
            if name.startswith("/") or "\\" in name or ".." in name.split("/"):
                raise ArchiveError(f"{self.path} has an entry {name!r} that leads out of the archive; pack it again")
        self._folders = {str(folder) for name in self._entries for folder in PurePosixPath(name).parents}

    def dag_files(self) -> list[str]:
        """Return the names of the Python files at the archive's root, sorted."""
        return sorted(name for name in self._entries if name.endswith(".py") and "/" not in name)

    def loader(self, fullname: str, name: str, note: Note) -> "ArchiveLoader":
        """Return the loader of the file `name` as the module `fullname`."""
        return ArchiveLoader(self, note, fullname, name)

    def finder(self, folder: str, note: Note) -> "ArchiveFinder":
        """Return the finder of modules in a folder."""
        return ArchiveFinder(self, folder, note)

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


class ArchiveLoader(LocalLoader):
    """Loads one module of an archive."""

    def __init__(self, archive: Archive, note: Note, fullname: str, name: str) -> None:
        super().__init__(note, fullname, f"{archive.path}/{name}")
        self._archive = archive

    def get_data(self, path: str) -> bytes:
        return self._archive.read(posixpath.relpath(path, self._archive.path))


class ArchiveFinder:
    """Finds modules in one folder of an archive; an entry of `sys.path` or of a package's `__path__`."""

    def __init__(self, archive: Archive, folder: str, note: Note) -> None:
        self._archive = archive
        self._folder = f"{folder}/" if folder else ""
        self._note = note

    def find_spec(self, fullname: str, _target: object = None) -> ModuleSpec | None:
        stem = self._folder + fullname.rpartition(".")[2]
        for name in (f"{stem}/__init__.py", f"{stem}.py"):
            if self._archive.has(name):
                return spec_from_loader(fullname, self._archive.loader(fullname, name, self._note))
        if self._archive.has_folder(stem):
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [f"{self._archive.path}/{stem}"]
            return spec
        return None

    def invalidate_caches(self) -> None:
        """Nothing is cached: the archive was opened once."""
