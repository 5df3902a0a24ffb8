"""Whether a scheduler serves: not yet, with which database, or no more. A scheduler serves once."""

from collections.abc import Awaitable, Callable

import anyio

from asynsched.errors import NotServing
from asynsched.store.database import Database

NOT_YET = "The scheduler is not serving: start `serve()` first, and wait until it is ready."
NO_MORE = "The scheduler has stopped: make a new one, and serve that."


class ServingState:
    """What those in this program who use a scheduler ask, and wait for.

    Attributes:
        started: Set once it is ready.
        stopped: Set once it serves no more, also when it could not start.
    """

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.stopped = anyio.Event()
        self._database: Database | None = None

    def serve_from(self, database: Database) -> None:
        """Let the database be used."""
        self._database = database

    def end(self) -> None:
        """Serve no more: whoever waits is told."""
        self._database = None
        self.stopped.set()

    @property
    def database(self) -> Database:
        """The open database. Raises NotServing."""
        if self._database is None:
            raise NotServing(NO_MORE if self.stopped.is_set() else NOT_YET)
        return self._database

    async def unless_stopped(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Wait for something that only a serving scheduler does.

        Raises:
            NotServing: The scheduler has stopped before.
            Exception: What `wait` raises.
        """
        if self.stopped.is_set():
            raise NotServing(NO_MORE)
        failure: Exception | None = NotServing(NO_MORE)
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(self._cancel_once_stopped, waiting.cancel_scope)
            try:
                await wait()
                failure = None
            except Exception as exc:  # noqa: BLE001 - it is raised below, where no group wraps it
                failure = exc
            waiting.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _cancel_once_stopped(self, scope: anyio.CancelScope) -> None:
        await self.stopped.wait()
        scope.cancel()
