"""Expectations of tasks: how long a try lasts, how often one fails, which tasks a branch follows.

A file of expectations is TOML or JSON, and maps `DAG.TASK` to seconds, or to a table of fields. Either name may contain
the wildcards `*`, `?` and `[…]`:

    "*.*" = 60
    "etl.load" = { duration = 300, failure_rate = 0.1 }
    "etl.choose" = { follow = ["fast"] }
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from asynsched.errors import SettingsError
from asynsched.store.rows import near_names

LONGEST_SECONDS = 10 * 366 * 24 * 3600.0
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)]
Rate = Annotated[float, Meta(ge=0, le=1)]
LONGEST_RESULT = 100_000
WILDCARDS = frozenset("*?[")


class Expectation(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A simulation's expectations of a task's tries. None: not specified.

    Attributes:
        duration: How long a try lasts, seconds.
        failure_rate: Share of the tries that fail, 0 to 1.
        follow: A branch's choice: the task_ids of direct downstream tasks; all others are skipped.
        condition: A short circuit's condition; false skips the downstream tasks.
        skip: Whether the task skips itself.
        length: How many values the task returns, if other tasks are mapped over them.
        returns: The task's return value, any JSON, in place of `length` values.
    """

    duration: Seconds | None = None
    failure_rate: Rate | None = None
    follow: tuple[str, ...] | None = None
    condition: bool | None = None
    skip: bool | None = None
    length: Annotated[int, Meta(ge=0, le=LONGEST_RESULT)] | None = None
    returns: Any = None

    def over(self, other: "Expectation") -> "Expectation":
        """Return the specified fields of this expectation, and the fields of `other` for the rest."""
        said = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(other, **said)


FIELDS = Expectation.__struct_fields__
NOTHING = Expectation()


class Entry(NamedTuple):
    """One entry of a file of expectations: a pattern of `DAG.TASK`, and the expectation of the tasks that match it."""

    pattern: str
    expectation: Expectation

    @property
    def is_name(self) -> bool:
        """Whether the pattern names one task, without wildcards."""
        return not WILDCARDS.intersection(self.pattern)


class Expectations:
    """The expectation of each task.

    Args:
        entries: The entries of a file: a later one overrides an earlier one, and one without wildcards overrides all
            with wildcards.
        given: Values for the fields that the file does not specify for a task.
        history: Values from past tries, by `DAG.TASK`, for the fields that neither of the two specifies.
    """

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        *,
        given: Expectation | None = None,
        history: Mapping[str, Expectation] | None = None,
    ) -> None:
        self._patterns: list[Entry] = []
        self._names: dict[str, Expectation] = {}
        for entry in entries:
            if entry.is_name:
                self._names[entry.pattern] = entry.expectation.over(self._names.get(entry.pattern, NOTHING))
            else:
                self._patterns.append(entry)
        self._given = given or NOTHING
        self.history = history or {}
        self.of = lru_cache(maxsize=100_000)(self._of)

    def _of(self, dag_id: str, task_id: str) -> Expectation:
        name = f"{dag_id}.{task_id}"
        found = self._given.over(self.history.get(name, NOTHING))
        for pattern, expectation in self._patterns:
            if fnmatchcase(name, pattern):
                found = expectation.over(found)
        return self._names.get(name, NOTHING).over(found)

    def unused(self, names: set[str]) -> list[str]:
        """Return the patterns that match none of these tasks, each given as `DAG.TASK`."""
        patterns = [entry.pattern for entry in self._patterns if not any(fnmatchcase(n, entry.pattern) for n in names)]
        return sorted([*patterns, *(self._names.keys() - names)])


def with_certain_failures(history: Mapping[str, Expectation]) -> dict[str, Expectation]:
    """Return a history in which tasks that have never succeeded fail, and no other task has a failure rate."""
    return {
        name: seen if seen.failure_rate == 1 else msgspec.structs.replace(seen, failure_rate=None)
        for name, seen in history.items()
    }


def why_unused(pattern: str, names: set[str]) -> str:
    """Return why a pattern matches none of these tasks: an unknown key of a table, or an unknown name."""
    task, _, key = pattern.rpartition(".")
    if any(fnmatchcase(name, task) for name in names):
        return _unknown_key(task, key)
    return f"no task is named {pattern!r}.{_hint(near_names(pattern, sorted(names)))}"


def _unknown_key(name: str, key: str) -> str:
    return f"{name!r} has no key {key!r}.{_hint(near_names(key, FIELDS))} Its keys are {', '.join(FIELDS)}."


def _hint(near: tuple[str, ...]) -> str:
    return f" Did you mean {' or '.join(near)}?" if near else ""


def read_entries(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a file of expectations, in its order.

    Raises:
        SettingsError: The file cannot be read, or an entry is invalid; the message names the file and the key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise SettingsError(f"{path}: the file cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise SettingsError(f"{path}: the file is not UTF-8 text") from exc
    try:
        content = msgspec.json.decode(text) if path.suffix == ".json" else tomllib.loads(text)
    except (msgspec.DecodeError, tomllib.TOMLDecodeError) as exc:
        form = "JSON" if path.suffix == ".json" else "TOML (a name that ends in .json is read as JSON)"
        raise SettingsError(f"{path}: this is not {form}: {exc}") from exc
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: it must map DAG.TASK to seconds, or to a table")
    return tuple(_entries(path, content, ""))


def _entries(path: Path, content: Mapping[str, Any], prefix: str) -> Iterator[Entry]:
    """Yield the entries. A key without quotes is nested in TOML: `etl.load = 5` is a table of a table."""
    for key, value in content.items():
        name = f"{prefix}{key}"
        is_table = isinstance(value, dict) and "." in name and not value.keys().isdisjoint(FIELDS)
        if isinstance(value, dict) and not is_table:
            yield from _entries(path, value, f"{name}.")
            continue
        if "." not in name:
            raise SettingsError(f'{path}: {name!r} names no task: write DAG.TASK, e.g. "{name}.*"')
        form = value if is_table else {"duration": value}
        if unknown := sorted(form.keys() - set(FIELDS)):
            raise SettingsError(f"{path}: {_unknown_key(name, unknown[0])}")
        try:
            yield Entry(name, msgspec.convert(form, Expectation))
        except msgspec.ValidationError as exc:
            raise SettingsError(f"{path}: {name!r}: {exc}") from exc
