"""Ignore files: which files of the DAG folder are not to be parsed.

`.airflowignore` and `.asynschedignore` have the same syntax: glob patterns, as in `.gitignore`. They hold for their
own folder and all below it; a later pattern, and a deeper file, has the last word. All in an ignored folder is ignored
too.

Source:
    Airflow "core.dag_ignore_file_syntax", its default `glob`.
"""

import re
from typing import NamedTuple

from msgspec import Struct
from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

IGNORE_FILES = (".airflowignore", ".asynschedignore")
"""In the order of reading: if a folder has both, the second one takes precedence."""

LONGEST_PATTERN = 4096
"""No path is longer."""
_COMMENT = re.compile(r"(^|(?<!\s)\s+)#.*")
_REGULAR_EXPRESSION = re.compile(r"^!?\^|\$$|\\[.dwsb]|(?<![^\W_])(?<![]*?-])\.\*|\.\*(?![./]|$)")
"""Matches signs that occur only in a regular expression, or in a glob pattern for names that no DAG file has. `name.*`
and `name.*.py` are plausible globs."""


class Patterns(NamedTuple):
    """The patterns of one folder, and the lines that are not patterns, or unlikely to be meant as such."""

    spec: GitIgnoreSpec
    problems: tuple[str, ...]


class IgnoreRules(Struct, frozen=True):
    """The patterns that hold in a folder: its own, and those of the folders above it, the deepest last."""

    levels: tuple[tuple[str, GitIgnoreSpec], ...] = ()

    def below(self, folder: str, spec: GitIgnoreSpec) -> "IgnoreRules":
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
                    " pattern, in which * stands for any text, and a dot for itself: *.py, sub/"
                )
    return Patterns(_spec(lines), tuple(problems))


def _spec(lines: list[str]) -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(lines, BoundedPattern, backend="simple")


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
