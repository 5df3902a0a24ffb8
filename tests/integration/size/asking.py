"""A task that asks a scheduler, in small: the answers go through frames, and their cost is counted."""

from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec

from asynsched.authoring.supervisor import SupervisorError, SupervisorNotFound, set_supervisor
from asynsched.channels import TaskReady
from asynsched.clock import VirtualClock
from asynsched.executors.requests import RequestAnswerer
from asynsched.protocol.frames import FrameReader, encode_frame
from asynsched.protocol.messages import CodeVersion, Launch, Reply, Request, RunContext
from asynsched.store.database import Database
from sandbox.run import json_of
from tests.integration.size.counted import Cost, CountedDatabase
from tests.support.runs import NOON

T = TypeVar("T")


class Asking(CountedDatabase):
    """Answers a task of the run `r` of the DAG `d` from a database, and counts.

    Attributes:
        frames: The bytes of each answer.
        costs: The cost of each query.
    """

    def __init__(self, database: Database, dag_run_id: int) -> None:
        super().__init__(database)
        launch = Launch("token", "t", -1, 1, 0, RunContext("d", "r", "manual", NOON), CodeVersion("", ""), "log")
        self._ready = TaskReady(dag_run_id, launch)
        self._answerer = RequestAnswerer(self, VirtualClock(NOON))
        self._reader = FrameReader(Launch | Reply)
        self.frames: list[int] = []
        self.costs: list[Cost] = []

    async def answer(self, ask: Callable[..., T], *args: Any) -> T:
        """Return the result of a task's code that asks."""
        set_supervisor(self)
        try:
            return await anyio.to_thread.run_sync(ask, *args)
        finally:
            set_supervisor(None)

    def request(self, operation: str, **arguments: Any) -> Any:
        encoded = msgspec.json.decode(msgspec.json.encode({name: json_of(value) for name, value in arguments.items()}))
        request = Request("token", len(self.frames) + 1, operation, encoded)
        frame = encode_frame(anyio.from_thread.run(self._answerer.answer, request, self._ready))
        self.frames.append(len(frame))
        [reply] = self._reader.feed(frame)
        if not reply.found:
            raise SupervisorNotFound(operation)
        if reply.error:
            raise SupervisorError(reply.error)
        return reply.value

    async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().read(query, *args, **kwargs)
        finally:
            self.costs.append(self.take_cost())
