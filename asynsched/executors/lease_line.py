"""Tells the keeper of each renewal of the lease, from the thread that renews it, whatever the event loop does."""

import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

from asynsched.executors.keeper_process import connect
from asynsched.protocol.frames import encode_frame
from asynsched.protocol.messages import PROTOCOL_VERSION, Hello, Lease


class LeaseLine:
    """A connection of its own to the keeper. Any thread may use it; a call blocks for a second at most.

    Attributes:
        latest: What was told last, or would have been, were it open; None: nothing yet.
    """

    def __init__(self, home: Path, scheduler_id: str) -> None:
        self._home = home
        self._scheduler_id = scheduler_id
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._epoch: int | None = None
        self.latest: Lease | None = None

    def open(self, lease_epoch: int) -> None:
        """Speak for this lease from now on."""
        with self._lock:
            self._hang_up()
            self._epoch = lease_epoch

    def tell(self, lease: Lease) -> None:
        """Tell the keeper. When it is not there, nothing happens: the one that comes has the lease told anew."""
        self.latest = lease
        with self._lock, suppress(OSError):
            if self._epoch is None:
                return
            try:
                self._line(self._epoch).sendall(encode_frame(lease))
            except OSError:
                # The keeper that we knew is gone.
                self._hang_up()
                self._line(self._epoch).sendall(encode_frame(lease))

    def close(self) -> None:
        """Hang up, and tell nothing more."""
        with self._lock:
            self._hang_up()
            self._epoch = None

    def _line(self, epoch: int) -> socket.socket:
        if self._socket is None:
            self._socket = connect(self._home)
            if self._socket is None:
                raise ConnectionRefusedError(f"no keeper in {self._home}")
            hello = Hello(PROTOCOL_VERSION, os.getpid(), self._scheduler_id, epoch, role="lease")
            self._socket.sendall(encode_frame(hello))
        return self._socket

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
