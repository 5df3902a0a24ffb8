"""The database as one scheduler sees it: it fails before and after a commit, and a scheduler may die at either."""

import asyncio
from contextlib import suppress
from typing import Any

from asynsched.errors import AsynschedError, StoreUnavailable
from asynsched.store.database import Database
from asynsched.store.engines.sqlite_connection import InlineDatabase
from tests.faults.simulated.loop import Process


def name_of(query: Any) -> str:
    """Return the name of a query."""
    return getattr(query, "__name__", None) or name_of(query.func)


class FaultyDatabase(Database):
    """Passes calls on to the database of all, unless the world lets them fail."""

    def __init__(self, world: Any, process: Process, inline: InlineDatabase) -> None:
        self.is_shared = world.shares_database
        self._world = world
        self._process = process
        self._inline = inline
        self.failed: set[str] = set()
        """The tasks whose last call has failed: they wait before they try again."""

    async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._call(self._inline.connection.read, query, args, kwargs)

    async def write(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._call(self._inline.connection.write, query, args, kwargs)

    async def close(self) -> None:
        """It belongs to the world."""

    async def _call(self, run: Any, query: Any, args: Any, kwargs: Any) -> Any:
        task = asyncio.current_task()
        caller = "" if task is None else task.get_name()
        self.failed.add(caller)
        result = await self._pass_on(run, query, args, kwargs)
        self.failed.discard(caller)
        return result

    async def _pass_on(self, run: Any, query: Any, args: Any, kwargs: Any) -> Any:
        world, chance, name = self._world, self._world.chance, name_of(query)
        await asyncio.sleep(chance.latency())
        self._live()
        if chance.crashes("crash_before", name):
            if self.is_shared and run == self._inline.connection.write and chance.happens("late_write"):
                # A server completes a query even if the client is gone.
                world.later_or_after_takeover(self._land, run, query, args, kwargs)
            await self._crash(f"before {name}")
        if world.database_is_away() or chance.happens("away_before"):
            world.say("database", f"away before {name}")
            raise StoreUnavailable(f"away before {name}")
        with world.notifications.of_one_transaction():
            result = run(lambda connection: query(connection, *args, **kwargs))
        world.committed(self._process, name)
        if chance.crashes("crash_after", name):
            await self._crash(f"after {name}")
        await asyncio.sleep(chance.latency())
        self._live()
        if chance.happens("away_after"):
            world.say("database", f"away after {name}")
            raise StoreUnavailable(f"away after {name}")
        return result

    def _land(self, run: Any, query: Any, args: Any, kwargs: Any) -> None:
        """Carry out the last query of a dead scheduler."""
        self._world.say("fault", f"a late {name_of(query)}")
        with suppress(AsynschedError), self._world.notifications.of_one_transaction():
            run(lambda connection: query(connection, *args, **kwargs))
        self._world.committed(self._process, f"late {name_of(query)}")

    def _live(self) -> None:
        if self._process.is_dead:
            raise asyncio.CancelledError

    async def _crash(self, when: str) -> None:
        self._process.crash(when)
        raise asyncio.CancelledError
