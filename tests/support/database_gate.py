"""A gate before a PostgreSQL server on this machine: a test closes it, or lets nothing through."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

SOCKET = ".s.PGSQL.5432"


class DatabaseGate:
    """Passes bytes between clients and the server of `url`, whose database `self.url` names through the gate."""

    def __init__(self, url: str, folder: Path) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        self._server_socket = str(Path(query["host"][0]) / SOCKET)
        self._own_socket = folder / SOCKET
        self.url = urlunsplit(parts._replace(query=urlencode({"host": str(folder)})))
        self._is_loud = asyncio.Event()
        self._is_loud.set()
        self._listener: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        """Open: everything passes from now on."""
        self._is_loud.set()
        if self._listener is None:
            self._listener = await asyncio.start_unix_server(self._serve, str(self._own_socket))

    async def cut(self) -> None:
        """Cut every connection, and take no new one: the server is gone."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self._own_socket.unlink(missing_ok=True)
        for writer in self._writers:
            writer.transport.abort()

    def silence(self) -> None:
        """Close without cutting a connection: the server answers no more."""
        self._is_loud.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            server_reader, server_writer = await asyncio.open_unix_connection(self._server_socket)
            ends = {writer, server_writer}
            self._writers |= ends
            try:
                async with asyncio.TaskGroup() as directions:
                    directions.create_task(self._pass_on(reader, server_writer))
                    directions.create_task(self._pass_on(server_reader, writer))
            finally:
                self._writers -= ends
                for end in ends:
                    end.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._is_loud.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def gate_before(url: str, folder: Path) -> AsyncIterator[DatabaseGate]:
    """Return an open gate before the database of a URL."""
    gate = DatabaseGate(url, folder)
    await gate.open()
    try:
        yield gate
    finally:
        await gate.cut()
