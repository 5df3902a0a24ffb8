"""The keeper's records of each try: a line for each event, in one file of the home, `attempts/journal`.

The first line of a try is written before user code can start, the second when it has ended, before the scheduler is
told. Its token is forgotten when the scheduler has stored the end. So a token starts once, whichever process dies in
between; and a try without a second line, found by the next keeper, was lost with its keeper.

Lines are not synced, so a power cut may take the last of them. No try depends on them then: one that was submitted in
another boot of the machine is never started, see `asynsched.executors.tokens`. After a power cut, the whole lines of
the file are read, and damaged ones skipped, such as zeros in place of lines.

A line counts when it is whole. It is written behind the last one that counts, over the remains of a failed write or of
a killed keeper. Forgotten lines are overwritten with blanks: a try's return value, or the arguments of its trigger, may
be secret. If a keeper is killed before that, the next one overwrites them. When no line is live the file is emptied,
and when most of it is dead, a new file is written beside it and takes its place at once.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from asynsched.protocol.frames import UNDECODABLE
from asynsched.protocol.messages import Ended, Launch

log = logging.getLogger("sandbox.keeper")

JOURNAL = "journal"
NEW = "journal.new"
ROOM_BYTES = 1024 * 1024
"""Dead lines that the file may hold in any case; beyond that, as many bytes as are live."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE_FILE = 0o600
_BLANK = b" "
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Attempt(Struct, frozen=True, tag="attempt"):
    """The first line of a try, from which a later keeper knows a try that it did not start."""

    token: str
    log_path: str


class Forgotten(Struct, frozen=True, tag="forgotten"):
    """The ends of these tries are stored: their lines are dead."""

    tokens: tuple[str, ...]


Record = Attempt | Ended | Forgotten
_decoder = msgspec.json.Decoder(Record)


class _Span(NamedTuple):
    """Where a line is."""

    offset: int
    length: int


