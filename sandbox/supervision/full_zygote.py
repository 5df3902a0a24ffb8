"""What a zygote knows of the full one: its fork that has more loaded, for files that do not look plain."""

import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import NoReturn

from sandbox.running.warming import warm_fully
from sandbox.supervision.children import die_with
from sandbox.template import keep_only

log = logging.getLogger("sandbox.zygote")


class FullZygoteGone(Exception):
    """It has died."""


class FullZygote:
    """The full zygote of now. It dies with its parent, and is ready when what it has to load is there.

    Args:
        lifeline: The descriptor that all forks keep.
        serve: What it does in its process, with the channel that brings its requests.
    """

    def __init__(self, lifeline: int, serve: Callable[[socket.socket], None]) -> None:
        self._lifeline = lifeline
        self._serve = serve
        self._pid: int | None = None
        self._channel, _ = socket.socketpair()

    def start(self) -> None:
        """Fork it from this process; what there was of it before is of no use. Raises OSError."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = None
        self._channel.close()
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        parent = os.getpid()
        with theirs:
            pid = os.fork()
            if pid == 0:
                self._become(parent, theirs)
        self._pid = pid

    def ask(self, kind: bytes, descriptors: Sequence[int]) -> bool:
        """Pass a request on, with what came along. Returns False when it has too much to do.

        Raises:
            FullZygoteGone: It cannot do it.
        """
        try:
            socket.send_fds(self._channel, [kind], descriptors)
        except BlockingIOError:
            return False
        except OSError as exc:
            raise FullZygoteGone from exc
        return True

    def _become(self, parent: int, channel: socket.socket) -> NoReturn:
        try:
            die_with(parent)
            keep_only(channel.fileno(), self._lifeline)
            warm_fully()
            self._serve(channel)
        except BaseException:
            log.exception("The zygote that has everything loaded failed")
        finally:
            os._exit(1)
