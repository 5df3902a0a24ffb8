"""The tickets that a worker works on, in `tickets/` of its home: a worker that was killed goes on with them.

A ticket is written before it is claimed, and removed once the end of its try is stored at a scheduler. It holds a
secret, so only the home's user may read it. It need not outlast a power cut, which ends this life of the worker: no
other life can claim its tries.
"""

from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from asynsched.clock import Clock, new_token
from asynsched.home import replace_file
from asynsched.loggers import get_logger
from asynsched.protocol.frames import UNDECODABLE
from asynsched.protocol.home_files import PRIVATE_FOLDER
from asynsched.protocol.worker_messages import Ticket, WorkerTerms

log = get_logger(__name__)

TICKETS = "tickets"
IDENTITY = "worker_id"


class KeptTicket(Struct, frozen=True):
    """A ticket, and what its claim has said.

    Attributes:
        log_path: Of the try's log, below the home's log folder.
        log_start: The byte of this file at which the try's own log begins.
        terms: None: the claim is not known to have succeeded.
        bundle: The name of the try's data files; empty: it has none, or none yet.
    """

    ticket: Ticket
    log_path: str = ""
    log_start: int = 0
    terms: WorkerTerms | None = None
    bundle: str = ""


class TicketFolder:
    """The kept tickets of a home. Every method blocks for a moment, for the disk."""

    def __init__(self, home: Path) -> None:
        self._folder = home / TICKETS
        self._folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)

    def keep(self, kept: KeptTicket) -> None:
        """Write a ticket. Raises OSError."""
        replace_file(self._path(kept.ticket.token), msgspec.json.encode(kept), outlasts_power_cut=False)

    def remove(self, token: str) -> None:
        """Forget a ticket. Raises OSError."""
        self._path(token).unlink(missing_ok=True)

    def load(self) -> Iterator[KeptTicket]:
        """Yield the kept tickets, and remove what a worker has left that was killed while it wrote one."""
        for draft in self._folder.glob("*.json.*"):
            with suppress(OSError):
                draft.unlink()
        for path in sorted(self._folder.glob("*.json")):
            try:
                yield msgspec.json.decode(path.read_bytes(), type=KeptTicket)
            except (OSError, *UNDECODABLE) as exc:
                log.warning("ticket.unreadable", file=path.name, error=str(exc))
                with suppress(OSError):
                    path.unlink()

    def _path(self, token: str) -> Path:
        if not (token.isascii() and token.replace("-", "").isalnum() and len(token) <= 64):
            raise ValueError("not a token")
        return self._folder / f"{token}.json"


def life_of(home: Path, clock: Clock) -> str:
    """Return the name of this life of a worker: its home, in this boot of the machine.

    What a worker has begun is known to its home alone, and after a power cut perhaps not even there. So a try that was
    claimed in one life is never started in another. Blocks.
    """
    path = home / IDENTITY
    try:
        identity = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        identity = new_token()
        replace_file(path, identity.encode())
    return sha256(f"{identity} {clock.boot()}".encode()).hexdigest()
