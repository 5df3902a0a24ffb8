"""The scheduler's side of `sandbox.parse_server`: starts it, has it fork guardians, gives each one parse at a time.

Whatever becomes of the server or of a guardian costs the parses that it had under way, and these are lost, never
wrong. A server is replaced when it is gone, when the environment of parses has changed, and when it says that packages
were installed since its start.
"""

import asyncio
import socket
import subprocess
import tempfile
from contextlib import suppress
from typing import IO

import anyio
import anyio.to_thread
import msgspec

from asynsched.errors import ParseCrashed, ParseTimeout
from asynsched.parsing.processes import sandbox_setup
from asynsched.parsing.processes.parse_process import MAX_COMPLAINT_BYTES, last_line
from asynsched.parsing.processes.sandbox_setup import SandboxSetup, kill_all
from asynsched.protocol.parse_setup import STALE, Greeting, Job
from asynsched.serialization.schema import ParseQuestions

MOST_PARSES = 1000
"""Of one guardian: what its memory gathers goes with it."""
END_SECONDS = 10.0
"""How long a server whose control socket was closed may take to end."""


class GuardianLost(Exception):
    """A guardian ended in the middle of a parse, or none could be had; the message says what it complained of."""


class Guardian:
    """One guardian: its connection, and how many files it was given."""

    def __init__(self, server: "ServerProcess", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.n_parses = 0
        self._reader = reader
        self._writer = writer
        self._pid = 0

    @property
    def is_usable(self) -> bool:
        """Whether it may be given another file."""
        return self.n_parses < MOST_PARSES and not self._reader.at_eof() and not self._writer.is_closing()

    async def greet(self) -> None:
        """Wait until it is there. Raises GuardianLost."""
        self._pid = msgspec.json.decode(await self._read_line(MAX_COMPLAINT_BYTES), type=Greeting).pid

    async def parse(self, job: Job, most_bytes: int) -> bytes:
        """Return the answer to a job, a line.

        Raises:
            GuardianLost: It ended without an answer.
            ParseCrashed: The answer is longer than `most_bytes`.
        """
        self.n_parses += 1
        self._writer.write(msgspec.json.encode(job) + b"\n")
        answer = await self._read_line(most_bytes)
        if len(answer) > most_bytes:
            raise ParseCrashed(job.path, f"printed more than {most_bytes} bytes")
        return answer

    async def _read_line(self, most_bytes: int) -> bytes:
        data = bytearray()
        try:
            while not data.endswith(b"\n") and len(data) <= most_bytes:
                chunk = await self._reader.read(1 << 16)
                if not chunk:
                    raise GuardianLost(self.server.complaint())
                data += chunk
        except OSError as exc:
            raise GuardianLost(self.server.complaint()) from exc
        return bytes(data)

    async def end(self) -> None:
        """Have it end with all that it has started; kill all of it if it does not."""
        with suppress(OSError):
            self._writer.write_eof()
        with anyio.move_on_after(sandbox_setup.TERM_SECONDS) as patience, suppress(OSError):
            while await self._reader.read(1 << 16):
                pass
        if patience.cancelled_caught and self._pid:
            # It has not closed its socket, so this is still its number.
            await anyio.to_thread.run_sync(kill_all, self._pid)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


class ServerProcess:
    """One parse server, which was started with this environment. `n_busy`: its guardians that are parsing."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", control: socket.socket, errors: IO[bytes], environment: dict[str, str]
    ) -> None:
        self.environment = environment
        self.n_busy = 0
        self._process = process
        self._control = control
        self._errors = errors

    @classmethod
    def start(cls, setup: SandboxSetup, environment: dict[str, str]) -> "ServerProcess":
        """Start one. Blocks. Raises OSError."""
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        try:
            with theirs:
                process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    setup.command("sandbox.parse_server", "--control", str(theirs.fileno())),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    cwd=setup.scratch,
                    env=environment,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError:
            control.close()
            errors.close()
            raise
        return cls(process, control, errors, environment)

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked for guardians."""
        return self._process.poll() is None

    async def fork_guardian(self) -> Guardian:
        """Return a new guardian. Raises GuardianLost."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"g"], [theirs.fileno()])
            except OSError as exc:
                ours.close()
                raise GuardianLost(self.complaint()) from exc
        guardian = Guardian(self, *await asyncio.open_connection(sock=ours))
        try:
            await guardian.greet()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await guardian.end()
            raise
        return guardian

    def complaint(self) -> str:
        """Return the last line that the server or a guardian of it wrote to its standard error."""
        try:
            self._errors.seek(0)
            return last_line(self._errors.read(MAX_COMPLAINT_BYTES))
        except ValueError:
            # It was ended while somebody still waited for a guardian of it.
            return ""

    def end(self) -> None:
        """Have it end, and its guardians with it; kill it if it does not. Blocks."""
        self._control.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


class ParseServer:
    """Parses files by guardians of a server, which is started when it is needed.

    Args:
        hash_seed: Of the hashes of texts: with the same, a set has the same order in each parse.
    """

    def __init__(self, setup: SandboxSetup, hash_seed: int = sandbox_setup.HASH_SEED) -> None:
        self._setup = setup
        self._hash_seed = hash_seed
        self._server: ServerProcess | None = None
        self._idle: list[Guardian] = []
        self._starting = anyio.Lock()

    async def parse(self, path: str, questions: ParseQuestions) -> bytes:
        """Return the report of a parse, as JSON. No process of the parse is left when this returns or raises.

        Raises:
            ParseTimeout: The guardian did not answer in time.
            ParseCrashed: It said too much, or no server can be started.
            GuardianLost: It was killed, or crashed.
        """
        job = Job(path, questions)
        try:
            with anyio.fail_after(self._setup.longest_seconds):
                while (answer := await self._parse(job)) == STALE:
                    pass
                return answer
        except TimeoutError as exc:
            raise ParseTimeout(path, self._setup.longest_seconds) from exc

    async def warm_up(self) -> None:
        """Have a server and a guardian ready for the next parse. Why there are none is for that parse to tell."""
        with suppress(ParseCrashed, GuardianLost, OSError), anyio.move_on_after(self._setup.longest_seconds):
            guardian = await self._guardian("")
            with anyio.CancelScope(shield=True):
                await self._put_back(guardian, is_done=True)

    async def close(self) -> None:
        """End the server with all that it has started. Call it when no parse is under way."""
        await self._retire(self._server)

    async def _parse(self, job: Job) -> bytes:
        guardian = await self._guardian(job.path)
        guardian.server.n_busy += 1
        is_done = False
        try:
            answer = await guardian.parse(job, self._setup.most_bytes)
            is_done = True
        finally:
            guardian.server.n_busy -= 1
            with anyio.CancelScope(shield=True):
                await self._put_back(guardian, is_done=is_done)
        if answer == STALE:
            await self._retire(guardian.server)
        return answer

    async def _guardian(self, path: str) -> Guardian:
        """Return a guardian that has nothing to do, of a server that is as one started now would be."""
        server = await self._current(path)
        while self._idle:
            guardian = self._idle.pop()
            if guardian.is_usable and guardian.server is server:
                return guardian
            with anyio.CancelScope(shield=True):
                await guardian.end()
        return await server.fork_guardian()

    async def _current(self, path: str) -> ServerProcess:
        async with self._starting:
            environment = self._setup.environment(self._hash_seed)
            server = self._server
            if server is not None and (not server.is_alive or server.environment != environment):
                await self._retire(server)
            if self._server is None:
                await self._start_one(path, environment)
            assert self._server is not None
            return self._server

    async def _start_one(self, path: str, environment: dict[str, str]) -> None:
        try:
            # A process that is started must be known, so that it is ended.
            with anyio.CancelScope(shield=True):
                self._server = await anyio.to_thread.run_sync(ServerProcess.start, self._setup, environment)
        except OSError as exc:
            raise ParseCrashed(path, f"could not be started: {exc.strerror}") from exc

    async def _put_back(self, guardian: Guardian, *, is_done: bool) -> None:
        server = guardian.server
        if is_done and guardian.is_usable and server is self._server:
            self._idle.append(guardian)
            return
        await guardian.end()
        if server is not self._server and not server.n_busy:
            await anyio.to_thread.run_sync(server.end)

    async def _retire(self, server: ServerProcess | None) -> None:
        """Give this server no more to do; it ends when its guardians have done what they are doing."""
        if server is None or server is not self._server:
            return
        self._server = None
        idle, self._idle = self._idle, []
        # Nobody else knows them any more, even if the parse that has found this out is not wanted now.
        with anyio.CancelScope(shield=True):
            for guardian in idle:
                await guardian.end()
            if not server.n_busy:
                await anyio.to_thread.run_sync(server.end)
