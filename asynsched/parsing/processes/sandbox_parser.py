"""Parses files in confined processes: forks of a parse server, which forks guardians, each with one parse at a time.

A failure of the server or of a guardian costs the parses that it had under way: these are lost, never wrong. A server
is replaced when it is gone, when the environment of parses has changed, and when it says that packages were installed
since its start.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, Self

import anyio
import anyio.to_thread
import msgspec

from asynsched.airflow.configuration import options_in, variables_of_cfg
from asynsched.airflow.installation import options_of_processes
from asynsched.clock import Clock
from asynsched.errors import ParseCrashed, ParseTimeout, SandboxError, SerializationError, SettingsError
from asynsched.executors.base import user_environment
from asynsched.home import TMP
from asynsched.parsing.readable_secrets import Asking, ReadableSecrets
from asynsched.protocol.home_files import sweep
from asynsched.protocol.parse_messages import (
    QUESTION,
    STALE,
    Answered,
    Asked,
    Greeting,
    Job,
    ParseLimits,
    answer_line,
    environment_of_parses,
    home_in,
)
from asynsched.serialization.decode import decode_report
from asynsched.serialization.schema import SCHEMA_VERSION, FileError, ParseQuestions, ParseReport
from asynsched.settings import CONFIG_FILE, Settings
from asynsched.store.engines.urls import is_postgresql
from sandbox.confine import available

HASH_SEED = 0
"""Of the hashes of texts, so that the order of a set alone makes no new version of a DAG."""
GUARD_SECONDS = 10.0
"""How much longer than its limit a parse may take to report that it took too long."""
TERM_SECONDS = 8.0
"""How long a guardian may take to kill its processes: longer than it allows itself."""
MAX_COMPLAINT_BYTES = 16 * 1024
"""How many bytes of a server's own standard error are kept."""
FRAMING_BYTES = 1024**2
ESCAPE_FACTOR = 6
"""How much longer a character can be as JSON."""
MOST_PARSES = 1000
"""Of one guardian: a new one has none of the memory that gathers."""
END_SECONDS = 10.0
"""How long a server whose control socket was closed may take to end."""


class SandboxSetup(NamedTuple):
    """The settings that all parses of a scheduler share."""

    dags_folder: Path
    scratch: Path
    limits: ParseLimits
    of_cfg: dict[str, str]
    """The options of the airflow.cfg, as variables: a parse cannot read that file."""
    is_postgresql: bool
    """Whether the scheduler uses PostgreSQL: then no parse sees its variables, even if the settings allow them."""

    @property
    def most_bytes(self) -> int:
        return ESCAPE_FACTOR * (self.limits.result_bytes + self.limits.output_bytes) + FRAMING_BYTES

    @property
    def longest_seconds(self) -> float:
        """Return how long a parse may take in all, until its guard is taken to hang."""
        return self.limits.timeout + GUARD_SECONDS

    def command(self, module: str, *arguments: str) -> list[str]:
        return [
            sys.executable, "-P", "-m", module, *arguments,
            "--dags-folder", str(self.dags_folder),
            "--scratch", str(self.scratch),
            "--limits", msgspec.json.encode(self.limits).decode(),
        ]  # fmt: skip

    def environment(self, hash_seed: int = HASH_SEED) -> dict[str, str]:
        """Return the environment of a process that parses, as of now."""
        shown = self.of_cfg | user_environment(os.environ, is_postgresql=self.is_postgresql)
        kept = environment_of_parses(shown, self.limits.environment)
        return kept | home_in(str(self.scratch)) | {"PYTHONHASHSEED": str(hash_seed)}


def setup_of(settings: Settings) -> SandboxSetup:
    """Return the settings of parses: paths absolute, the home hidden."""
    values = msgspec.structs.asdict(settings.parse)
    for name in ("readable", "writable", "hidden"):
        values[name] = tuple(str(Path(path).absolute()) for path in values[name])
    cfg = settings.airflow_cfg_path
    of_cfg = variables_of_cfg(cfg)
    values["hidden"] += (str(settings.home_path), *files_with_secrets(settings))
    values["default_timezone"], values["airflow"] = settings.default_timezone, settings.airflow
    values["airflow_options"] = options_of_parses(settings)
    values["readable"] += tuple(settings.installation_folders)
    limits = ParseLimits(**{name: values[name] for name in ParseLimits.__struct_fields__})
    is_of_server = is_postgresql(settings.database_url)
    return SandboxSetup(settings.dags_path, settings.home_path / TMP, limits, of_cfg, is_of_server)


