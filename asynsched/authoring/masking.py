"""Secrets of a process: which values are secret, decided by names, and how to hide them.

The keeper masks secrets of asynsched in the log of a try. A task that gets a secret from elsewhere passes it to
`mask_secret`, so that the log does not show it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

MASK = "***"
CUT = "…"
"""Where a text was cut. The keeper masks what a cut has left of a secret beside this mark."""
MIN_SECRET_LENGTH = 5
"""Shorter values would mask words (Airflow: logging.min_length_masked_secret)."""
_NOT_SECRET = "airflow"  # noqa: S105 - a usual password
"""A word that is no secret, although it is a usual password (Airflow: SECRETS_TO_SKIP_MASKING)."""
_SENSITIVE_NAMES = (
    "access_key", "access_token", "api_key", "apikey", "authorization", "keyfile_dict", "passphrase", "passwd",
    "password", "private_key", "secret", "service_account", "token",
)  # fmt: skip
"""Source: Airflow's secrets masker, DEFAULT_SENSITIVE_FIELDS."""
_DEEPEST = 5
"""Values at deeper levels are not examined (Airflow: MAX_RECURSION_DEPTH)."""

_known: set[str] = set()
"""The secrets that this process knows."""


def is_sensitive(name: str) -> bool:
    """Return whether a variable or field of that name holds a secret."""
    lowered = name.strip().lower()
    return any(word in lowered for word in _SENSITIVE_NAMES)


def mask_secret(secret: Any, name: str | None = None) -> None:
    """Hide a secret in the log of this task, from now on.

    While a DAG file is parsed, only `redact` knows it afterwards: the output of a parse is not masked.

    Args:
        secret: A text of at least 5 characters; or a dict or list of such. Fields of a dict count by their names.
        name: The secret's name. If the name is not that of a secret, nothing is hidden.
    """
    from asynsched.authoring.supervisor import SupervisorError, ask, current_supervisor

    texts = sorted(set(_texts_to_mask(secret, name)) - _known)
    if not texts:
        return
    _known.update(texts)
    if current_supervisor() is not None:
        try:
            ask("mask_secret", secrets=texts)
        except SupervisorError as exc:
            import logging

            logging.getLogger("asynsched.task").warning("The log of this task may show a secret: %s", exc)


def redact(value: Any, name: str | None = None, max_depth: int | None = None, replacement: str = MASK) -> Any:
    """Return a value without secrets: those passed to `mask_secret`, and the fields whose names are those of secrets.

    Args:
        value: Texts, and dicts, lists, tuples and sets of them; other objects are returned as they are.
        name: The value's name.
        max_depth: How many levels to examine; by default 5.
        replacement: Stands for a secret.
    """
    return _redacted(value, name, max_depth or _DEEPEST, replacement)


def shortened(text: str, longest: int, *, keeps_end: bool = False) -> str:
    """Cut a text that is longer than `longest` characters, and mark the cut.

    Secrets that the process knows are masked first: a cut could leave a part of one.

    Args:
        keeps_end: Keep the end of the text, and not its beginning.
    """
    if len(text) <= longest or len(text := redact(text)) <= longest:
        return text
    return f"{CUT}{text[-longest:]}" if keeps_end else f"{text[:longest]}{CUT}"


def _redacted(value: Any, name: str | None, levels: int, replacement: str) -> Any:
    if name and is_sensitive(name) and value and isinstance(value, (str, list, tuple, set, dict)):
        return _all_replaced(value, replacement)
    if isinstance(value, str):
        for secret in sorted(_known, key=len, reverse=True):
            value = value.replace(secret, replacement)
        return value
    if levels <= 0:
        return value
    if isinstance(value, dict):
        return {key: _redacted(item, str(key), levels - 1, replacement) for key, item in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(_redacted(item, None, levels - 1, replacement) for item in value)
    return value


def _all_replaced(value: Any, replacement: str) -> Any:
    if isinstance(value, dict):
        return {key: _all_replaced(item, replacement) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return type(value)([_all_replaced(item, replacement) for item in value])
    return replacement if isinstance(value, str) else value


def _texts_to_mask(secret: Any, name: str | None) -> Iterator[str]:
    if isinstance(secret, dict):
        for key, item in secret.items():
            yield from _texts_to_mask(item, str(key))
    elif isinstance(secret, str):
        is_meant = name is None or is_sensitive(name)
        if is_meant and len(secret) >= MIN_SECRET_LENGTH and secret.lower() != _NOT_SECRET:
            yield secret
    elif isinstance(secret, (list, tuple, set, frozenset)):
        for item in secret:
            yield from _texts_to_mask(item, name)


def sensitive_texts(value: Any, *, all_of_it: bool = False) -> Iterator[str]:
    """Yield the texts in a structure of dicts and lists that their names make secrets; with `all_of_it` all texts."""
    # Not recursive: a task may send a value that is nested as deeply as the keeper can decode it.
    todo = [(value, all_of_it)]
    while todo:
        one, is_secret = todo.pop()
        if isinstance(one, dict):
            todo += [(item, is_secret or is_sensitive(str(name))) for name, item in one.items()]
        elif isinstance(one, list):
            todo += [(item, is_secret) for item in one]
        elif isinstance(one, str) and is_secret:
            yield one


def learn_answer(operation: str, arguments: Mapping[str, Any], value: Any) -> None:
    """Remember the secrets in the answer to a question for a variable or a connection."""
    _known.update(text for text in secrets_in_answer(operation, arguments, value) if len(text) >= MIN_SECRET_LENGTH)


def secrets_in_answer(operation: str, arguments: Mapping[str, Any], value: Any) -> Iterator[str]:
    """Yield the secrets in the answer to a question for a variable or a connection."""
    try:
        yield from list(_secrets_in_answer(operation, arguments, value))
    except RecursionError:
        # Nested too deeply to search it, perhaps on purpose: all of it is secret.
        yield from (text for text in (value.values() if isinstance(value, dict) else (value,)) if isinstance(text, str))


def _secrets_in_answer(operation: str, arguments: Mapping[str, Any], value: Any) -> Iterator[str]:
    if operation == "variable_get" and isinstance(value, str):
        structure = _json_or_none(value)
        if is_sensitive(str(arguments.get("key", ""))):
            yield value
            yield from sensitive_texts(structure, all_of_it=True)
        else:
            yield from sensitive_texts(structure)
    elif operation == "connection_get" and isinstance(value, dict):
        password = value.get("password")
        if isinstance(password, str):
            yield password
        yield from sensitive_texts(_json_or_none(value.get("extra")))


def _json_or_none(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    import json

    try:
        return json.loads(value)
    except ValueError:
        return None
