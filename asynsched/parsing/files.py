"""The files of the DAG folder: each file's last parse, the requests to look at it, and its stage.

    looked at ───▶ QUEUED ───▶ CLAIMED ───▶ PARSING ───▶ STORING ───▶ (no stage)
        │            │            │                         ▲
        │            │            ▼                         │
        │            │  (no stage: another scheduler parses it)
        └────────────┴─────── gone, or unreadable ──────────┘

A file that is claimed, being parsed or being stored is busy. Requests about a busy file are kept until it is no longer
busy. So no file is parsed twice at once, and a file that changes during its parse is parsed once more.
"""

import enum
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from datetime import datetime, timedelta
from itertools import islice

from asynsched.channels import FileChanged, FolderScanned, NameChanged
from asynsched.errors import InvalidTransition
from asynsched.parsing.looks import SETTLED_SECONDS, TRANSIENT_KINDS, Look, LookRequest, shown
from asynsched.parsing.readable_secrets import Key
from asynsched.store.dags.parse_results import StoredFile
from asynsched.store.schema import DagFileRow
from asynsched.timers import Timers, has_come

MOST_LOOKS = 500
"""How many files are looked at together at most."""
MOST_NAMES = 500
"""How many variables and connections are compared together at most."""
LOOK_AGAIN_AFTER = timedelta(seconds=SETTLED_SECONDS)
LEAST_PAUSE = timedelta(seconds=1)
"""Least time between two looks for files that are due."""
KILLED_KINDS = frozenset({"crash", "memory"})
"""The kinds of errors of a parse that ended without a report."""
SECOND_CHANCES = (timedelta(seconds=5), timedelta(seconds=30), timedelta(minutes=3))
"""The delays after which a text whose parse was killed is parsed again; after the last, only an edit parses it."""


