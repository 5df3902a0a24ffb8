"""Finds the local modules that a file's functions import only when they run. They, too, belong to its version.

It imports nothing: it reads the sources, and follows their import statements from module to module. It cannot find a
module with a computed name; that one is imported from the disk when the function runs.
"""

import ast
import importlib.util
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path

from asynsched.serialization.schema import SourceFile
from sandbox.sources.archives import ArchiveError
from sandbox.sources.local_imports import LocalLoader

_MAY_IMPORT_LATER = re.compile(
    r"(?m)^[ \t]+(?:import|from)\b|[:;][ \t]*(?:import|from)\b|\bimport_module\b|\b__import__\b"
)
"""A statement at the beginning of a line has been executed, and its imports were recorded then."""


def note_later_imports(sources: list[SourceFile], dags_folder: Path) -> None:
    """Record the local modules that the sources import in functions, and the modules that these import in turn.

    The loaders of `LocalImports` append them to `sources`. The DAG folder is absolute.
    """
    finder = _LocalFinder(f"{dags_folder}/")
    n_executed = len(sources)
    for index, source in enumerate(sources):
        if index >= n_executed or _MAY_IMPORT_LATER.search(source.text):
            for name in _imported_names(source):
                finder.find(name)


class _LocalFinder:
    """Finds modules as an import would, but looks into the DAG folder first: most names are not there."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._specs: dict[str, ModuleSpec | None] = {}
        self._entries = [entry for entry in sys.path if f"{entry}/".startswith(folder)]

    def find(self, name: str) -> ModuleSpec | None:
        """Return the place of a local module, or None. Records a new module, with its packages."""
        if name not in self._specs:
            spec = self._specs[name] = self._spec(name)
            if spec is not None and spec.loader is not None:
                _record(name, spec)
        return self._specs[name]

    def _spec(self, name: str) -> ModuleSpec | None:
        package = name.rpartition(".")[0]
        if not package:
            is_there = name not in sys.stdlib_module_names and _search(name, self._entries) is not None
            return self._if_local(_search(name, sys.path)) if is_there else None
        found = self.find(package)
        locations = None if found is None else found.submodule_search_locations
        return None if locations is None else self._if_local(_search(name, locations))

    def _if_local(self, spec: ModuleSpec | None) -> ModuleSpec | None:
        if spec is None:
            return None
        places = [spec.origin] if spec.has_location else spec.submodule_search_locations or []
        return spec if any(f"{place}/".startswith(self._folder) for place in places) else None


def _search(name: str, entries: list[str]) -> ModuleSpec | None:
    """Return the spec that the import system finds in these places. Its own search would import the packages."""
    portions: list[str] = []
    for entry in entries:
        finder = pkgutil.get_importer(entry) if isinstance(entry, str) else None
        spec = None if finder is None else finder.find_spec(name)
        if spec is not None and spec.loader is not None:
            return spec
        portions += [] if spec is None else spec.submodule_search_locations or ()
    if not portions:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace


def _record(name: str, spec: ModuleSpec) -> None:
    """Record a module's source if it can be read; if not, its import will report the error."""
    if isinstance(spec.loader, LocalLoader):
        with suppress(OSError, SyntaxError, ArchiveError):
            spec.loader.get_source(name)


def _imported_names(source: SourceFile) -> Iterator[str]:
    """Yield the full name of every module that a statement of the source may import."""
    package = source.module if source.path.endswith("/__init__.py") else source.module.rpartition(".")[0]
    todo: list[ast.AST] = [_tree(source.text)]
    while todo:
        node = todo.pop()
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                yield from _names_from(node, package)
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]
            ):
                if called in {"import_module", "__import__"} and not name.startswith("."):
                    yield name
        todo += _children(node)


def _names_from(node: ast.ImportFrom, package: str) -> Iterator[str]:
    """Yield the module that a `from` statement names, and its names that may be submodules."""
    name = node.module or ""
    if node.level:
        try:
            name = importlib.util.resolve_name("." * node.level + name, package)
        except ImportError:
            return
    yield name
    yield from (f"{name}.{alias.name}" for alias in node.names if alias.name != "*")


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a statement or expression, except those that only type checkers see."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"), orelse=rest):
            yield from rest
        case _:
            yield from ast.iter_child_nodes(node)


def _tree(text: str) -> ast.AST:
    """Return a source's syntax tree, an empty one if the text is not Python or nested too deeply."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Module([], [])
