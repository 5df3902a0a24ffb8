"""One parse as a process of its own: `python -P -m sandbox.parse FILE`, guarded from outside.

That process confines the file's code, enforces the limits and reports every failure of the file. This module starts
it, takes its report, and kills it when it overstays or is not wanted any more.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from asynsched.clock import Clock, SystemClock
from asynsched.errors import ParseCrashed, ParseTimeout, SerializationError
from asynsched.home import TMP
from asynsched.serialization.decode import decode_report
from asynsched.serialization.schema import ParseQuestions, ParseReport
from asynsched.settings import Settings
from sandbox.confinement.environment import environment_of_parse
from sandbox.confinement.limits import ParseLimits
from sandbox.parsing.scratch import remove_tree
from sandbox.parsing.tree import children_of

GUARD_SECONDS = 10.0
"""How much longer than its limit a parse may take to report that it took too long."""
TERM_SECONDS = 8.0
"""How long a parse that is told to end has to kill what it started: more than it takes for that itself."""
MAX_COMPLAINT_BYTES = 16 * 1024
"""How much of a parse process's own standard error is kept."""
HASH_SEED = 0
"""Of the hashes of texts, so that the order of a set alone makes no new version of a DAG."""
FRAMING_BYTES = 1024**2
ESCAPE_FACTOR = 6
"""How much longer a character can be as JSON."""


class SandboxParser:
    """Parses files in confined processes.

    Args:
        settings: The DAG folder, the home, and the limits of a parse.
        clock: Where time comes from.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._dags_folder = settings.dags_path
        self._scratch = settings.home_path / TMP
        self._limits = limits_of(settings)
        self._most_bytes = ESCAPE_FACTOR * (settings.parse.result_bytes + settings.parse.output_bytes) + FRAMING_BYTES
        self._has_swept = False

    async def parse(
        self, path: str, questions: ParseQuestions | None = None, *, hash_seed: int = HASH_SEED
    ) -> ParseReport:
        """Parse a file. See `Parser.parse`.

        Args:
            questions: What to ask the authors' timetables in it; by default for their first runs.
            hash_seed: Of the hashes of texts: with the same, a set has the same order in each parse.
        """
        if not self._has_swept:
            self._has_swept = True
            await anyio.to_thread.run_sync(self._sweep)
        try:
            process = await self._start(path, hash_seed)
        except OSError as exc:
            raise ParseCrashed(path, f"could not be started: {exc.strerror}") from exc
        return await self._guard(path, process, questions or ParseQuestions(now=self._clock.now()))

    async def _guard(self, path: str, process: Process, questions: ParseQuestions) -> ParseReport:
        """Return the report of a process, which has ended when this returns or raises."""
        report = b""
        complaint = b""

        async def read_report() -> None:
            nonlocal report
            assert process.stdout is not None
            report = await _read(process.stdout, self._most_bytes)

        async def read_complaint() -> None:
            nonlocal complaint
            assert process.stderr is not None
            complaint = await _read(process.stderr, MAX_COMPLAINT_BYTES)

        try:
            with anyio.fail_after(self._limits.timeout + GUARD_SECONDS):
                async with anyio.create_task_group() as pipes:
                    pipes.start_soon(read_report)
                    pipes.start_soon(read_complaint)
                    pipes.start_soon(_write, process, msgspec.json.encode(questions))
                status = await process.wait()
        except TimeoutError as exc:
            raise ParseTimeout(path, self._limits.timeout + GUARD_SECONDS) from exc
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)
        return await self._decode(path, report, status, complaint)

    async def _start(self, path: str, hash_seed: int) -> Process:
        environment = environment_of_parse(os.environ, self._limits.environment, str(self._scratch))
        return await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "sandbox.parse", str(self._dags_folder / path),
            "--dags-folder", str(self._dags_folder),
            "--scratch", str(self._scratch),
            "--limits", msgspec.json.encode(self._limits).decode(),
            "--questions",
            stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=self._scratch, start_new_session=True,
            env=environment | {"PYTHONHASHSEED": str(hash_seed)},
        )  # fmt: skip

    async def _decode(self, path: str, data: bytes, status: int, complaint: bytes) -> ParseReport:
        if len(data) > self._most_bytes:
            raise ParseCrashed(path, f"printed more than {self._most_bytes} bytes")
        try:
            report = await anyio.to_thread.run_sync(decode_report, data)
        except SerializationError as exc:
            last_line = (complaint.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]
            how = f"was killed by signal {-status}" if status < 0 else f"exited with {status}"
            raise ParseCrashed(path, f"{how} without a report: {last_line[:500]}") from exc
        return report if report.path == path else msgspec.structs.replace(report, path=path)

    def _sweep(self) -> None:
        """Remove scratch folders that a kill has left; younger ones may be in use by a parse run by hand."""
        for folder in self._scratch.glob("parse-*"):
            with contextlib.suppress(OSError):
                age = self._clock.now().timestamp() - folder.stat().st_mtime
                if age > self._limits.timeout + GUARD_SECONDS:
                    remove_tree(folder)


def limits_of(settings: Settings) -> ParseLimits:
    """Return the limits of a parse: paths absolute, the home hidden."""
    values = msgspec.structs.asdict(settings.parse)
    values["readable"] = tuple(str(Path(path).absolute()) for path in settings.parse.readable)
    values["hidden"] = (str(settings.home_path),)
    values["default_timezone"] = settings.default_timezone
    return ParseLimits(**{name: values[name] for name in ParseLimits.__struct_fields__})


async def _read(stream: asyncio.StreamReader, at_most: int) -> bytes:
    """Return what a process writes, to its end; of more than `at_most` bytes one more than that, the rest unread."""
    data = bytearray()
    while len(data) <= at_most and (chunk := await stream.read(1 << 16)):
        data += chunk
    while await stream.read(1 << 16):
        pass
    return bytes(data[: at_most + 1])


async def _write(process: Process, data: bytes) -> None:
    """Give a process its standard input; one that has ended does not need it."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _end(process: Process) -> None:
    """Have a process that still runs end with all that it has started; kill all of it if it does not."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with anyio.move_on_after(TERM_SECONDS):
        await process.wait()
    if process.returncode is None:
        await anyio.to_thread.run_sync(_kill_all, process.pid)
        await process.wait()


def _kill_all(leader: int) -> None:
    """Kill a process and what it has started: the file's code has a process group of its own, which it cannot leave."""
    groups = {leader: None}
    todo = [leader]
    while todo:
        children = children_of(todo.pop())
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                groups[os.getpgid(child)] = None
        todo += children
    # The leader goes last: while it lives, nobody else can have been given the number of a group of its children.
    for group in reversed(groups):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