class Stage(enum.Enum):
    """Where a file is between a look and the database. Most files have no stage, because nothing is to be done."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    PARSING = "being parsed"
    STORING = "being stored"


_STAGES_BEFORE: dict[Stage | None, set[Stage | None]] = {
    Stage.QUEUED: {None, Stage.QUEUED},
    Stage.CLAIMED: {Stage.QUEUED},
    Stage.PARSING: {Stage.CLAIMED},
    Stage.STORING: {None, Stage.QUEUED, Stage.PARSING},
    None: {Stage.CLAIMED, Stage.STORING},
}


class KnownFiles:
    """The files that were parsed, by path, and the local modules that they import."""

    def __init__(self) -> None:
        self._rows: dict[str, DagFileRow] = {}
        self._kinds: dict[str, frozenset[str]] = {}
        self._importers: dict[str, set[str]] = {}
        self._askers: dict[Key, set[str]] = {}
        self._digests: dict[Key, str] = {}
        self._texts: dict[str, str | None] = {}
        self._text_changes: dict[str, int] = {}
        self.n_text_changes = 0

    def __iter__(self) -> Iterator[DagFileRow]:
        return iter(list(self._rows.values()))

    def get(self, path: str) -> DagFileRow | None:
        """Return the last parse of a file; None if it was never parsed."""
        return self._rows.get(path)

    def put(self, row: DagFileRow, kinds: frozenset[str]) -> None:
        self.forget(row.path)
        self._rows[row.path] = row
        if kinds:
            self._kinds[row.path] = kinds
        for path in _modules_of(row):
            self._importers.setdefault(path, set()).add(row.path)
        for key in _names_of(row):
            self._askers.setdefault(key, set()).add(row.path)

    def forget(self, path: str) -> None:
        row = self._rows.pop(path, None)
        self._kinds.pop(path, None)
        for module in _modules_of(row):
            self._importers[module].discard(path)
        for key in _names_of(row):
            self._askers[key].discard(path)
            if not self._askers[key]:
                del self._askers[key]
                self._digests.pop(key, None)

    def with_import_error(self) -> set[str]:
        return {path for path, kinds in self._kinds.items() if "import" in kinds}

    def has_transient_error(self, path: str) -> bool:
        return bool(self._kinds.get(path, frozenset()) & TRANSIENT_KINDS)

    def paths(self) -> set[str]:
        """Return every file, and every local module that a file has imported."""
        return self._rows.keys() | {module for module, importers in self._importers.items() if importers}

    def importers(self, path: str) -> set[str]:
        """Return the files that have imported a module."""
        return set(self._importers.get(path, ()))

    def note_text(self, path: str, text_hash: str | None) -> set[str]:
        """Note a module's text (None: it is gone), and return the files that have imported it with another text."""
        if path not in self._texts or self._texts[path] != text_hash:
            self.n_text_changes += 1
            self._text_changes[path] = self.n_text_changes
            self._texts[path] = text_hash
        importers = self._importers.get(path, set())
        return {importer for importer in importers if _modules_of(self._rows[importer])[path] != text_hash}

    def names_asked(self, kind: str = "", name: str = "") -> set[Key]:
        """Return the variables and connections that files have asked for. A kind, or a kind and a name, limit them."""
        if name:
            return {(kind, name)} & self._askers.keys()
        return {key for key in self._askers if not kind or key[0] == kind}

    def note_digests(self, digests: Mapping[Key, str]) -> set[str]:
        """Note the digests of present answers, and return the files whose parse has got another answer."""
        found = set()
        for key, digest in digests.items():
            if key in self._askers:
                self._digests[key] = digest
                found |= {path for path in self._askers[key] if _names_of(self._rows[path])[key] != digest}
        return found

    def has_names_of(self, row: DagFileRow) -> bool:
        """Return whether no variable or connection that a parse has asked for has another digest noted here."""
        return all(self._digests.get(key, digest) == digest for key, digest in _names_of(row).items())

    def has_modules_of(self, row: DagFileRow | None) -> bool:
        """Return whether every module that a parse has imported has the text noted here, if one is noted."""
        return row is not None and all(
            self._texts.get(path, imported) == imported for path, imported in _modules_of(row).items()
        )

    def modules_changed_since(self, path: str, n_text_changes: int) -> set[str]:
        """Return the modules of a file whose text, noted since, differs from the text that the file imported.

        Args:
            path: The file.
            n_text_changes: The value of `n_text_changes` when the file's parse began. Texts noted earlier do not count:
                a parse that ends without a report leaves the modules of the one before, and must not cause another.
        """
        return {
            module
            for module, imported in _modules_of(self._rows.get(path)).items()
            if self._text_changes.get(module, 0) > n_text_changes and self._texts[module] != imported
        }


def _modules_of(row: DagFileRow | None) -> dict[str, str]:
    """Return the modules outside the file itself, with their hashes. Modules in an archive change with the archive."""
    if row is None:
        return {}
    modules = {module.path: module.content_hash for module in row.local_modules if ".zip/" not in module.path}
    modules.pop(row.path, None)
    return modules


def _names_of(row: DagFileRow | None) -> dict[Key, str]:
    """Return the digests of the variables and connections for which a parse has asked."""
    asked = () if row is None else row.asked
    return {(one.kind, one.name): one.digest for one in asked if one.kind != "option"}


