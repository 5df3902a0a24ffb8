"""What a dag_id, task_id, group_id or tag may look like.

Source: Apache Airflow's `validate_key` and `validate_group_key`: word characters, `.` and `-`, at most 250 of them, for
DAGs and tasks; word characters and `-`, at most 200, for task groups.
"""

from __future__ import annotations

from asynsched.errors import DagError

MAX_KEY_LENGTH = 250
MAX_GROUP_KEY_LENGTH = 200
MAX_TAG_LENGTH = 100


def check_key(kind: str, key: object) -> str:
    """Return a dag_id or task_id that is valid. Raises DagError saying what is wrong with it."""
    return _check(kind, key, MAX_KEY_LENGTH, "-._")


def check_group_key(key: object) -> str:
    """Return a group_id that is valid. Raises DagError saying what is wrong with it."""
    return _check("group_id", key, MAX_GROUP_KEY_LENGTH, "-_")


def is_key(key: str) -> bool:
    """Return whether a text is made of the characters, and of the length, of a dag_id or task_id."""
    return 0 < len(key) <= MAX_KEY_LENGTH and _wrong_character(key, "-._") is None


def _check(kind: str, key: object, max_length: int, punctuation: str) -> str:
    if not isinstance(key, str):
        raise DagError(f"{kind} must be a text, not {type(key).__name__}: {key!r}")
    if not key:
        raise DagError(f"{kind} is empty")
    if len(key) > max_length:
        raise DagError(f"{kind} {key[:40]!r}… has {len(key)} characters; at most {max_length} are allowed")
    wrong = _wrong_character(key, punctuation)
    if wrong is not None:
        raise DagError(
            f"{kind} {key!r} has the character {wrong!r}; use letters, digits and {' '.join(punctuation)} only"
        )
    # A member of an enum of texts becomes the text that it is.
    return str.__str__(key)


def _wrong_character(key: str, punctuation: str) -> str | None:
    # The same set as the regular expression `\w` plus the punctuation, without importing `re`.
    return next((character for character in key if not character.isalnum() and character not in punctuation), None)
