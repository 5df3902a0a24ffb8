"""Masks the secrets of a try in its log: values of secret variables, passwords of connections."""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from asynsched.authoring.connection import CONNECTION_PREFIX, VARIABLE_PREFIX, Connection
from asynsched.errors import AsynschedError
from asynsched.protocol.sensitive import is_sensitive

MASK = b"***"
MIN_SECRET_LENGTH = 5
"""Shorter values would mask words (Airflow: logging.min_length_masked_secret)."""

FIELDS = "fields"


class Secrets:
    """The secrets known to one try.

    Args:
        inherited: Secrets that it knows from the start.
    """

    def __init__(self, inherited: "Secrets | None" = None) -> None:
        self.values: tuple[bytes, ...] = () if inherited is None else inherited.values
        """The longest first: a secret may contain another."""

    def __bool__(self) -> bool:
        return bool(self.values)

    @property
    def longest(self) -> int:
        """Length of the longest secret, in bytes."""
        return len(self.values[0]) if self.values else 0

    def learn(self, operation: str, arguments: dict[str, Any], value: Any) -> None:
        """Learn the secrets in an answer to the try."""
        found = set(self.values)
        for text in _secret_texts(operation, arguments, value):
            # Output is masked line by line, so a key of several lines is as many secrets.
            for line in {*_spellings(text), *text.splitlines()}:
                if len(line) >= MIN_SECRET_LENGTH:
                    found.add(line.encode("utf-8", "replace"))
        self.values = tuple(sorted(found, key=len, reverse=True))

    def learn_fields(self, kwargs: dict[str, Any]) -> None:
        """Learn the secrets, by their names, in the arguments of a trigger or of the method of a resumed task."""
        self.learn(FIELDS, {}, kwargs)

    def mask_outcomes(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return a trigger host's outcomes, with secrets masked in reasons and tracebacks."""
        outcomes = arguments.get("outcomes")
        if not self.values or not isinstance(outcomes, list):
            return arguments
        return {**arguments, "outcomes": [self._masked_outcome(outcome) for outcome in outcomes]}

    def _masked_outcome(self, outcome: Any) -> Any:
        if not isinstance(outcome, dict):
            return outcome
        texts = {name: outcome[name] for name in ("detail", "traceback") if name in outcome}
        return {**outcome, **{name: self._masked_texts(value) for name, value in texts.items()}}

    def _masked_texts(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._masked_texts(item) for item in value]
        return self.mask_text(value) if isinstance(value, str) else value

    def mask(self, data: bytes) -> bytes:
        """Return the data with every secret replaced."""
        for value in self.values:
            data = data.replace(value, MASK)
        return data

    def mask_text(self, text: str) -> str:
        """Return a text with every secret replaced."""
        return self.mask(text.encode("utf-8", "replace")).decode("utf-8", "replace") if self.values else text


def environment_secrets(environ: Mapping[str, str]) -> Secrets:
    """Return the secrets in `AIRFLOW_VAR_*` and `AIRFLOW_CONN_*`, which tries inherit."""
    secrets = Secrets()
    for name, text in environ.items():
        if name.startswith(VARIABLE_PREFIX):
            secrets.learn("variable_get", {"key": name.removeprefix(VARIABLE_PREFIX)}, text)
        elif name.startswith(CONNECTION_PREFIX):
            secrets.learn("connection_get", {}, _connection_fields(text))
    return secrets


def _connection_fields(text: str) -> dict[str, Any]:
    try:
        return vars(Connection.from_text(text))
    except (AsynschedError, ValueError, TypeError):
        # It cannot be read, so all of it counts as secret.
        return {"password": text}


def _secret_texts(operation: str, arguments: dict[str, Any], value: Any) -> Iterator[str]:
    if operation == "variable_get" and isinstance(value, str):
        structure = _json_or_none(value)
        if is_sensitive(str(arguments.get("key", ""))):
            yield value
            yield from _all_texts(structure)
        else:
            yield from _sensitive_texts(structure)
    elif operation == "connection_get" and isinstance(value, dict):
        password = value.get("password")
        if isinstance(password, str):
            yield password
        yield from _sensitive_texts(_json_or_none(value.get("extra")))
    elif operation in (FIELDS, "trigger_work"):
        yield from _sensitive_texts(value)


def _sensitive_texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _all_texts(item) if is_sensitive(str(name)) else _sensitive_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _sensitive_texts(item)


def _all_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _all_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _all_texts(item)


def _spellings(text: str) -> set[str]:
    """Return a secret as programs print it: as it is, in a URL, in Python's own spelling, and in JSON."""
    in_json = {json.dumps(text), json.dumps(text, ensure_ascii=False)}
    return {text, quote(text, safe=""), *(spelled[1:-1] for spelled in (repr(text), *in_json))}


def _json_or_none(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None
