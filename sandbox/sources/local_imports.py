"""Imports DAG files, and modules from the DAG folder and from archives in it.

No byte code is read or written: the text that is recorded is the text that ran. The DAG folder comes last in
`sys.path`: a `json.py` in it never shadows the standard library's. The code for archives is loaded with the first one.
"""

import hashlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, cast

from asynsched.authoring.own_sandbox import give_way, own_sandbox

if TYPE_CHECKING:
    from importlib.abc import Loader

    from sandbox.sources.archives import Archive, ArchiveFinder


ARCHIVE_SUFFIX = ".zip"


def split_archive_path(path: str) -> tuple[str, str] | None:
    """Return the archive and the name inside it (empty for the archive itself), or None for a path outside archives.

    >>> split_archive_path("team/dags.zip/etl.py")
    ('team/dags.zip', 'etl.py')
    """
    parts = path.split("/")
    for index, part in enumerate(parts):
        if part.endswith(ARCHIVE_SUFFIX):
            return "/".join(parts[: index + 1]), "/".join(parts[index + 1 :])
    return None


Note = Callable[[str, str, bytes], str]
"""Takes a module's name, its file and its bytes; returns its text."""


def _no_text(filename: str, data: bytes, exc: UnicodeDecodeError) -> SyntaxError:
    line = data.count(b"\n", 0, exc.start) + 1
    what = f"byte 0x{data[exc.start]:02x} is not {exc.encoding.upper()}; save the file as UTF-8"
    return SyntaxError(what, (filename, line, None, None))


def decode_text(_module: str, filename: str, data: bytes) -> str:
    """Return a source's text by its declared encoding. Raises SyntaxError, with the line, if it cannot be decoded."""
    try:
        text = importlib.util.decode_source(data)
    except UnicodeDecodeError as exc:
        raise _no_text(filename, data, exc) from exc
    except SyntaxError as exc:
        try:
            data.decode()
        except UnicodeDecodeError as cause:
            raise _no_text(filename, data, cause) from exc
        raise SyntaxError(exc.msg, (filename, 1, None, None)) from exc
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SyntaxError("there is a null byte in the text", (filename, line, None, None))
    return text


DAG_MODULE_PREFIX = "unusual_prefix_"
"""The prefix of a DAG file's module name, so that it collides with no other module (Airflow's)."""


