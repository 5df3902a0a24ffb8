"""A walk through the DAG folder: its Python files and archives, the folders to watch, where symbolic links lead.

A walk reads names and metadata only. It leaves out the scheduler's home, names that begin with a dot, `__pycache__`,
`node_modules` and virtual environments. Each real folder is visited once, by its own path before a link's: so links
to folders are followed, and loops are cut. Ignored files are found too, because a DAG file may import them.
"""

import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from msgspec import Struct
from pathspec import GitIgnoreSpec

from asynsched.airflow.plugins_manager import python_files

try:
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    BY_RE: dict[str, Any] = {"backend": "simple"}
    """Options of a `GitIgnoreSpec` that matches with Python's `re`, also where the library finds a faster engine."""
except ImportError:  # Before pathspec 1.0, beyond which dbt-core does not go; there is no other engine.
    from pathspec.patterns.gitwildmatch import GitWildMatchPattern as GitIgnoreSpecPattern

    BY_RE = {}

# Ignore files: `.airflowignore` and `.asynschedignore` have the same syntax, glob patterns as in `.gitignore`, which is
# the default of Airflow's core.dag_ignore_file_syntax. With `regexp`, Airflow 2's default, each line of an
# `.airflowignore` is a regular expression that may match any part of a path. A file applies to its own folder and to
# all folders below it; a later pattern, and a deeper file, has the last word. All in an ignored folder is ignored too.

AIRFLOWS_IGNORE_FILE = ".airflowignore"
IGNORE_FILES = (AIRFLOWS_IGNORE_FILE, ".asynschedignore")
"""In the order of reading: if a folder has both, the second one takes precedence."""

LONGEST_PATTERN = 4096
"""No path is longer."""
_COMMENT = re.compile(r"(^|(?<!\s)\s+)#.*")
_REGULAR_EXPRESSION = re.compile(r"^!?\^|\$$|\\[.dwsb]|(?<![^\W_])(?<![]*?-])\.\*|\.\*(?![./]|$)")
"""Matches signs that occur only in a regular expression, or in a glob pattern for names that no DAG file has. `name.*`
and `name.*.py` are plausible globs."""


class Matched(NamedTuple):
    """Whether patterns ignore a path; None: they do not say."""

    include: bool | None


class RegularExpressions(NamedTuple):
    """The lines of an ignore file as regular expressions. They cannot take a path back that another one ignores."""

    expressions: tuple[re.Pattern[str], ...]

    def check_file(self, path: str) -> Matched:
        """Return whether any expression matches a part of the path."""
        return Matched(True if any(one.search(path.rstrip("/")) for one in self.expressions) else None)


Spec = GitIgnoreSpec | RegularExpressions


class Patterns(NamedTuple):
    """The patterns of one folder, and the lines that are not patterns, or unlikely to be meant as such."""

    spec: Spec
    problems: tuple[str, ...]


class IgnoreRules(Struct, frozen=True):
    """The patterns that hold in a folder: its own, and those of the folders above it, the deepest last."""

    levels: tuple[tuple[str, Spec], ...] = ()

    def below(self, folder: str, spec: Spec) -> "IgnoreRules":
        """Return the rules of `folder` (relative to the DAG folder, empty for itself) that has this file."""
        return IgnoreRules((*self.levels, (f"{folder}/" if folder else "", spec)))

    def ignores(self, path: str, *, is_folder: bool = False) -> bool:
        """Whether the patterns name this path, relative to the DAG folder."""
        for prefix, spec in reversed(self.levels):
            inside = path[len(prefix) :] + ("/" if is_folder else "")
            verdict = spec.check_file(inside).include
            if verdict is not None:
                return verdict
        return False


def read_patterns(name: str, text: str) -> Patterns:
    """Return the patterns in an ignore file's text; an invalid line is reported and skipped.

    A line that looks like a regular expression, which was the default of Airflow 2, is named, but holds as a glob.
    """
    lines: list[str] = []
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        pattern = _COMMENT.sub("", line)
        if len(pattern) > LONGEST_PATTERN:
            problems.append(f"{name}, line {number}: a pattern longer than any path; the line is skipped")
            continue
        try:
            _spec([pattern])
        except (ValueError, re.error, FutureWarning):  # the latter where a program makes warnings errors
            problems.append(f"{name}, line {number}: {line.strip()!r} is not a glob pattern; the line is skipped")
        else:
            lines.append(pattern)
            if _REGULAR_EXPRESSION.search(pattern.strip()):
                problems.append(
                    f"{name}, line {number}: {line.strip()!r} looks like a regular expression, but is read as a glob"
                    " pattern, in which * stands for any text, and a dot for itself: *.py, sub/. The setting"
                    " watch.ignore_file_syntax can say `regexp`"
                )
    return Patterns(_spec(lines), tuple(problems))