def files_with_secrets(settings: Settings) -> list[str]:
    """Return the files with secrets that may lie in a folder that parses read, absolute."""
    config = settings.airflow_folder / "config"
    named = [
        settings.airflow_cfg_path, settings.fernet_key_file, settings.web.tls_key, settings.web.oidc_client_secret_file,
        settings.kubernetes.kubeconfig, os.environ.get("ASYNSCHED_CONFIG"),
    ]  # fmt: skip
    found = [*map(Path, filter(None, named)), config / "airflow.cfg", config / CONFIG_FILE, Path(CONFIG_FILE)]
    return [str(path.absolute()) for path in found if path.is_file()]


Answer = Callable[[Asked], Awaitable[Answered]]
"""Answers a question of a file for a variable or a connection."""


def options_of_parses(settings: Settings) -> dict[str, str]:
    """Return the options of Airflow's configuration that parses get beside its defaults, by `section.key`.

    A parse sees little of the environment, so these are the settings' and, from the environment and airflow.cfg, those
    without secrets.
    """
    found = options_in(variables_of_cfg(settings.airflow_cfg_path) | os.environ)
    return options_of_processes(found | settings.airflow_options)


class GuardianLost(Exception):
    """A guardian ended during a parse, or none could be started; the message is its last complaint."""


