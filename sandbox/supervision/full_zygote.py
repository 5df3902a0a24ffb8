"""What a zygote knows of the full one: its fork that has more loaded, for files that do not look plain."""

import errno
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from sandbox.running.warming import warm_fully
from sandbox.supervision.children import die_with
from sandbox.template import keep_only

log = logging.getLogger("sandbox.zygote")

PAUSE_SECONDS = 60.0
"""Until another one is started after one that died before it was ready: the next may do so as well."""
LOAD_SECONDS = 20.0
"""Longest that one may take to be ready: what it loads may lie on a disk that hangs."""
READY = b"r"
"""What it says when it serves."""
_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF})


class FullZygoteGoneError(Exception):
    """It has died."""


class FullZygote:
    """The full zygote of now. It dies with its parent.

    Args:
        lifeline: The descriptor that all forks keep.
        serve: What it does in its process when it has loaded everything, with the channel that brings its requests. It
            says `READY` there.
        monotonic: The clock, in seconds.
    """

    def __init__(
        self, lifeline: int, serve: Callable[[socket.socket], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._lifeline = lifeline
        self._serve = serve
        self._monotonic = monotonic
        self._channel: socket.socket | None = None
        self._is_ready = False
        self._start_at = self._started_at = 0.0
        self._pids: set[int] = set()
        """That of now, and those before it that are not reaped yet."""

    def is_there(self) -> bool:
        """Return whether there is one to be asked, which is started if need be and possible."""
        self._look()
        now = self._monotonic()
        if self._channel is not None and not self._is_ready and now >= self._started_at + LOAD_SECONDS:
            self.lose()
        if self._channel is None and now >= self._start_at:
            self._start()
        return self._channel is not None

    def ask(self, kind: bytes, descriptors: Sequence[int]) -> bool:
        """Pass a request on, with what came along; it is done when everything is loaded. Returns False if it is busy.

        Raises:
            FullZygoteGoneError: It cannot do it.
        """
        try:
            socket.send_fds(self._connected(), [kind], descriptors)
        except OSError as exc:
            if exc.errno in _GONE:
                raise FullZygoteGoneError from exc
            return False
        return True

    def lose(self) -> None:
        """Take note that it is gone, or of no use. Without it, tasks import what they need."""
        channel = self._connected()
        with suppress(OSError):
            self._is_ready = self._is_ready or channel.recv(1) == READY
        if not self._is_ready:
            self._pause("it was not ready in time, or has died before")
        channel.close()
        self._channel = None
        self._reap()

    def _pause(self, why: str) -> None:
        self._start_at = self._monotonic() + PAUSE_SECONDS
        log.error("The process that loads what some tasks need is not there, and each of them loads it itself: %s", why)

    def _look(self) -> None:
        """Read what it has said: that it is ready, or that it is gone."""
        while self._channel is not None:
            try:
                said = self._channel.recv(1)
            except BlockingIOError:
                return
            except OSError:
                said = b""
            if said == READY:
                self._is_ready = True
            else:
                self.lose()

    def _start(self) -> None:
        try:
            channel, pid = self._forked()
        except OSError as exc:
            self._pause(str(exc))
            return
        channel.setblocking(False)
        self._channel, self._is_ready, self._started_at = channel, False, self._monotonic()
        self._pids.add(pid)

    def _forked(self) -> tuple[socket.socket, int]:
        """Fork it, and return our end of its channel, and its process. Raises OSError when none can be had."""
        parent = os.getpid()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                self._become(parent, theirs)
        return ours, pid

    def _become(self, parent: int, channel: socket.socket) -> NoReturn:
        try:
            die_with(parent)
            keep_only(channel.fileno(), self._lifeline)
            warm_fully()
            self._serve(channel)
        except BaseException:
            log.exception("The process that loads what some tasks need has failed")
        finally:
            os._exit(1)

    def _connected(self) -> socket.socket:
        assert self._channel is not None, "there is none"
        return self._channel

    def _reap(self) -> None:
        """Kill and reap those that are of no use any more; who is long in dying is reaped the next time."""
        for pid in list(self._pids):
            os.kill(pid, signal.SIGKILL)
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._pids.discard(pid)
