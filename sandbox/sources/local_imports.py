"""Imports DAG files, and modules from the DAG folder and from archives in it; and again later, exactly as they were.

A parse gives a `SourceRecorder` to `LocalImports`; the process that runs a version calls `install_version`.

No byte code is read or written: the text that is recorded is the text that ran. The DAG folder comes last in
`sys.path`: a `json.py` in it never shadows the standard library's. The code for archives is loaded with the first one.
"""

import hashlib
import importlib.machinery
import importlib.util
import linecache
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from asynsched.authoring.own_sandbox import give_way, is_own, own_sandbox
from asynsched.protocol.messages import CodeVersion, SourceRef
from asynsched.serialization.schema import SourceFile

if TYPE_CHECKING:
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
    """Makes an absolute DAG folder, and archives in it, importable. `note` sees each local source before its code."""

    def __init__(self, dags_folder: Path, note: Note = decode_text) -> None:
        self.dags_folder = dags_folder
        self._note = note
        self._archives: dict[str, Archive] = {}

    def install(self, path: str) -> None:
        """Append the DAG folder to `sys.path`, after the archive of the DAG file at `path` if that is in one."""
        give_way()
        sys.dont_write_bytecode = True
        sys.path_hooks.insert(0, self._finder_for)
        entries = [str(self.dags_folder)]
        if (inside := self._archive_of(path)) is not None:
            entries.insert(0, f"{self.dags_folder}/{inside[0]}")
        sys.path[:] = [entry for entry in sys.path if entry not in entries] + entries
        for entry in [entry for entry in sys.path_importer_cache if self._is_local(entry)]:
            del sys.path_importer_cache[entry]

    def _is_local(self, entry: str) -> bool:
        return f"{entry}/".startswith(f"{self.dags_folder}/")

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
        inside = split_archive_path(entry[len(str(self.dags_folder)) + 1 :])
        if inside is None:
            raise ImportError("neither a folder nor an archive", path=entry)
        return self.archive(inside[0]).finder(inside[1], self._note)

    def archive(self, path: str) -> "Archive":
        """Return the archive at `path`, relative to the DAG folder, opened once. Raises ArchiveError or OSError."""
        with own_sandbox():
            from sandbox.sources.archives import Archive

        if path not in self._archives:
            self._archives[path] = Archive(f"{self.dags_folder}/{path}")
        return self._archives[path]

    def load_dag_file(self, path: str) -> ModuleType:
        """Import the DAG file at `path`, relative to the DAG folder (`archive.zip/dag.py` too), and return it.

        Raises ArchiveError, OSError, or what the file raises.
        """
        archive = self._archive_of(path)
        if archive is None:
            return import_file(LocalLoader(self._note, dag_module_name(path), f"{self.dags_folder}/{path}"))
        if archive[1]:
            return import_file(self.archive(archive[0]).loader(dag_module_name(path), archive[1], self._note))
        names = self.archive(path).dag_files()
        return merged_module(path, [self.load_dag_file(f"{path}/{name}") for name in names])

    def read_archived(self, path: str) -> bytes:
        """Return the bytes of a data file in an archive; `path` is absolute. Raises OSError or ArchiveError."""
        inside = self._archive_of(path[len(str(self.dags_folder)) + 1 :])
        if inside is None:
            raise FileNotFoundError(path)
        return self.archive(inside[0]).read(inside[1])

    def _archive_of(self, path: str) -> tuple[str, str] | None:
        """Return the archive and the name inside it; None for a plain file, even in a folder called `x.zip`."""
        if ARCHIVE_SUFFIX not in path:
            return None
        inside = split_archive_path(path)
        return inside if inside and not (self.dags_folder / inside[0]).is_dir() else None


def merged_module(path: str, modules: list[ModuleType]) -> ModuleType:
    """Return a module for a whole archive, with the names of all its DAG files, as `file.name`."""
    merged = ModuleType(dag_module_name(path))
    for module in modules:
        stem = module.__name__.removeprefix(DAG_MODULE_PREFIX).partition("_")[2]
        merged.__dict__.update({f"{stem}.{name}": value for name, value in vars(module).items()})
    return merged


def import_file(loader: importlib.machinery.SourceFileLoader) -> ModuleType:
    """Import the one file that a loader is for, and return its module. The file's exceptions propagate."""
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(loader.name, None)
        raise
    return module


