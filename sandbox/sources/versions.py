"""The sources of a DAG file: recorded in a parse, and later imported again exactly as they were.

A parse gives a `SourceRecorder` to `LocalImports`; the process that runs a version calls `install_version`.
"""

import hashlib
import importlib.machinery
import importlib.util
import linecache
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from types import CodeType, ModuleType

from asynsched.authoring.own_sandbox import is_own
from asynsched.protocol.messages import CodeVersion, SourceRef
from asynsched.serialization.schema import SourceFile
from sandbox.sources.local_imports import DAG_MODULE_PREFIX, LocalImports, decode_text, import_module, merged_module


class SourceRecorder:
    """Records each local source once, in the order of the imports, and passes it on immediately.

    Args:
        dags_folder: The DAG folder; paths are recorded relative to it.
        report: Called with each new source before its code runs, so that a source that kills the process is known.
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
            filename = f"{self._folder}/{ref.path}"
            return importlib.util.spec_from_file_location(fullname, filename, loader=self.loader(ref))
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


def install_version(code: CodeVersion, read_source: Callable[[str], str]) -> ModuleType:
    """Import a version's DAG file, with exactly the version's sources, and return its module.

    Modules outside the version come from Python's usual places, and last from the DAG folder on disk. Call it
    once in a process. `__file__` of each module is the original path.

    Args:
        code: The version. For a whole archive, the module has the names of all its DAG files, as `file.name`.
        read_source: Returns the text with this content hash.

    Raises:
        BaseException: The DAG file or `read_source` raised it.
    """
    local = LocalImports(Path(code.dags_folder))
    finder = VersionFinder(code, read_source, local)
    main = code.sources[0]
    local.install(local.archive_name(main.path))
    sys.meta_path.insert(0, finder)
    files = [ref for ref in code.sources if ref.module.startswith(DAG_MODULE_PREFIX)]
    modules = [import_module(ref.module, finder.loader(ref), f"{code.dags_folder}/{ref.path}") for ref in files]
    return modules[0] if len(modules) == 1 else merged_module(main.path, modules)
