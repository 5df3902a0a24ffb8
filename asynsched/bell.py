"""Wake-ups from other processes: a command that wrote to the database rings, and the scheduler looks immediately.

Hints carry keys, never data: the database is the truth. Locally the bell is a Unix datagram socket in the home. Other
machines use PostgreSQL's NOTIFY (`store/schedulers.py`), with the same text as payload.
"""

import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from asynsched.protocol.home_files import socket_address

SOCKET_NAME = "bell.sock"
MAX_RING_BYTES = 60_000
PING_SECONDS = 2.0
PONG = b"pong"


class Hint(Struct, frozen=True, omit_defaults=True):
    """A notification of a change.

    From commands: a `dag`, a new `run`, a run with a request or an `edit`, the `backfill` of a DAG, a `file` to parse
    again, a `pool`, events of an `asset`, a `variable` or a `connection` (without a `name`: several of them); `ping`
    and `health` ask for an answer. From other schedulers: a run has ended (`end`), `slots` are free, a run has no
    owner (`orphan`), a `scheduler` has come or gone, a worker has reported the start or end of a `try`. A command
    that waits for a run sends `watch`, and for a while each change of the run is a `changed`. A process that reads
    the events of all runs sends `follow`, and for a while hears a `changed` without a run after each change. Unknown
    kinds are ignored: a newer version may use them.

    `kind` is one of these words. `origin` names the scheduler that sends it, and need not hear it.
    """

    kind: str
    dag_id: str = ""
    run_id: str = ""
    path: str = ""
    name: str = ""
    origin: str = ""


_decoder = msgspec.json.Decoder(list[Hint])


def encode_hints(hints: Sequence[Hint]) -> str:
    """Return the text of a ring: JSON."""
    return msgspec.json.encode(list(hints)).decode()


def encode_in_parts(hints: Sequence[Hint], most_bytes: int) -> Iterator[str]:
    """Yield the texts of as many rings as hints need, each of `most_bytes` bytes at most.

    A hint that is longer is left out: schedulers look for changes now and then without any.
    """
    text = encode_hints(hints)
    if len(text.encode()) <= most_bytes:
        yield text
    elif len(hints) > 1:
        half = len(hints) // 2
        yield from encode_in_parts(hints[:half], most_bytes)
        yield from encode_in_parts(hints[half:], most_bytes)


def decode_hints(text: bytes | str) -> list[Hint]:
    """Return the hints of a ring. Raises ValueError on anything else."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise ValueError(f"not a list of hints: {exc}") from exc


@contextmanager
def _answer_address() -> Iterator[str]:
    """Yield an address to which the scheduler can answer, also one of another user."""
    if sys.platform == "linux":
        # The kernel chooses an abstract address, which has no folder and no permissions (unix(7), autobind).
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="asynsched-") as folder:
        yield str(Path(folder) / "answer")


def open_bell(home: Path) -> socket.socket:
    """Return the non-blocking socket on which a scheduler hears rings. The home must be locked."""
    bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bell.setblocking(False)
    (home / SOCKET_NAME).unlink(missing_ok=True)
    with socket_address(home, SOCKET_NAME) as address:
        bell.bind(address)
    (home / SOCKET_NAME).chmod(0o600)
    return bell


def ring(home: Path, hints: Sequence[Hint]) -> bool:
    """Send hints to the scheduler of this home. Returns whether one is serving."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, socket_address(home, SOCKET_NAME) as address:
            sender.settimeout(PING_SECONDS)
            for text in encode_in_parts(hints, MAX_RING_BYTES):
                sender.sendto(text.encode(), address)
    except OSError:
        return False
    return True


def is_serving(home: Path) -> bool:
    """Return whether a scheduler on this home is serving: its loop answers within PING_SECONDS."""
    return _ask(home, Hint("ping")) == PONG


def is_abandoned(home: Path) -> bool:
    """Return whether a scheduler of this home on this machine was killed: its bell is left, and no process hears it.

    False also where that cannot be known.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asker, socket_address(home, SOCKET_NAME) as address:
            asker.connect(address)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def is_without_bell(home: Path) -> bool:
    """Return whether there is a home without a bell: a scheduler removes its bell when it begins to stop.

    False also where that cannot be known: other users cannot read a home, and a container may have it elsewhere.
    """
    try:
        return SOCKET_NAME not in os.listdir(home)  # noqa: PTH208 - names are enough
    except OSError:
        return False


def ask_health(home: Path) -> bytes | None:
    """Return the Health of this home's scheduler as JSON; None without an answer within PING_SECONDS."""
    return _ask(home, Hint("health"))


def _ask(home: Path, question: Hint) -> bytes | None:
    try:
        with (
            _answer_address() as own_address,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asker,
            socket_address(home, SOCKET_NAME) as address,
        ):
            asker.bind(own_address)
            asker.settimeout(PING_SECONDS)
            # After this, no other process can answer.
            asker.connect(address)
            asker.send(encode_hints([question]).encode())
            return asker.recv(MAX_RING_BYTES)
    except OSError:
        return None
