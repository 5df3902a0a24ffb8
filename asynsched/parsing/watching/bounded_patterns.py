"""Glob patterns whose matching takes a time that grows with the pattern and the path, not with their power.

The library makes one regular expression of a pattern. Where several wildcards follow one another, Python's `re` tries
every way to share a path among them: a pattern such as `*a*a*a*a*b` may take hours. Yet of two wildcards in a row the
first one may as well stop at the first place that fits: whatever the rest fits later, it also fits from there. So all
but the last one of a segment, and all but the last `**`, are made atomic: what they took is not given back.
"""

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

_WILDCARD = "[^/]*"
"""What the library makes of a `*` within a segment. Nothing else becomes this: other characters are escaped."""
_ANY_FOLDERS = "(?:/.+)?"
"""What it makes of a `**` between slashes,"""
_ANY_FOLDERS_FIRST = "^(?:.+/)?"
"""and of one at the beginning."""


class BoundedPattern(GitIgnoreSpecPattern):
    """A line of an ignore file."""

    __slots__ = ()

    @classmethod
    def pattern_to_regex(cls, pattern: str) -> tuple[str | None, bool | None]:  # type: ignore[override]
        """Return the regular expression of a pattern, and whether what it fits is ignored, or kept."""
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