class Repeats:
    """When files that have not changed are parsed again.

    This happens after an interval, if it is not zero (Airflow: min_file_process_interval), and soon after a parse that
    was killed: that may have been the machine's fault, and the next one may succeed.
    """

    def __init__(self, interval: timedelta) -> None:
        self._interval = interval
        self._next_look_at: datetime | None = None
        self._chances = Timers[datetime, str]()
        self._n_kills: dict[str, tuple[str, int]] = {}
        """By path: the hash of the text whose parses were killed, and how often in a row."""

    @property
    def next_at(self) -> datetime | None:
        """When the next file may be due; None: no time is known."""
        return min(filter(None, (self._next_look_at, self._chances.next_at)), default=None)

    def note_parsed(self, file: DagFileRow, kinds: Set[str], now: datetime) -> None:
        self._chances.disarm(file.path)
        text, n_kills = self._n_kills.pop(file.path, ("", 0))
        if kinds & KILLED_KINDS:
            n_kills = n_kills + 1 if text == file.content_hash else 1
            self._n_kills[file.path] = file.content_hash, n_kills
            if n_kills <= len(SECOND_CHANCES):
                self._chances.arm(now + SECOND_CHANCES[n_kills - 1], file.path)

    def due(self, files: Iterable[DagFileRow], now: datetime) -> list[str]:
        due = list(self._chances.due(now))
        if not self._interval or not has_come(self._next_look_at, now, max(self._interval, LEAST_PAUSE)):
            return due
        moments = {file.path: file.parsed_at + self._interval for file in files}
        repeated = [path for path, at in moments.items() if has_come(at, now, self._interval)]
        later = min((at for at in moments.values() if not has_come(at, now, self._interval)), default=None)
        self._next_look_at = max(now + self._interval if later is None else later, now + LEAST_PAUSE)
        return due + repeated