def read_expressions(name: str, text: str) -> Patterns:
    """Return the regular expressions in an ignore file's text; an invalid line is reported and skipped."""
    found: list[re.Pattern[str]] = []
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        pattern = re.sub(r"\s*#.*", "", line).strip()
        if len(pattern) > LONGEST_PATTERN:
            problems.append(f"{name}, line {number}: a pattern longer than any path; the line is skipped")
            continue
        try:
            found += [re.compile(pattern)] if pattern else []
        except (re.error, OverflowError, RecursionError) as exc:
            problems.append(f"{name}, line {number}: {pattern!r} is no regular expression ({exc}); the line is skipped")
    return Patterns(RegularExpressions(tuple(found)), tuple(problems))


def _spec(lines: list[str]) -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(lines, BoundedPattern, **BY_RE)


# Bounded patterns
#
# The library makes one regular expression of a pattern. Where several wildcards follow one another, Python's `re` tries
# every way to share a path among them: a pattern such as `*a*a*a*a*b` may take hours. Yet of two wildcards in a row the
# first one may as well stop at the first place that fits: the rest also fits from there if it fits later. So all
# but the last one of a segment, and all but the last `**`, are made atomic: they do not backtrack. The time
# of a match then grows with the pattern and the path, not with their power.

_WILDCARD = "[^/]*"
"""The library's expression for a `*` within a segment. Nothing else becomes this: other characters are escaped."""
_ANY_FOLDERS = "(?:/.+)?"
"""Its expression for a `**` between slashes,"""
_ANY_FOLDERS_FIRST = "^(?:.+/)?"
"""and for one at the beginning."""


class BoundedPattern(GitIgnoreSpecPattern):
    """A line of an ignore file."""

    __slots__ = ()

    @classmethod
    def pattern_to_regex(cls, pattern: str) -> tuple[str | None, bool | None]:  # type: ignore[override]
        """Return the regular expression of a pattern, and whether it ignores paths, or keeps them."""
        regex, include = super().pattern_to_regex(pattern)
        return (None if regex is None else without_backtracking(regex)), include


def without_backtracking(regex: str) -> str:
    """Return a regular expression of the library's that fits the same paths, with atomic wildcards."""
    first, *others = regex.split(_ANY_FOLDERS)
    if not others:
        return _atomic_segments(first)
    *inner, last = map(_atomic_segments, others)
    first = _atomic_segments(first)
    if first.startswith(_ANY_FOLDERS_FIRST):
        first = f"^(?>(?:.+?/)??{first.removeprefix(_ANY_FOLDERS_FIRST)}(?=/))"
    return first + "".join(f"(?>(?:/.+?)??{part}(?=/))" for part in inner) + _ANY_FOLDERS + last


def _atomic_segments(regex: str) -> str:
    first, *others = regex.split(_WILDCARD)
    if not others:
        return first
    *inner, last = others
    # Where a segment ends behind a wildcard, that is its last one: it may have to give back.
    parts = [_WILDCARD + part if "/" in part.replace("[^/]", "") else f"(?>{_WILDCARD}?{part})" for part in inner]
    return first + "".join(parts) + _WILDCARD + last


SUFFIXES = (".py", ".zip")
NEVER_ENTERED = frozenset({"__pycache__", "node_modules"})
VIRTUAL_ENVIRONMENT = "pyvenv.cfg"
MAX_IGNORE_FILE_BYTES = 1024**2
ROOT = ""
"""The relative path of the DAG folder itself."""


class FolderId(NamedTuple):
    """Identity of a folder, independent of its path."""

    device: int
    inode: int


class FoundFile(NamedTuple):
    """A Python file or archive. Equal ones have the same content, judged by their metadata."""

    modified_ns: int
    size: int
    inode: int
    is_ignored: bool


class FoundAt(NamedTuple):
    """A file outside of the DAG folder, by its absolute path and its metadata."""

    path: str
    modified_ns: int
    size: int