class Guardian:
    """One guardian: its connection, and how many files it has parsed."""

    def __init__(self, server: "ServerProcess", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.n_parses = 0
        self._reader = reader
        self._writer = writer
        self._pid = 0

    @property
    def is_usable(self) -> bool:
        return self.n_parses < MOST_PARSES and not self._reader.at_eof() and not self._writer.is_closing()

    async def greet(self) -> None:
        """Wait until the guardian has started. Raises GuardianLost."""
        self._pid = msgspec.json.decode(await self._read_line(), type=Greeting).pid

    async def parse(self, job: Job, answer: Answer) -> bytes:
        """Return the report of a job, a line. `answer` answers the questions of the file, one after the other.

        Raises:
            GuardianLost: It ended without a report.
            LimitOverrunError: The report is longer than the limit of the connection.
        """
        self.n_parses += 1
        self._writer.write(msgspec.json.encode(job) + b"\n")
        while (line := await self._read_line()).startswith(QUESTION):
            self._writer.write(answer_line(await answer(msgspec.json.decode(line[1:], type=Asked))))
        return line

    async def _read_line(self) -> bytes:
        try:
            return await self._reader.readuntil()
        except (OSError, asyncio.IncompleteReadError) as exc:
            raise GuardianLost(self.server.complaint()) from exc

    async def end(self) -> None:
        """End the guardian with all processes that it has started; kill them if it does not end."""
        with suppress(OSError):
            self._writer.write_eof()
        with anyio.move_on_after(TERM_SECONDS) as patience, suppress(OSError):
            while await self._reader.read(1 << 16):
                pass
        if patience.cancelled_caught and self._pid:
            # The guardian has not closed its socket, so the process number is still its own.
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
        """Start a server. Blocks. Raises OSError."""
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
        return self._process.poll() is None

    async def fork_guardian(self, most_bytes: int) -> Guardian:
        """Return a new guardian, whose answers may have this length. Raises GuardianLost."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"g"], [theirs.fileno()])
            except OSError as exc:
                ours.close()
                raise GuardianLost(self.complaint()) from exc
        guardian = Guardian(self, *await asyncio.open_connection(sock=ours, limit=most_bytes))
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
            # The server was ended while a parse still waited for a guardian of it.
            return ""

    def end(self) -> None:
        """End the server, and its guardians with it; kill it if it does not end. Blocks."""
        self._control.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


class ParseServer:
    """Parses files by guardians of a server, which is started when it is needed."""

    def __init__(self, setup: SandboxSetup, hash_seed: int = HASH_SEED) -> None:
        self._setup = setup
        self._hash_seed = hash_seed
        self._server: ServerProcess | None = None
        self._idle: list[Guardian] = []
        self._starting = anyio.Lock()

    async def parse(self, path: str, questions: ParseQuestions, answer: Answer) -> bytes:
        """Return the report of a parse, as JSON. No process of the parse is left when this returns or raises.

        `answer` answers the questions of the file.

        Raises:
            ParseTimeout: The guardian did not answer in time.
            ParseCrashed: It said too much, or no server can be started.
            GuardianLost: It was killed, or crashed.
        """
        job = Job(path, questions)
        try:
            with anyio.fail_after(self._setup.longest_seconds):
                while (report := await self._parse(job, answer)) == STALE:
                    pass
                return report
        except TimeoutError as exc:
            raise ParseTimeout(path, self._setup.longest_seconds) from exc
        except asyncio.LimitOverrunError as exc:
            raise ParseCrashed(path, f"printed more than {self._setup.most_bytes} bytes") from exc

    async def warm_up(self) -> None:
        """Start a server and a guardian for the next parse. If that fails, the parse says why."""
        with suppress(ParseCrashed, GuardianLost, OSError), anyio.move_on_after(self._setup.longest_seconds):
            guardian = await self._guardian("")
            with anyio.CancelScope(shield=True):
                await self._put_back(guardian, is_done=True)

    async def close(self) -> None:
        """End the server with all that it has started. Call it when no parse is under way."""
        await self._retire(self._server)

    async def _parse(self, job: Job, answer: Answer) -> bytes:
        guardian = await self._guardian(job.path)
        guardian.server.n_busy += 1
        is_done = False
        try:
            report = await guardian.parse(job, answer)
            is_done = True
        finally:
            guardian.server.n_busy -= 1
            with anyio.CancelScope(shield=True):
                await self._put_back(guardian, is_done=is_done)
        if report == STALE:
            await self._retire(guardian.server)
        return report

    async def _guardian(self, path: str) -> Guardian:
        """Return an idle guardian of a server that is like one started now."""
        server = await self._current(path)
        while self._idle:
            guardian = self._idle.pop()
            if guardian.is_usable and guardian.server is server:
                return guardian
            with anyio.CancelScope(shield=True):
                await guardian.end()
        return await server.fork_guardian(self._setup.most_bytes)

    async def _current(self, path: str) -> ServerProcess:
        async with self._starting:
            environment = self._setup.environment(self._hash_seed)
            server = self._server
            if server is not None and (not server.is_alive or server.environment != environment):
                await self._retire(server)
            try:
                # A process that is started must be known here, so that it is ended.
                with anyio.CancelScope(shield=True):
                    if self._server is None:
                        self._server = await anyio.to_thread.run_sync(ServerProcess.start, self._setup, environment)
            except OSError as exc:
                raise ParseCrashed(path, f"could not be started: {exc.strerror}") from exc
            assert self._server is not None
            return self._server

    async def _put_back(self, guardian: Guardian, *, is_done: bool) -> None:
        server = guardian.server
        if is_done and guardian.is_usable and server is self._server:
            self._idle.append(guardian)
            return
        await guardian.end()
        if server is not self._server and not server.n_busy:
            await anyio.to_thread.run_sync(server.end)

    async def _retire(self, server: ServerProcess | None) -> None:
        """Give this server no more parses; it ends when its guardians have finished theirs."""
        if server is None or server is not self._server:
            return
        self._server = None
        idle, self._idle = self._idle, []
        # Nothing else refers to them any more, so they are ended even if the parse that found this out is cancelled.
        with anyio.CancelScope(shield=True):
            for guardian in idle:
                await guardian.end()
            if not server.n_busy:
                await anyio.to_thread.run_sync(server.end)


def last_line(complaint: bytes) -> str:
    """Return the last line that a process wrote to its standard error."""
    return (complaint.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1][:500]


def kill_all(leader: int) -> None:
    """Kill a process and its descendants: the file's code has a process group of its own, which it cannot leave."""
    groups = {leader: None}
    todo = [leader]
    while todo:
        children = _children_of(todo.pop())
        for child in children:
            with suppress(ProcessLookupError):
                groups[os.getpgid(child)] = None
        todo += children
    # The leader goes last: while it lives, no other process group can get the number of one of its children's groups.
    for group in reversed(groups):
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _children_of(pid: int) -> list[int]:
    """Return the children of a process; none when it has ended."""
    with suppress(OSError):
        return [int(pid) for file in Path(f"/proc/{pid}/task").glob("*/children") for pid in file.read_text().split()]
    return []


MOST_BYTES_ON_LOOP = 64 * 1024
"""A longer report is decoded by a thread."""


def report_of_error(path: str, error: FileError) -> ParseReport:
    """Return the report of a file that has nothing but this error."""
    return ParseReport(schema_version=SCHEMA_VERSION, path=path, errors=(error,))


def report_of_failure(path: str, exc: SandboxError) -> ParseReport:
    """Return the report of a parse that raised."""
    kind = "timeout" if isinstance(exc, ParseTimeout) else "crash"
    return msgspec.structs.replace(report_of_error(path, FileError(kind, str(exc))), asked=exc.asked)


class SandboxParser:
    """Parses files in confined processes.

    As an async context manager it keeps a parse server for each hash seed, which `warm_up` or the first parse starts.
    Otherwise each parse has a server that ends with it.

    Args:
        secrets: The variables and connections that files may read; None if there is no database.
    """

    def __init__(self, settings: Settings, secrets: ReadableSecrets | None = None) -> None:
        self._setup = setup_of(settings)
        self._secrets = secrets
        self._servers: dict[int, ParseServer] | None = None
        self._has_swept = False

    async def __aenter__(self) -> Self:
        """Raise SettingsError if parses must be fully confined, but cannot be."""
        limits = self._setup.limits
        if limits.confinement == "required" and (missing := available().missing):
            raise SettingsError(
                f"parse.confinement is required, but this machine cannot enforce it: {'; '.join(missing)}"
            )
        self._servers = {}
        return self

    async def __aexit__(self, *_: object) -> None:
        servers, self._servers = self._servers, None
        if servers is not None:
            for server in servers.values():
                await server.close()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(sweep, self._setup.scratch)

    async def parse(
        self, path: str, questions: ParseQuestions | None = None, *, hash_seed: int = HASH_SEED
    ) -> ParseReport:
        """Parse a file.

        Args:
            questions: The questions to the authors' timetables in it; by default about their first runs.
            hash_seed: Of the hashes of texts: with the same, a set has the same order in each parse.

        Raises:
            ParseTimeout: The parse did not end in time, not even by its own guard.
            ParseCrashed: The parse ended without a report.
            StoreUnavailable: The database could not be reached when the file asked for a variable or a connection.
        """
        await self._sweep_once()
        questions = questions or ParseQuestions(now=Clock().now())
        is_kept, server = self._servers is not None, self._server(hash_seed)
        asking = Asking(self._secrets)
        try:
            report = await _decode(path, await self._ask(server, path, questions, asking.answer))
            return await asking.completed(report, self._setup.limits)
        except SandboxError as exc:
            exc.asked = asking.asked
            raise
        finally:
            if not is_kept:
                await server.close()

    async def warm_up(self, hash_seed: int) -> None:
        """Start the server for this hash seed, if servers are kept and it does not run yet."""
        await self._sweep_once()
        if self._servers is not None:
            await self._server(hash_seed).warm_up()

    async def _sweep_once(self) -> None:
        if not self._has_swept:
            self._has_swept = True
            await anyio.to_thread.run_sync(sweep, self._setup.scratch)

    def _server(self, hash_seed: int) -> ParseServer:
        server = ParseServer(self._setup, hash_seed)
        return server if self._servers is None else self._servers.setdefault(hash_seed, server)

    async def _ask(self, server: ParseServer, path: str, questions: ParseQuestions, answer: Answer) -> bytes:
        """Return the report of a guardian; one that is lost may have been killed for another's sake: ask once more."""
        with suppress(GuardianLost):
            return await server.parse(path, questions, answer)
        # A killed process leaves its scratch folder behind.
        await anyio.to_thread.run_sync(sweep, self._setup.scratch)
        try:
            return await server.parse(path, questions, answer)
        except GuardianLost as exc:
            raise ParseCrashed(path, f"was lost without a report: {exc}") from exc


async def _decode(path: str, data: bytes) -> ParseReport:
    try:
        if len(data) <= MOST_BYTES_ON_LOOP:
            report = decode_report(data)
        else:
            report = await anyio.to_thread.run_sync(decode_report, data)
    except SerializationError as exc:
        raise ParseCrashed(path, f"gave a report that cannot be read: {exc}") from exc
    return report if report.path == path else msgspec.structs.replace(report, path=path)
