"""The log of one try: the output of its processes, masked, stamped and cut to its limit.

Masked are the secrets of a try: values of secret variables, passwords of connections.

Each line begins with the time at which the keeper got it. So prints, log records, tracebacks and the output of commands
look alike, and nothing that a try does to its logging can change that.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asynsched.authoring.connection import CONNECTION_PREFIX, VARIABLE_PREFIX, Connection
from asynsched.errors import AsynschedError
from asynsched.protocol.home_files import open_log
from asynsched.protocol.secrets import FIELDS, MASK, MASK_SECRET, SHORTEST_PIECE, Secrets

_BACKEND_ARGUMENTS = ("AIRFLOW__SECRETS__BACKEND_KWARG", "AIRFLOW__WORKERS__SECRETS_BACKEND_KWARG")
"""Prefixes of the variables with the arguments of a secrets backend: of all arguments, or of a single one."""


def environment_secrets(environ: Mapping[str, str]) -> Secrets:
    """Return the secrets in the environment that tries inherit: variables, connections, arguments of backends."""
    secrets = Secrets()
    for name, text in environ.items():
        if name.startswith(VARIABLE_PREFIX):
            secrets.learn("variable_get", {"key": name.removeprefix(VARIABLE_PREFIX)}, text)
        elif name.startswith(CONNECTION_PREFIX):
            secrets.learn("connection_get", {}, _connection_fields(text))
        elif name.startswith(_BACKEND_ARGUMENTS):
            secrets.learn(MASK_SECRET, {"secrets": [text]}, None)
            secrets.learn(FIELDS, {}, _object(text))
    return secrets


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _connection_fields(text: str) -> dict[str, Any]:
    try:
        return vars(Connection.from_text(text))
    except (AsynschedError, ValueError, TypeError, RecursionError):
        # It cannot be read, so all of it counts as secret.
        return {"password": text}


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
            end = max(0, len(data) - self._secrets.longest)
        self._held = data[end:]
        self._append(self._secrets.mask_cut(data[:end]))

    def say(self, level: str, text: str) -> None:
        """Add a line of the keeper's own, in the format of the others. It is written even where no room is left."""
        self.flush()
        if not self._is_at_line_start:
            self._write(b"\n")
            self._is_at_line_start = True
        self._write(self._stamped(self._secrets.mask(f"{{keeper}} {level} - {text}\n".encode())))

    def flush(self, *, is_last: bool = False) -> None:
        """Write the output that was held back, except the beginning of a secret at its end: the rest may follow.

        Args:
            is_last: Nothing follows; then a mask stands for that beginning.
        """
        held = self._secrets.mask_cut(self._held)
        end = len(held) - self._secrets.n_begun(held)
        begun = held[end:]
        self._held = b"" if is_last else begun
        self._append(held[:end])
        if is_last:
            self._append(begun if len(begun) < SHORTEST_PIECE else MASK)

    def close(self) -> None:
        """Write the output that was held back, and close the file."""
        self.flush(is_last=True)
        if self._descriptor is not None:
            with suppress(OSError):
                # A process that was forked meanwhile may have a copy of the descriptor, which would keep the lock.
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
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
                self._descriptor = open_log(self._path, appends=True)
            while data:
                data = data[os.write(self._descriptor, data) :]