class AttemptRecords:
    """The records of one home, whose lock the caller holds. Raises OSError when they cannot be read or written."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._file = os.open(folder / JOURNAL, _FLAGS, _PRIVATE_FILE)
        self._size = 0
        """Of all lines that count; later bytes do not."""
        self._live: dict[str, tuple[_Span, ...]] = {}
        """The lines of each try that is not forgotten. Their values are not held: they may be large."""
        self._n_live_bytes = 0
        self._next_size = 0
        """Below this size the file is not rewritten: that has failed."""
        (folder / NEW).unlink(missing_ok=True)  # of a keeper that was killed
        dead = self._find_lines()
        if not self._shrink():
            self._erase(dead)

    def create(self, launch: Launch) -> bool:
        """Record that a try is about to start. Returns False if its token is already recorded."""
        if _TOKEN.fullmatch(launch.token) is None:
            raise ValueError(f"not a token: {launch.token!r}")
        if launch.token in self._live:
            return False
        self._keep(launch.token, self._append(Attempt(launch.token, launch.log_path)))
        return True

    def end(self, ended: Ended) -> None:
        """Record the end of a try."""
        self._keep(ended.token, self._append(ended))

    def forget(self, tokens: Iterable[str]) -> None:
        """Forget these tries. If that cannot be recorded, a later keeper reports them again."""
        known = tuple(token for token in tokens if token in self._live)
        dead = self._drop(known)
        if not known or self._shrink():
            return
        try:
            self._append(Forgotten(known))
        except OSError as exc:
            log.warning("It could not be written down that the ends of %d tries are stored: %s", len(known), exc)
        else:
            self._erase(dead)

    def load(self) -> Iterator[tuple[Attempt, Ended | None]]:
        """Yield each try that is not forgotten, and how it ended if that was written."""
        for token, spans in list(self._live.items()):
            attempt, ended = Attempt(token, ""), None
            for span in spans:
                match _decoded(self._read(span)):
                    case Attempt() as record:
                        attempt = record
                    case Ended() as record:
                        ended = record
            yield attempt, ended

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._folder)
        os.close(self._file)

    def _find_lines(self) -> list[_Span]:
        """Find the live lines, and cut off an unfinished last line.

        Returns the dead lines that a killed keeper has not overwritten.
        """
        n_damaged, dead = 0, list[_Span]()
        with os.fdopen(self._file, "rb", closefd=False) as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                span = _Span(self._size, len(line))
                match _decoded(line):
                    case Attempt(token) | Ended(token):
                        self._keep(token, span)
                    case Forgotten(tokens):
                        dead += self._drop(tokens)
                    case None if not line.startswith(_BLANK):
                        n_damaged += 1
                    case None if not line.isspace():
                        dead.append(span)
                self._size += len(line)
        if n_damaged:
            log.warning("%d damaged lines in the journal of tries are ignored", n_damaged)
        os.ftruncate(self._file, self._size)
        return dead

    def _keep(self, token: str, span: _Span) -> None:
        self._live[token] = (*self._live.get(token, ()), span)
        self._n_live_bytes += span.length

    def _drop(self, tokens: Iterable[str]) -> list[_Span]:
        """Stop counting these tries as live, and return their lines."""
        dead = [span for token in tokens for span in self._live.pop(token, ())]
        self._n_live_bytes -= sum(span.length for span in dead)
        return dead

    def _erase(self, dead: Iterable[_Span]) -> None:
        """Overwrite lines with blanks, up to their line breaks. If a write fails, the next keeper tries it again."""
        try:
            for span in dead:
                self._write(_BLANK * (span.length - 1), span.offset)
        except OSError as exc:
            log.warning("Values of tries that have ended are left in the journal of tries: %s", exc)

    def _read(self, span: _Span) -> bytes:
        return os.pread(self._file, span.length, span.offset)

    def _append(self, record: Record) -> _Span:
        # Values are as the try has written them; a line break in JSON is a space between its parts.
        line = msgspec.json.encode(record).replace(b"\n", b" ") + b"\n"
        try:
            self._write(line, self._size)
        except OSError:
            # Only to make room: it has no line break, and the next line is written over it.
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        span = _Span(self._size, len(line))
        self._size += span.length
        return span

    def _write(self, data: bytes, offset: int) -> None:
        rest = memoryview(data)
        while rest:
            n_written = os.pwrite(self._file, rest, offset)
            rest, offset = rest[n_written:], offset + n_written

    def _shrink(self) -> bool:
        """Keep only the live lines, once the rest has grown so much that this costs less than the writes since then."""
        if self._live and self._size <= max(ROOM_BYTES + 2 * self._n_live_bytes, self._next_size):
            return False
        try:
            if self._live:
                self._rewrite()
            else:
                os.ftruncate(self._file, 0)
                self._size = 0
        except OSError as exc:
            log.warning("The journal of tries could not be made smaller: %s", exc)
            self._next_size = 2 * self._size
            return False
        self._next_size = 0
        return True

    def _rewrite(self) -> None:
        new = os.open(NEW, _FLAGS | os.O_TRUNC, _PRIVATE_FILE, dir_fd=self._folder)
        live: dict[str, tuple[_Span, ...]] = {}
        size = 0
        try:
            with os.fdopen(new, "wb", closefd=False) as file:
                for token, spans in self._live.items():
                    for span in spans:
                        file.write(self._read(span))
                        live[token] = (*live.get(token, ()), _Span(size, span.length))
                        size += span.length
            os.fsync(new)  # it takes the place of lines that may be on the disk already
            os.rename(NEW, JOURNAL, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            os.close(new)
            with suppress(OSError):
                os.unlink(NEW, dir_fd=self._folder)
            raise
        replaced, self._file, self._live, self._size = self._file, new, live, size
        os.close(replaced)


def _decoded(line: bytes) -> Record | None:
    """Return the record in a line; None for a damaged line."""
    try:
        record = _decoder.decode(line)
    except UNDECODABLE:
        return None
    tokens = record.tokens if isinstance(record, Forgotten) else (record.token,)
    return record if all(map(_TOKEN.fullmatch, tokens)) else None