class Files:
    """The files of the folder, each with the request to look at it and its stage."""

    def __init__(self, repeat_interval: timedelta) -> None:
        self.known = KnownFiles()
        self.n_scans = 0
        """How many full scans are complete, with all their files taken in."""
        self._stages: dict[str, Stage] = {}
        self._asked: dict[str, LookRequest] = {}
        self._later: deque[tuple[datetime, LookRequest]] = deque()
        self._repeats = Repeats(repeat_interval)
        self._doubtful: set[Key] = set()
        """Variables and connections whose values may have changed since files read them."""
        self._seen: set[str] = set()
        self._ignored: set[str] = set()
        self._texts_at_claim: dict[str, int] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no file is requested, waiting, being parsed or being stored."""
        return not (self._asked or self._later or self._stages or self._doubtful)

    def is_busy(self, path: str) -> bool:
        return self._stages.get(path, Stage.QUEUED) is not Stage.QUEUED

    # Requests

    @property
    def are_asked(self) -> bool:
        return bool(self._doubtful) or any(not self.is_busy(path) for path in self._asked)

    def is_hurried(self, path: str) -> bool:
        """Whether a busy file has changed since."""
        return path in self._asked and self._asked[path].is_urgent

    @property
    def next_at(self) -> datetime | None:
        """When `to_look` may have more without a new request; None: no time is known."""
        return min(filter(None, (self._later[0][0] if self._later else None, self._repeats.next_at)), default=None)

    def ask(self, request: LookRequest) -> None:
        """Request a look at a file; the request is merged with an earlier one for the same file."""
        path = shown(request.path)
        self._asked[path] = self._asked[path].merged_with(request) if path in self._asked else request

    def ask_later(self, request: LookRequest, now: datetime) -> None:
        self._later.append((now + LOOK_AGAIN_AFTER, request))

    def take(self, messages: Iterable[FileChanged | FolderScanned | NameChanged], now: datetime) -> None:
        """Request a look at each file that a message names and, after a new module, at files with import errors.

        After a scan, all values that files have read are checked: they may have changed while no scheduler served.
        """
        has_new_module = False
        for message in messages:
            if isinstance(message, FolderScanned):
                for path in sorted(self.known.paths() - self._seen):  # the scan did not find them
                    self.ask(LookRequest(path, is_urgent=True))
                self.n_scans += 1
                self._doubtful |= self.known.names_asked()
                continue
            if isinstance(message, NameChanged):
                self._doubtful |= self.known.names_asked(message.kind, message.name)
                continue
            path = shown(message.path)
            if not message.forced:
                (self._ignored.add if message.is_ignored else self._ignored.discard)(path)
            if message.removed:
                self._seen.discard(path)
            elif path not in self._seen:
                self._seen.add(path)
                has_new_module = has_new_module or (self.n_scans > 0 and path.endswith(".py"))
            self.ask(
                LookRequest(
                    message.path,
                    is_urgent=not message.at_start,
                    is_forced=message.forced or (message.at_start and self.known.has_transient_error(path)),
                    asked_at=now if message.forced else None,
                )
            )
        if has_new_module:
            for path in sorted(self.known.with_import_error()):
                self.ask(LookRequest(path, is_urgent=True, is_forced=True))

    def to_look(self, now: datetime) -> list[LookRequest]:
        """Take the oldest requests about files that are not busy."""
        # Later than is possible: the clock was set back.
        while self._later and not now < self._later[0][0] <= now + LOOK_AGAIN_AFTER:
            self.ask(self._later.popleft()[1])
        for path in self._repeats.due(self.known, now):
            self.ask(LookRequest(path, is_forced=True))
        idle = (path for path in self._asked if not self.is_busy(path))
        return [self._asked.pop(path) for path in list(islice(idle, MOST_LOOKS))]

    def note_look(self, request: LookRequest, look: Look) -> None:
        """Request looks at the files that have imported a module with another text."""
        path = shown(request.path)
        if path.endswith(".py") and look.error is None:
            for importer in self.known.note_text(path, None if look.is_gone else look.text_hash):
                # The imports of a busy file are compared when its outcome is stored.
                if not self.is_busy(importer):
                    self.ask(LookRequest(importer, is_urgent=request.is_urgent, is_for_module=True))

    def to_compare(self) -> list[Key]:
        """Return some of the variables and connections whose values may have changed."""
        return list(islice(self._doubtful, MOST_NAMES))

    def note_digests(self, digests: Mapping[Key, str]) -> None:
        """Request the parses of files that would get other values of variables and connections now."""
        self._doubtful -= digests.keys()
        for path in sorted(self.known.note_digests(digests)):
            self.ask(LookRequest(path, is_urgent=True, is_forced=True))

    def is_ignored(self, path: str) -> bool:
        return path in self._ignored

    # Stages

    def move(self, path: str, stage: Stage | None) -> None:
        """Move a file to another stage. Raises InvalidTransition."""
        before = self._stages.get(path)
        if before not in _STAGES_BEFORE[stage]:
            raise InvalidTransition(f"stage of the file {path}", before, stage)
        if stage is None:
            del self._stages[path]
            self._texts_at_claim.pop(path, None)
            return
        self._stages[path] = stage
        if stage is Stage.CLAIMED:
            self._texts_at_claim[path] = self.known.n_text_changes

    def stored(self, paths: Iterable[str], stored: Collection[StoredFile], now: datetime) -> None:
        """The outcomes of files were stored: note them, and request the looks that follow.

        Another scheduler has taken over the `paths` that were not stored: this one waits for its results.
        """
        refused = set(paths) - {file.path for file in stored}
        for file in stored:
            n_texts = self._texts_at_claim.get(file.path, self.known.n_text_changes)
            self.move(file.path, None)
            if file.row is None:
                self.known.forget(file.path)
            else:
                kinds = frozenset(error.kind for error in file.errors if not error.is_warning)
                self.known.put(file.row, kinds)
                # A value may have changed after the parse has read it, and before anyone knew that it had.
                self._doubtful |= _names_of(file.row).keys()
                self._repeats.note_parsed(file.row, kinds, now)
            # Files that have imported a DAG that left were told nothing, and now may define it.
            importers = self.known.importers(file.path) if file.changes.removed else set()
            for path in sorted({*file.changes.contested, *importers}):
                self.ask(LookRequest(path, is_urgent=True, is_forced=True))
            for path in self.known.modules_changed_since(file.path, n_texts):
                self.ask(LookRequest(path, is_urgent=True))
        for path in sorted(refused):
            self.move(path, None)
            self.ask(LookRequest(path, is_urgent=True, is_forced=True))
