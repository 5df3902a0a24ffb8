"""What the dispatcher knows of the folder's files: what was last parsed of each, and what each has imported."""

from collections.abc import Iterable, Iterator, Mapping

from asynsched.store.dags.files import DagFileRow


class KnownFiles:
    """The files that were parsed, by path, and the local modules that they import.

    Args:
        rows: What was last parsed.
        kinds: The kinds of error that each file has, for those that have any.
    """

    def __init__(self, rows: Iterable[DagFileRow] = (), kinds: Mapping[str, frozenset[str]] | None = None) -> None:
        self._rows: dict[str, DagFileRow] = {}
        self._kinds: dict[str, frozenset[str]] = {}
        self._importers: dict[str, set[str]] = {}
        self._texts: dict[str, str | None] = {}
        self._text_changes: dict[str, int] = {}
        self.n_text_changes = 0
        for row in rows:
            self.put(row, (kinds or {}).get(row.path, frozenset()))

    def __iter__(self) -> Iterator[DagFileRow]:
        return iter(list(self._rows.values()))

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, path: str) -> DagFileRow | None:
        """Return what was last parsed of a file, None if nothing was."""
        return self._rows.get(path)

    def put(self, row: DagFileRow, kinds: frozenset[str]) -> None:
        """Note what was parsed of a file, and the kinds of its errors."""
        self.forget(row.path)
        self._rows[row.path] = row
        if kinds:
            self._kinds[row.path] = kinds
        for path in _modules_of(row):
            self._importers.setdefault(path, set()).add(row.path)

    def forget(self, path: str) -> None:
        """Forget a file."""
        row = self._rows.pop(path, None)
        self._kinds.pop(path, None)
        for module in {} if row is None else _modules_of(row):
            self._importers[module].discard(path)

    def with_error(self, kinds: frozenset[str]) -> set[str]:
        """Return the files that have an error of one of these kinds."""
        return {path for path, found in self._kinds.items() if found & kinds}

    def has_error(self, path: str, kinds: frozenset[str]) -> bool:
        """Whether a file has an error of one of these kinds."""
        return bool(self._kinds.get(path, frozenset()) & kinds)

    def paths(self) -> set[str]:
        """Return every file, and every local module that one has imported."""
        return self._rows.keys() | {module for module, importers in self._importers.items() if importers}

    def note_text(self, path: str, text_hash: str | None) -> set[str]:
        """Note a module's text (None: it is gone), and return the files that have imported it with another one."""
        if path not in self._texts or self._texts[path] != text_hash:
            self.n_text_changes += 1
            self._text_changes[path] = self.n_text_changes
            self._texts[path] = text_hash
        importers = self._importers.get(path, set())
        return {importer for importer in importers if _modules_of(self._rows[importer])[path] != text_hash}

    def has_modules_of(self, row: DagFileRow | None) -> bool:
        """Return whether the modules that a parse has imported are as they were noted here, as far as they were."""
        return row is not None and all(
            self._texts.get(path, imported) == imported for path, imported in _modules_of(row).items()
        )

    def modules_changed_since(self, path: str, n_text_changes: int) -> set[str]:
        """Return the modules of a file that have another text than it imported, if that was noted since.

        Args:
            path: The file.
            n_text_changes: What `n_text_changes` was when the file's parse began. A text noted before that is no news:
                a parse that ends without a report leaves the modules of the one before, and must not cause another.
        """
        row = self._rows.get(path)
        modules = {} if row is None else _modules_of(row)
        return {
            module
            for module, imported in modules.items()
            if self._text_changes.get(module, 0) > n_text_changes and self._texts[module] != imported
        }


def _modules_of(row: DagFileRow) -> dict[str, str]:
    """Return the modules outside the file itself, with their hashes: an archive's own change with it."""
    return {
        module.path: module.content_hash
        for module in row.local_modules
        if module.path != row.path and ".zip/" not in module.path
    }