class Snapshot(Struct):
    """The DAG folder as one walk found it. Paths are relative to it, with forward slashes."""

    files: dict[str, FoundFile] = {}
    folders: dict[FolderId, str] = {}
    ignored_folders: set[str] = set()
    rules: dict[str, IgnoreRules] = {}
    """Of each folder."""
    outside: dict[FolderId, str] = {}
    """Absolute paths of folders elsewhere: they hold the target of a link, or a link on the DAG folder's own path."""
    links: dict[tuple[FolderId, str], set[str]] = {}
    """The paths of a name in a real folder through symbolic links; ROOT: a change there needs a new walk."""
    installation: tuple[FoundAt, ...] = ()
    """The Python files of the installation's own code."""
    whole: set[FolderId] = set()
    """The folders of `outside` in which every Python file counts: the folders of that code."""
    problems: list[str] = []
    """Reported to the user: unreadable folders, lines of ignore files that are not patterns."""

    def is_ignored(self, path: str) -> bool:
        """Whether the ignore files name a file, or a folder that it is in."""
        folder = path.rpartition("/")[0]
        return folder in self.ignored_folders or self.rules.get(folder, IgnoreRules()).ignores(path)


def is_candidate(name: str) -> bool:
    """Whether a file of this name could be a DAG file, or a module that one imports."""
    return name.endswith(SUFFIXES) and not name.startswith(".")


def join(folder: str, name: str) -> str:
    """Return the relative path of `name` in a relative folder."""
    return f"{folder}/{name}" if folder else name


def scan(root: Path, home: Path, others: Sequence[str] = (), syntax: str = "glob") -> Snapshot:
    """Walk the DAG folder, without the scheduler's home. Blocking: takes about 10 µs a file.

    Args:
        root: The DAG folder.
        home: The scheduler's home.
        others: The folders of the installation's own code, which is looked at as well.
        syntax: The syntax of `.airflowignore`: `glob` or `regexp`.

    Raises OSError if the DAG folder itself is missing, no folder, or cannot be read.
    """
    snapshot = _Walk(root, home, syntax).run()
    for folder in others:
        _note_code(folder, snapshot)
    return snapshot


def _note_code(folder: str, snapshot: Snapshot) -> None:
    found = []
    for path in python_files(folder):
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116
            found.append(FoundAt(path, status.st_mtime_ns, status.st_size))
    snapshot.installation += tuple(found)
    for place in {folder, *(os.path.dirname(path) for path, *_ in found)}:  # noqa: PTH120
        if (identity := _folder_id(place)) is not None and identity not in snapshot.folders:
            snapshot.outside.setdefault(identity, place)
            snapshot.whole.add(identity)