def dag_module_name(path: str) -> str:
    """Return the module name of the DAG file at `path`, relative to the DAG folder."""
    digest = hashlib.sha1(path.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()
    return f"{DAG_MODULE_PREFIX}{digest}_{Path(path).stem}"


class LocalLoader(importlib.machinery.SourceFileLoader):
    """Compiles a file of the DAG folder from its text, never from byte code."""

    def __init__(self, note: Note, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._note = note

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_source(fullname), self.get_filename(fullname))

    def get_source(self, fullname: str) -> str:
        """Note the module's text and return it."""
        path = self.get_filename(fullname)
        return self._note(fullname, path, self.get_data(path))


class LocalImports:
    """Makes the DAG folder, and archives in it, importable in this process.

    Args:
        dags_folder: Absolute path of the DAG folder.
        note: Sees every local source before it is compiled.
    """

    def __init__(self, dags_folder: Path, note: Note = decode_text) -> None:
        self.dags_folder = dags_folder
        self._note = note
        self._archives: dict[str, Archive] = {}

    def install(self, archive: str | None = None) -> None:
        """Append the DAG folder, after `archive` if given (relative to the folder), to `sys.path`."""
        give_way()
        sys.dont_write_bytecode = True
        sys.path_hooks.insert(0, self._finder_for)
        entries = [str(self.dags_folder)]
        if archive is not None:
            entries.insert(0, f"{self.dags_folder}/{archive}")
        sys.path[:] = [entry for entry in sys.path if entry not in entries] + entries
        for entry in [entry for entry in sys.path_importer_cache if self._is_local(entry)]:
            del sys.path_importer_cache[entry]

    def _is_local(self, entry: str) -> bool:
        folder = str(self.dags_folder)
        return entry == folder or entry.startswith(f"{folder}/")

    def _finder_for(self, entry: str) -> "importlib.machinery.FileFinder | ArchiveFinder":
        """Return the finder of a local `sys.path` entry: a path hook. Raises ImportError for any other."""
        if not self._is_local(entry):
            raise ImportError("not in the DAG folder", path=entry)
        if Path(entry).is_dir():
            extensions = importlib.machinery.EXTENSION_SUFFIXES
            return importlib.machinery.FileFinder(
                entry,
                (importlib.machinery.ExtensionFileLoader, extensions),
                (partial(LocalLoader, self._note), importlib.machinery.SOURCE_SUFFIXES),  # type: ignore[arg-type]
            )
        return self._archive_finder(entry)

    def _archive_finder(self, entry: str) -> "ArchiveFinder":
        with own_sandbox():
            from sandbox.sources.archives import ArchiveFinder

        inside = split_archive_path(entry[len(str(self.dags_folder)) + 1 :])
        if inside is None:
            raise ImportError("neither a folder nor an archive", path=entry)
        return ArchiveFinder(self.archive(inside[0]), inside[1], self._note)

    def archive(self, path: str) -> "Archive":
        """Return the archive at `path`, relative to the DAG folder, opened once. Raises ArchiveError or OSError."""
        with own_sandbox():
            from sandbox.sources.archives import Archive

        if path not in self._archives:
            self._archives[path] = Archive(f"{self.dags_folder}/{path}")
        return self._archives[path]

    def load_dag_file(self, path: str) -> ModuleType:
        """Import the DAG file at `path`, relative to the DAG folder (`archive.zip/dag.py` too), and return it.

        Raises:
            ArchiveError: The archive cannot be used.
            OSError: The file cannot be read.
            BaseException: The file raised it.
        """
        archive = self._archive_of(path)
        if archive is not None and not archive[1]:
            return self._load_archive(path)
        return import_module(dag_module_name(path), self._loader_of(path, archive), f"{self.dags_folder}/{path}")

    def _load_archive(self, path: str) -> ModuleType:
        """Import every file at an archive's root; return one module with all their names, as `file.name`."""
        names = self.archive(path).dag_files()
        return merged_module(path, [self.load_dag_file(f"{path}/{name}") for name in names])

    def read_archived(self, path: str) -> bytes:
        """Return the bytes of a data file in an archive; `path` is absolute. Raises OSError or ArchiveError."""
        inside = self._archive_of(path[len(str(self.dags_folder)) + 1 :])
        if inside is None:
            raise FileNotFoundError(path)
        return self.archive(inside[0]).read(inside[1])

    def archive_name(self, path: str) -> str | None:
        """Return the archive of the DAG file at `path`, both relative to the DAG folder; None for a plain file."""
        inside = self._archive_of(path)
        return inside[0] if inside else None

    def _archive_of(self, path: str) -> tuple[str, str] | None:
        """Return the archive and the name inside it; None for a plain file, even in a folder called `x.zip`."""
        if ARCHIVE_SUFFIX not in path:
            return None
        inside = split_archive_path(path)
        return inside if inside and not (self.dags_folder / inside[0]).is_dir() else None

    def _loader_of(self, path: str, archive: tuple[str, str] | None) -> "Loader":
        if archive is None:
            return LocalLoader(self._note, dag_module_name(path), f"{self.dags_folder}/{path}")
        with own_sandbox():
            from sandbox.sources.archives import ArchiveLoader

        return cast("Loader", ArchiveLoader(self.archive(archive[0]), archive[1], self._note))


def merged_module(path: str, modules: list[ModuleType]) -> ModuleType:
    """Return a module for a whole archive, with the names of all its DAG files, as `file.name`."""
    merged = ModuleType(dag_module_name(path))
    for module in modules:
        stem = module.__name__.removeprefix(DAG_MODULE_PREFIX).partition("_")[2]
        merged.__dict__.update({f"{stem}.{name}": value for name, value in vars(module).items()})
    return merged


def import_module(name: str, loader: "Loader", filename: str) -> ModuleType:
    """Import one file under this name and return its module. The file's exceptions propagate."""
    spec = importlib.util.spec_from_file_location(name, filename, loader=loader)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
