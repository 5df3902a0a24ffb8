"""A trigger host's side of its connection to the scheduler: many requests may be open at once.

A thread reads the answers. So the event loop waits for none, and code of triggers that asks for a connection or a
variable gets its answer as code of a task does.
"""

import asyncio
import logging
import os
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Any

from asynsched.authoring.supervisor import SupervisorError, SupervisorNotFound
from asynsched.protocol.frames import FrameReader, ProtocolError, encode_frame
from asynsched.protocol.messages import Launch, Reply, Request
from sandbox.running.scheduler_link import READ_BYTES, json_of
from sandbox.triggering.watch import not_watched

log = logging.getLogger("asynsched.triggerer")


class HostLink:
    """Asks the scheduler (the Supervisor of `asynsched.authoring`, and `ask` for the host itself)."""

    def __init__(self, control: socket.socket, token: str) -> None:
        self._socket = control
        self._token = token
        self._numbers = count(1)
        self._waiting: dict[int, Future[Reply]] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()
        threading.Thread(target=self._read, name="answers of the scheduler", daemon=True).start()

    def request(self, operation: str, **arguments: Any) -> Any:
        """Ask, and block until the answer is there: for code of triggers, where it is quick.

        Raises:
            SupervisorNotFound: What was asked for does not exist.
            SupervisorError: The scheduler could not answer, or this is a process that a trigger has forked.
        """
        if os.getpid() != self._process:
            raise SupervisorError(f"{operation}: only the host's own process can ask")
        asked = self._ask(operation, {name: json_of(value) for name, value in arguments.items()})
        with not_watched():
            return _value(operation, asked.result())

    async def ask(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Ask, and return the answer. Raises what `request` raises."""
        return _value(operation, await asyncio.wrap_future(self._ask(operation, arguments)))

    def _ask(self, operation: str, arguments: dict[str, Any]) -> Future[Reply]:
        future: Future[Reply] = Future()
        with self._lock:
            number = next(self._numbers)
            try:
                frame = encode_frame(Request(self._token, number, operation, arguments))
            except ProtocolError as exc:
                raise SupervisorError(f"{operation}: {exc}") from None
            self._waiting[number] = future
            self._socket.sendall(frame)
        return future

    def _read(self) -> None:
        reader = FrameReader(Launch | Reply)
        try:
            with suppress(OSError):
                while data := self._socket.recv(READ_BYTES):
                    for reply in reader.feed(data):
                        future = self._waiting.pop(reply.request_id, None)
                        if future is not None and future.set_running_or_notify_cancel():
                            future.set_result(reply)
        except BaseException:
            log.exception("No answer of the scheduler can be read any more, so this host ends")
        finally:
            # Mostly the keeper is gone, and takes its processes with it.
            os._exit(1)


def _value(operation: str, reply: Reply) -> Any:
    if not reply.found:
        raise SupervisorNotFound(reply.error or f"{operation}: there is no such thing")
    if reply.error:
        raise SupervisorError(reply.error)
    return reply.value
