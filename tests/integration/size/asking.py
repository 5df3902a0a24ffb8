"""A task that asks a scheduler, as far as both need: the answers go through frames, and what they cost is counted."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
import sqlalchemy as sa

from asynsched.authoring.supervisor import SupervisorError, SupervisorNotFound, set_supervisor
from asynsched.channels import TaskReady
from asynsched.clock import VirtualClock
from asynsched.executors.requests import RequestAnswerer
from asynsched.store.database import Database
from sandbox.frames import FrameReader, encode_frame
from sandbox.protocol import CodeVersion, Launch, Reply, Request, RunContext
from sandbox.running.scheduler_link import json_of
from tests.support.passing_database import PassingDatabase
from tests.support.runs import NOON

T = TypeVar("T")


class Asking(PassingDatabase):
    """Answers a task of the run `r` of the DAG `d` from a database, and counts.

    Attributes:
        frames: The bytes of each answer.
        n_statements: The statements that each took.
        n_rows: The rows of results that each has read.
        n_bytes: The bytes of values that each has read.
    """

    def __init__(self, database: Database, dag_run_id: int) -> None:
        super().__init__(database)
        launch = Launch("token", "t", -1, 1, 0, RunContext("d", "r", "manual", NOON), CodeVersion("", ""), "log")
        self._ready = TaskReady(dag_run_id, launch)
        self._answerer = RequestAnswerer(self, VirtualClock(NOON))
        self._reader = FrameReader(Launch | Reply)
        self.frames: list[int] = []
        self.n_statements: list[int] = []
        self.n_rows: list[int] = []
        self.n_bytes: list[int] = []

    async def answer(self, ask: Callable[..., T], *args: Any) -> T:
        """Return what code of a task returns that asks."""
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

    async def read(self, query, *args, **kwargs):
        return await super().read(self._counted, query, args, kwargs)

    def _counted(self, conn, query, args, kwargs):
        for counts in (self.n_statements, self.n_rows, self.n_bytes):
            counts.append(0)
        with results_noted(conn, self._note):
            return query(conn, *args, **kwargs)

    def _note(self, rows: Sequence[Any]) -> None:
        self.n_statements[-1] += 1
        self.n_rows[-1] += len(rows)
        self.n_bytes[-1] += sum(len(value) for row in rows for value in row if isinstance(value, bytes))


@contextmanager
def results_noted(conn: sa.Connection, note: Callable[[Sequence[Any]], None]) -> Iterator[None]:
    """Note the rows of every result, read at once, as the driver of PostgreSQL does."""
    execute = conn.execute

    def execute_and_note(*arguments: Any, **options: Any) -> sa.Result[Any]:
        result = execute(*arguments, **options)
        if not result.returns_rows:
            return result
        frozen = result.freeze()
        note(frozen.data)
        again = frozen()
        again.returns_rows = True
        return again

    with patch.object(conn, "execute", execute_and_note):
        yield
