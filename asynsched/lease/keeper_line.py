"""The connection on which a scheduler reports to its keeper when the lease expires.

The lease's thread has it for itself, so the keeper learns of renewals even while the event loop, which has the other
connection, is stalled. `sandbox/supervision/keeper.py` ends the tries when the lease expires.
"""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from asynsched.protocol.frames import encode_frame
from asynsched.protocol.messages import PROTOCOL_VERSION, Hello, LeaseTerm


class KeeperLine:
    """A connection to the keeper. Any thread may use it; a call blocks for a second at most.

    Args:
        connect: Returns a connection to the keeper, None when there is no keeper.
        scheduler_id: The scheduler that reports.

    Attributes:
        latest: The lease that was last reported, or would have been if there were a keeper; None before that.
    """

    def __init__(self, connect: Callable[[], socket.socket | None], scheduler_id: str) -> None:
        self._connect = connect
        self._scheduler_id = scheduler_id
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._epoch: int | None = None
        self.latest: LeaseTerm | None = None

    def open(self, lease_epoch: int) -> None:
        """Report under this epoch from now on."""
        with self._lock:
            self._hang_up()
            self._epoch = lease_epoch

    def tell(self, lease: LeaseTerm) -> None:
        """Report the lease to the keeper, if there is one. The next keeper receives `latest` in its greeting."""
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
        """Close the connection, and report nothing more."""
        with self._lock:
            self._hang_up()
            self._epoch = None

    def _line(self, epoch: int) -> socket.socket:
        if self._socket is None:
            self._socket = self._connect()
            if self._socket is None:
                raise ConnectionRefusedError("there is no keeper")
            hello = Hello(PROTOCOL_VERSION, os.getpid(), self._scheduler_id, epoch, role="lease")
            self._socket.sendall(encode_frame(hello))
        return self._socket

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
