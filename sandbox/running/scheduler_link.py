"""A try's side of its connection to the keeper: takes the launch, asks the scheduler, reports."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec
from msgspec import Struct

from asynsched.authoring.supervisor import SupervisorError, SupervisorNotFound
from asynsched.protocol.frames import DEEPEST, FrameReader, ProtocolError, encode_frame
from asynsched.protocol.messages import Launch, Reply, Request

READ_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 15 * 1024 * 1024
"""Less than MAX_FRAME_BYTES: the keeper adds fields to the frames that it passes on."""
DEEPEST_MESSAGE = DEEPEST - 20
"""Less than DEEPEST: a launch or an answer may hold a value at a deeper level than the message that brought it."""


class SchedulerLink:
    """Answers a task's requests (the Supervisor of `asynsched.authoring`) by asking the scheduler.

    A request waits as long as it takes: a scheduler that restarts answers when it is back.
    """

    def __init__(self, control: socket.socket) -> None:
        self._socket = control
        self._reader = FrameReader(Launch | Reply)
        self._arrived: Iterator[Any] = iter(())
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._process = os.getpid()
        self._token = ""

    def receive_launch(self) -> Launch:
        """Return the launch of this try. Raises ProtocolError when the keeper sends something else."""
        message = self._receive()
        if not isinstance(message, Launch):
            raise ProtocolError(f"expected a launch, not {type(message).__name__}")
        self._token = message.token
        return message

    def hand_over(self) -> socket.socket:
        """Return the connection for another reader; this link must not make requests any more."""
        return self._socket

    def send(self, message: Struct) -> None:
        """Report something. Raises ProtocolError when it is too large, or nested too deeply, to be passed on."""
        frame = encode_frame(message, DEEPEST_MESSAGE)
        if len(frame) > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"{len(frame)} bytes of JSON; the limit is {MAX_MESSAGE_BYTES}")
        self._socket.sendall(frame)

    def request(self, operation: str, **arguments: Any) -> Any:
        """Ask, and wait for the answer.

        Raises:
            SupervisorNotFound: The requested object does not exist.
            SupervisorError: The scheduler could not answer, or this is a process that the task has forked.
        """
        if os.getpid() != self._process:
            raise SupervisorError(f"{operation}: only the task's own process can ask; pass the value to the others")
        with self._lock:
            number = next(self._numbers)
            encoded = {name: json_of(value) for name, value in arguments.items()}
            try:
                self.send(Request(self._token, number, operation, encoded))
            except ProtocolError as exc:
                raise SupervisorError(f"{operation}: {exc}") from None
            reply = self._receive()
            while not (isinstance(reply, Reply) and reply.request_id == number):
                # The answer to a request that a signal has interrupted.
                reply = self._receive()
        return answer_of(operation, reply)

    def _receive(self) -> Any:
        while (message := next(self._arrived, None)) is None:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise SupervisorError("the keeper of this task is gone")
            self._arrived = self._reader.feed(data)
        return message


def answer_of(operation: str, reply: Reply) -> Any:
    """Return the value of a reply. Raises SupervisorNotFound or SupervisorError."""
    if not reply.found:
        raise SupervisorNotFound(reply.error or f"{operation}: there is no such thing")
    if reply.error:
        raise SupervisorError(reply.error)
    return reply.value


def json_of(value: Any) -> msgspec.Raw:
    """Return a value as JSON text.

    Raises:
        TypeError: It holds something that JSON does not have.
        ValueError: It holds a number or a text that JSON does not have.
    """
    # Not msgspec's encoder: that refuses subclasses of str, int and dict, which are JSON just the same.
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return msgspec.Raw(text.encode())