class _Walk:
    def __init__(self, root: Path, home: Path, syntax: str) -> None:
        self._root = str(root)
        self._syntax = syntax
        self._home = _folder_id(str(home))
        self._snapshot = Snapshot()
        self._pending: deque[tuple[str, IgnoreRules, bool]] = deque([(ROOT, IgnoreRules(), False)])
        self._linked: deque[tuple[str, IgnoreRules, bool]] = deque()
        self._looked_at: set[Path] = set()
        """Paths that were searched for links, above the DAG folder and its links."""

    def run(self) -> Snapshot:
        os.scandir(self._root).close()
        self._note_links_on(Path(self._root))
        while self._pending or self._linked:
            folder, rules, is_ignored = (self._pending or self._linked).popleft()
            try:
                self._visit(folder, rules, is_ignored=is_ignored)
            except (FileNotFoundError, NotADirectoryError):
                continue  # removed since its parent was read
            except OSError as exc:
                self._snapshot.problems.append(f"{folder or self._root}: the folder cannot be read: {exc.strerror}")
        return self._snapshot

    def _note_links_on(self, path: Path) -> None:
        """Note the links on a path, and those on the paths of these, to be watched: deployments swap such links."""
        pending = [path]
        while pending:
            last = pending.pop()
            for place in (last, *last.parents):
                if place in self._looked_at:
                    break
                self._looked_at.add(place)
                if place.is_symlink():
                    self._note_link(os.path.realpath(place.parent), place.name, ROOT)
                    pending.append(place.parent / place.readlink())

    def _note_link(self, folder: str, name: str, known_as: str) -> None:
        identity = _folder_id(folder)
        if identity is not None:
            self._snapshot.outside.setdefault(identity, folder)
            self._snapshot.links.setdefault((identity, name), set()).add(known_as)

    def _absolute(self, relative: str) -> str:
        return f"{self._root}/{relative}" if relative else self._root

    def _visit(self, folder: str, rules: IgnoreRules, *, is_ignored: bool) -> None:
        path = self._absolute(folder)
        identity = _folder_id(path)
        if identity is None or identity in self._snapshot.folders or identity == self._home:
            return
        with os.scandir(path) as listing:
            entries = {entry.name: entry for entry in listing}
        if VIRTUAL_ENVIRONMENT in entries:
            return
        rules = self._read_ignore_files(folder, rules, entries)
        self._snapshot.folders[identity] = folder
        self._snapshot.rules[folder] = rules
        if is_ignored:
            self._snapshot.ignored_folders.add(folder)
        for name in sorted(entries):
            self._see(join(folder, name), entries[name], rules, is_ignored=is_ignored)

    def _read_ignore_files(self, folder: str, rules: IgnoreRules, names: Iterable[str]) -> IgnoreRules:
        for name in IGNORE_FILES:
            if name not in names:
                continue
            relative = join(folder, name)
            try:
                content = _read_start(self._absolute(relative))
            except OSError as exc:
                self._snapshot.problems.append(f"{relative}: the ignore file cannot be read: {exc.strerror}")
                continue
            is_regexp = self._syntax == "regexp" and name == AIRFLOWS_IGNORE_FILE
            patterns = (read_expressions if is_regexp else read_patterns)(relative, self._decoded(relative, content))
            self._snapshot.problems += self._tellable(relative, patterns.problems)
            rules = rules.below(folder, patterns.spec)
        return rules

    def _tellable(self, name: str, problems: tuple[str, ...]) -> tuple[str, ...]:
        """Return problems of an ignore file, without its lines if the file is behind a link out of the DAG folder."""
        inside = os.path.realpath(self._root)
        if not problems or os.path.realpath(self._absolute(name)).startswith(f"{inside}/"):
            return problems
        why = "they are not shown, for the file is not in the DAG folder"
        return (f"{name}: {len(problems)} lines may be no glob patterns; {why}",)

    def _decoded(self, name: str, content: bytes) -> str:
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            if exc.end < MAX_IGNORE_FILE_BYTES:  # else it may be whole, and only its start is read
                number = content.count(b"\n", 0, exc.start) + 1
                self._snapshot.problems.append(f"{name}, line {number}: this is not UTF-8; save the file as UTF-8")
            return content.decode("utf-8-sig", "replace")

    def _see(self, path: str, entry: os.DirEntry[str], rules: IgnoreRules, *, is_ignored: bool) -> None:
        if entry.name.startswith(".") or entry.name in NEVER_ENTERED:
            return
        is_link = entry.is_symlink()
        try:
            is_folder = entry.is_dir()
        except OSError:
            is_folder = False
        is_file = not is_folder and is_candidate(entry.name)
        if is_link:
            self._note_link(*os.path.split(os.path.realpath(entry.path)), path if is_file else ROOT)
            with suppress(OSError):  # gone meanwhile
                self._note_links_on(Path(entry.path).parent / Path(entry.path).readlink())
        if is_folder:
            below = is_ignored or rules.ignores(path, is_folder=True)
            (self._linked if is_link else self._pending).append((path, rules, below))
        elif is_file:
            found = file_at(entry, is_ignored=is_ignored or rules.ignores(path))
            if found is not None:
                self._snapshot.files[path] = found


def file_at(file: Path | os.DirEntry[str], *, is_ignored: bool) -> FoundFile | None:
    """Return a file by its metadata; None if it does not exist. A broken link is a file."""
    try:
        status = file.stat()
    except OSError:
        try:
            status = file.stat(follow_symlinks=False)
        except OSError:
            return None
    if stat.S_ISDIR(status.st_mode):
        return None
    return FoundFile(status.st_mtime_ns, status.st_size, status.st_ino, is_ignored)


def _folder_id(path: str) -> FolderId | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return FolderId(status.st_dev, status.st_ino)


def _read_start(path: str) -> bytes:
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        return file.read(MAX_IGNORE_FILE_BYTES)


# File systems

MOUNTS = Path("/proc/self/mountinfo")

SILENT = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "drvfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "prl_fs", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs",
    "vmhgfs", "wekafs",
})  # fmt: skip
"""Types whose files can change without an event here."""


def has_events(path: Path) -> bool:
    """Whether the file system of `path` reports every change to a file, judged by its type."""
    try:
        mounts = MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return True
    kind = type_of_mount(path.resolve(), mounts)
    return kind not in SILENT and not kind.startswith("fuse")


def type_of_mount(path: PurePath, mounts: str) -> str:
    """Return the type of the file system that an absolute, resolved path is on; empty if `mounts` lists none.

    Source:
        proc_pid_mountinfo(5): the mount point is the fifth field, the type is the first one after ` - `.
    """
    best, kind = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = PurePath(_unescaped(fields[4]))
        # Of two mounts on one point the later one is seen.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind


def _unescaped(text: str) -> str:
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        text = text.replace(f"\\{code}", character)
    return text
