"""Airflow's small functions for DAGs, dicts, lists, names and texts."""

from __future__ import annotations

import re

from asynsched.airflow.exceptions import AirflowConfigException
from asynsched.airflow.types import is_arg_set
from asynsched.authoring.exceptions import AsynschedException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from hashlib import _Hash
    from typing import Any, TypeVar

    from asynsched.authoring.dag import DAG

    T = TypeVar("T")

KEY_REGEX = re.compile(r"^[\w.-]+$")
GROUP_KEY_REGEX = re.compile(r"^[\w-]+$")
TRUE_LIKE_VALUES = frozenset({"on", "t", "true", "y", "yes", "1"})
_UPPERCASE = re.compile(r"(?!^)([A-Z]+)")


def validate_key(k: str, max_length: int = 250) -> None:
    """Check a name such as a dag_id or a task_id.

    Raises:
        TypeError: It is no text.
        AsynschedException: It is too long, or has a character that Airflow does not allow.
    """
    if not isinstance(k, str):
        raise TypeError(f"a key must be a string, not {type(k).__name__}: {k!r}")
    if len(k) > max_length:
        raise AsynschedException(f"the key {k!r} has {len(k)} characters; at most {max_length} are allowed")
    if not KEY_REGEX.match(k):
        raise AsynschedException(f"the key {k!r} may have letters, digits, dashes, dots and underscores only")
    if ".." in k:
        raise AsynschedException(f"the key {k!r} must not have two dots in a row")


def is_container(obj: Any) -> bool:
    """Return whether something can be iterated over, and is not a text."""
    return hasattr(obj, "__iter__") and not isinstance(obj, str)


def chunks(items: list[T], chunk_size: int) -> Generator[list[T], None, None]:
    """Yield the items in lists of `chunk_size`, the last one possibly shorter. Raises ValueError for a size below 1."""
    if chunk_size <= 0:
        raise ValueError(f"the size of a chunk must be at least 1, not {chunk_size}")
    for start in range(0, len(items), chunk_size):
        yield items[start : start + chunk_size]


def as_flattened_list(iterable: Iterable[Iterable[T]]) -> list[T]:
    """Return the elements of all the iterables.

    >>> as_flattened_list([["a"], ["b", "c"]])
    ['a', 'b', 'c']
    """
    return [item for items in iterable for item in items]


def partition(pred: Callable[[T], bool], iterable: Iterable[T]) -> tuple[Iterable[T], Iterable[T]]:
    """Return the items for which the predicate is false, and those for which it is true."""
    items = [(bool(pred(item)), item) for item in iterable]
    return iter([item for holds, item in items if not holds]), iter([item for holds, item in items if holds])


def convert_camel_to_snake(camel_str: str) -> str:
    """Return CamelCase as snake_case.

    >>> convert_camel_to_snake("LocalTaskJob")
    'local_task_job'
    """
    return _UPPERCASE.sub(r"_\1", camel_str).lower()


def merge_dicts(dict1: dict[Any, Any], dict2: dict[Any, Any]) -> dict[Any, Any]:
    """Return a new dict with the entries of both; dicts inside are merged, other values of the second one win."""
    merged = dict(dict1)
    for key, value in dict2.items():
        is_nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge_dicts(merged[key], value) if is_nested else value
    return merged


def prune_dict(val: Any, mode: str = "strict") -> Any:
    """Return a copy of a dict or list without its empty values, at all levels.

    Args:
        val: Other types are returned as they are.
        mode: `strict` leaves out None, `truthy` everything that is false.

    Raises:
        ValueError: The mode is unknown.
    """
    if mode not in ("strict", "truthy"):
        raise ValueError(f"mode must be 'strict' or 'truthy', not {mode!r}")

    def is_kept(value: Any) -> bool:
        return value is not None if mode == "strict" else bool(value)

    # An empty value inside need not be visited, and a visited one may turn out to be empty.
    if isinstance(val, dict):
        pruned = {key: prune_dict(value, mode) for key, value in val.items() if is_kept(value)}
        return {key: value for key, value in pruned.items() if is_kept(value)}
    if isinstance(val, list):
        return [value for value in (prune_dict(item, mode) for item in val if is_kept(item)) if is_kept(value)]
    return val


def exactly_one(*args: Any) -> bool:
    """Return whether exactly one argument is true. Raises ValueError for a list instead of arguments."""
    if args and is_container(args[0]):
        raise ValueError("give the values as arguments: exactly_one(*values)")
    return sum(map(bool, args)) == 1


def at_most_one(*args: Any) -> bool:
    """Return whether at most one argument is true; NOTSET is false."""
    return sum(is_arg_set(arg) and bool(arg) for arg in args) <= 1


def to_boolean(astring: str | None) -> bool:
    """Return whether a text means yes: on, t, true, y, yes or 1, in any case."""
    return astring is not None and astring.strip().lower() in TRUE_LIKE_VALUES


def get_random_string(length: int = 8, choices: str | None = None) -> str:
    """Return a random text, by default of letters and digits. It is no secret."""
    import random  # noqa: TID251 - for user code, in its own process
    import string

    return "".join(random.choices(choices or string.ascii_letters + string.digits, k=length))  # noqa: S311 - no secret


def md5(string: bytes = b"", /) -> _Hash:
    """Return an MD5 hash object. It is for no purpose of security, so that systems in FIPS mode allow it."""
    import hashlib

    return hashlib.md5(string, usedforsecurity=False)


def getuser() -> str:
    """Return the name of this process's user. Raises AirflowConfigException if it has none."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError) as exc:
        raise AirflowConfigException("the user of this process has no name; run it as a user that has one") from exc


def is_tty() -> bool:
    """Return whether standard output is a terminal."""
    import sys

    return hasattr(sys.stdout, "isatty") and sys.stdout.isatty()


def check_cycle(dag: DAG) -> None:
    """Raise DagCycleError if tasks of the DAG depend on each other in a cycle."""
    dag.check_cycle()


def get_hostname() -> str:
    """Return the full name of this machine."""
    import socket

    return socket.getfqdn()
