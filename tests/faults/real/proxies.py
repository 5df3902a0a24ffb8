"""Proxies for the connections between machines, which delay, hold back, break and refuse them."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

from tests.integration.remote.machines import free_port

Weather = Literal["fair", "slow", "deaf", "mute", "dead", "refusing"]
WEATHERS: tuple[Weather, ...] = ("slow", "deaf", "mute", "dead", "refusing")
"""`slow`: all bytes are late; `deaf`, `mute`, `dead`: those to the server, from it, or both are lost, and connections
stay open; `refusing`: connections break, and no other is accepted."""
SLOW_SECONDS = 0.7
"""Longest delay of each piece."""
PIECE_BYTES = 65536
LOSING: dict[str, frozenset[Weather]] = {"to": frozenset({"deaf", "dead"}), "from": frozenset({"mute", "dead"})}


class Proxy:
    """A port that leads to another one. Its connections share one weather."""

    def __init__(self, name: str, target: int) -> None:
        self.name = name
        self.port = free_port()
        self.weather: Weather = "fair"
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self) -> asyncio.Server:
        """Listen."""
        return await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def change(self, weather: Weather) -> None:
        """Change the weather. Bytes that were lost break a connection in the end, as in a real network."""
        was, self.weather = self.weather, weather
        if weather == "refusing" or was in ("deaf", "mute", "dead"):
            for writer in self._writers:
                writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self.weather == "refusing":
                writer.transport.abort()
                return
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        finally:
            if writer.transport.is_closing():
                self._writers.discard(writer)
        self._writers.add(to_writer)
        try:
            await asyncio.gather(self._pass(reader, to_writer, "to"), self._pass(to_reader, writer, "from"))
        finally:
            for one in (writer, to_writer):
                self._writers.discard(one)
                one.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        with suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                if self.weather == "slow":
                    await asyncio.sleep(random.uniform(0, SLOW_SECONDS))
                if self.weather not in LOSING[way]:
                    writer.write(data)
                    await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()


class Proxies:
    """Proxies in an event loop in a thread of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._servers: list[asyncio.Server] = []
        self.all: list[Proxy] = []

    def lead_to(self, name: str, port: int) -> Proxy:
        """Return a new proxy for a port."""
        proxy = Proxy(name, port)
        self._servers.append(self._do(proxy.serve))
        self.all.append(proxy)
        return proxy

    def change(self, proxy: Proxy, weather: Weather) -> None:
        """Change the weather of a proxy."""
        self._loop.call_soon_threadsafe(proxy.change, weather)

    def close(self) -> None:
        """Break all connections."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for proxy in self.all:
            proxy.change("refusing")
        # The last of a connection is that its task has seen its end.
        if passing := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(passing, timeout=5)

    def _do(self, work: Callable[[], Awaitable[asyncio.Server]]) -> asyncio.Server:
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(10)  # type: ignore[arg-type]
