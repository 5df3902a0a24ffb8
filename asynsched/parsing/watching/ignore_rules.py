"""Ignore files: which files of the DAG folder are not to be parsed.

`.airflowignore` and `.asynschedignore` have the same syntax: glob patterns, as in `.gitignore`. They hold for their
own folder and what is below; a later pattern, and a deeper file, has the last word. What is in an ignored folder is
ignored too.

Source:
    Airflow "core.dag_ignore_file_syntax", its default `glob`.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from pathspec import GitIgnoreSpec

from asynsched.parsing.watching.bounded_patterns import BoundedPattern

IGNORE_FILES = (".airflowignore", ".asynschedignore")
"""In the order of reading: where both are in a folder, the second one has the last word."""

LONGEST_PATTERN = 4096
"""No path is longer."""
_COMMENT = re.compile(r"(^|(?<!\s)\s+)#.*")
_REGULAR_EXPRESSION = re.compile(r"^!?\^|\$$|\\[.dwsb]|(?<![^\W_])(?<![]*?-])\.\*|\.\*(?![./]|$)")
"""What only a regular expression has, or a glob pattern for names that no DAG file has. `name.*` and `name.*.py` are
globs that one may mean."""


class Patterns(NamedTuple):
    """The patterns of one folder, and which lines are none, or hardly what is meant."""

    spec: GitIgnoreSpec
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IgnoreRules:
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
    """Return the patterns in an ignore file's text; a line that is no pattern is named, and skipped.

    A line that looks like a regular expression, which was the default of Airflow 2, is named, but holds as a glob.

    Args:
        name: The file, as it is shown to users.
        text: Its content.
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
            problems.append(f"{name}, line {number}: {line.strip()!r} is no glob pattern; the line is skipped")
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
