"""The log of one try: the output of its processes, masked, stamped and cut to its limit.

Masked are the secrets of a try: values of secret variables, passwords of connections.

Each line begins with the time at which the keeper got it. So prints, log records, tracebacks and the output of commands
look alike, and nothing that a try does to its logging can change that.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from asynsched.authoring.connection import CONNECTION_PREFIX, VARIABLE_PREFIX, Connection
from asynsched.authoring.masking import MIN_SECRET_LENGTH, secrets_in_answer, sensitive_texts
from asynsched.errors import AsynschedError

MASK = b"***"
FIELDS = "fields"
MASK_SECRET = "mask_secret"  # noqa: S105 - the name of a request
"""A task's request to mask secrets that it has from elsewhere; the keeper answers it itself."""
MAX_SECRETS = 2_000
"""Spellings of secrets that a task may have masked: the keeper looks for each of them in every line."""


class Secrets:
    """The secrets known to one try, those that it has inherited first."""

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

    def learn_told(self, arguments: dict[str, Any]) -> str:
        """Learn the secrets that a task names. Returns why it learns none of them; empty if it learns them."""
        before = self.values
        self.learn(MASK_SECRET, arguments, None)
        if len(self.values) <= MAX_SECRETS:
            return ""
        self.values = before
        return f"{MASK_SECRET}: a task may have at most about {MAX_SECRETS // 4} secrets masked"

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
    if operation in (FIELDS, "trigger_work"):
        yield from sensitive_texts(value)
    elif operation == MASK_SECRET:
        yield from sensitive_texts(arguments.get("secrets"), all_of_it=True)
    else:
        yield from secrets_in_answer(operation, arguments, value)


def _spellings(text: str) -> set[str]:
    """Return a secret as programs print it: as it is, in a URL, in Python's own spelling, and in JSON."""
    in_json = {json.dumps(text), json.dumps(text, ensure_ascii=False)}
    return {text, quote(text, safe=""), *(spelled[1:-1] for spelled in (repr(text), *in_json))}


PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
LONGEST_LINE_HELD = 64 * 1024
CUT = b"\n*** The log has reached its limit (log.task_bytes); the rest is dropped.\n"


class TaskLog:
    """Writes a log file, made with its folders at the first byte.

    It keeps `max_bytes`, stamps included; a line reports that the rest is dropped.
    """

    def __init__(self, path: Path, max_bytes: int, secrets: Secrets) -> None:
        self._path = path
        self._room = max_bytes
        self._secrets = secrets
        self._held = b""
        self._descriptor: int | None = None
        self._is_cut = False
        self._is_at_line_start = True

    def write(self, data: bytes) -> None:
        """Add output of the try.

        Once it knows a secret, output is held back until its line is complete, so that a secret that arrives in two
        pieces is masked.
        """
        if not self._secrets:
            self._append(data)
            return
        data = self._held + data
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) > LONGEST_LINE_HELD:
            # Complete secrets are masked first: the cut must not go through one.
            data = self._secrets.mask(data)
            end = len(data) - self._secrets.longest
        self._held = data[end:]
        self._append(self._secrets.mask(data[:end]))

    def say(self, level: str, text: str) -> None:
        """Add a line of the keeper's own, in the format of the others. It is written even where no room is left."""
        self.flush()
        if not self._is_at_line_start:
            self._write(b"\n")
            self._is_at_line_start = True
        self._write(self._stamped(self._secrets.mask(f"{{keeper}} {level} - {text}\n".encode())))

    def flush(self) -> None:
        """Write the output that was held back."""
        held, self._held = self._held, b""
        self._append(self._secrets.mask(held))

    def close(self) -> None:
        """Write the output that was held back, and close the file."""
        self.flush()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, data: bytes) -> None:
        if not data or self._is_cut:
            return
        data = self._stamped(data)
        if len(data) > self._room:
            self._is_cut = self._is_at_line_start = True
            self._write(data[: self._room] + CUT)
        else:
            self._room -= len(data)
            self._write(data)

    def _stamped(self, data: bytes) -> bytes:
        """Return lines, or parts of lines, with the time before each line that begins in them."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        stamp = f"[{now}Z] ".encode()
        is_complete = data.endswith(b"\n")
        # One replacement for all lines: a try may write faster than a loop over lines.
        stamped = (data[:-1] if is_complete else data).replace(b"\n", b"\n" + stamp)
        if self._is_at_line_start:
            stamped = stamp + stamped
        self._is_at_line_start = is_complete
        return stamped + b"\n" if is_complete else stamped

    def _write(self, data: bytes) -> None:
        # A full disk must not end the tries: output that cannot be written is lost.
        with suppress(OSError):
            if self._descriptor is None:
                self._descriptor = self._open()
            while data:
                data = data[os.write(self._descriptor, data) :]

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(self._path, flags, PRIVATE_FILE)
        except FileNotFoundError:
            make_private(self._path.parent)
            return os.open(self._path, flags, PRIVATE_FILE)


def make_private(folder: Path) -> None:
    """Make a folder and those above it, for this user only."""
    for missing in reversed([folder, *folder.parents]):
        if not missing.is_dir():
            missing.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