class SourceRecorder:
    """Records each local source once, in the order of the imports, by its path in the DAG folder.

    It reports each before its code runs, so that a source that kills the process is known.
    """

    def __init__(self, dags_folder: Path, report: Callable[[SourceFile], None]) -> None:
        self._folder = str(dags_folder)
        self._report = report
        self._seen: set[tuple[str, str]] = set()

    def note(self, module: str, filename: str, data: bytes) -> str:
        """Record a source and return its text."""
        path = filename[len(self._folder) :].lstrip("/")
        try:
            text = decode_text(module, filename, data)
        except SyntaxError:
            self._add(path, module, data.decode("utf-8", "replace"))
            raise
        self._add(path, module, text)
        return text

    def _add(self, path: str, module: str, text: str) -> None:
        if (path, module) not in self._seen:
            self._seen.add((path, module))
            data = text.encode("utf-8", "surrogatepass")
            self._report(SourceFile(path, module, hashlib.sha256(data).hexdigest(), text))


class VersionLoader(importlib.machinery.SourceFileLoader):
    """Loads one module of a version from its stored text; data files beside it come from the disk."""

    def __init__(self, fullname: str, path: str, text: str, local: LocalImports) -> None:
        super().__init__(fullname, path)
        self._text = text
        self._local = local

    def get_code(self, fullname: str) -> CodeType:
        """Return the module's code. Tracebacks show the version's lines, not those on disk."""
        path = self.get_filename(fullname)
        linecache.cache[path] = (len(self._text), None, self._text.splitlines(keepends=True), path)
        return self.source_to_code(self._text, path)

    def get_source(self, _fullname: str) -> str:
        return self._text

    def get_data(self, path: str) -> bytes:
        try:
            return super().get_data(path)
        except NotADirectoryError:
            return self._local.read_archived(path)


class VersionFinder:
    """Finds the modules of a version, before anything else does."""

    def __init__(self, code: CodeVersion, read_source: Callable[[str], str], local: LocalImports) -> None:
        self._folder = code.dags_folder.rstrip("/")
        self._read_source = read_source
        self._local = local
        self._refs = {ref.module: ref for ref in code.sources}
        self._namespaces = _namespaces(code.sources, self._refs)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module of the version; None for other modules."""
        ref = self._refs.get(fullname)
        if ref is not None:
            return importlib.util.spec_from_loader(fullname, self.loader(ref))
        folder = self._namespaces.get(fullname)
        return None if folder is None else self._namespace(fullname, path, f"{self._folder}/{folder}")

    def loader(self, ref: SourceRef) -> VersionLoader:
        return VersionLoader(ref.module, f"{self._folder}/{ref.path}", self._read_source(ref.content_hash), self._local)

    def _namespace(
        self, fullname: str, path: Sequence[str] | None, folder: str
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a namespace package with the version's folder, even if the folder has left the disk since."""
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        found = None if is_own(found) else found
        locations = [] if found is None else list(found.submodule_search_locations or ())
        if found is not None and found.loader is not None and not (found.origin or "").startswith(f"{self._folder}/"):
            return found
        spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [entry for entry in locations if entry != folder] + [folder]
        return spec


def _namespaces(sources: Sequence[SourceRef], refs: dict[str, SourceRef]) -> dict[str, str]:
    """Return the packages that have no source of their own, with their folders."""
    folders: dict[str, str] = {}
    for ref in sources:
        folder = PurePosixPath(ref.path).parent
        if ref.path.endswith("/__init__.py"):
            folder = folder.parent
        package = ref.module.rpartition(".")[0]
        while package and folder.name == package.rpartition(".")[2]:
            if package not in refs:
                folders.setdefault(package, str(folder))
            package, folder = package.rpartition(".")[0], folder.parent
    return folders


def install_version(
    code: CodeVersion, read_source: Callable[[str], str], prepare: Callable[[], None] = lambda: None
) -> ModuleType:
    """Import a version's DAG file, with exactly the version's sources, and return its module.

    Modules outside the version come from Python's usual places, and last from the DAG folder on disk. Call it
    once in a process. `__file__` of each module is the original path. For a whole archive, the module has the names of
    all its DAG files, as `file.name`. `read_source` returns the text with a content hash. `prepare` is called before
    the file's code runs.
    """
    local = LocalImports(Path(code.dags_folder))
    finder = VersionFinder(code, read_source, local)
    main = code.sources[0]
    local.install(main.path)
    sys.meta_path.insert(0, finder)
    prepare()
    files = [ref for ref in code.sources if ref.module.startswith(DAG_MODULE_PREFIX)]
    modules = [import_file(finder.loader(ref)) for ref in files]
    return modules[0] if len(modules) == 1 else merged_module(main.path, modules)
