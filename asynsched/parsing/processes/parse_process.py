"""One parse as a process of its own: `python -P -m sandbox.parse FILE`, guarded from outside.

That process confines the file's code, enforces the limits and reports every failure of the file. This module starts
it, takes its report, and kills it when it overstays or is not wanted any more.
"""

import asyncio
import contextlib
from asyncio.subprocess import PIPE, Process

import anyio
import anyio.to_thread
import msgspec

from asynsched.errors import ParseCrashed, ParseTimeout
from asynsched.parsing.processes import sandbox_setup
from asynsched.parsing.processes.sandbox_setup import SandboxSetup, kill_all
from asynsched.serialization.schema import ParseQuestions

MAX_COMPLAINT_BYTES = 16 * 1024
"""How much of a parse process's own standard error is kept."""


async def parse_in_new_process(setup: SandboxSetup, path: str, questions: ParseQuestions, *, hash_seed: int) -> bytes:
    """Return the report of a parse, as JSON, by a process that has ended when this returns or raises.

    Raises:
        ParseTimeout: The process did not end in time.
        ParseCrashed: It ended without a report, or printed too much.
    """
    try:
        process = await _start(setup, path, hash_seed)
    except OSError as exc:
        raise ParseCrashed(path, f"could not be started: {exc.strerror}") from exc
    report, complaint, status = await _guard(setup, path, process, questions)
    if len(report) > setup.most_bytes:
        raise ParseCrashed(path, f"printed more than {setup.most_bytes} bytes")
    if not report.endswith(b"\n"):
        how = f"was killed by signal {-status}" if status < 0 else f"exited with {status}"
        raise ParseCrashed(path, f"{how} without a report: {last_line(complaint)}")
    return report


def last_line(complaint: bytes) -> str:
    """Return the last line that a process wrote to its standard error."""
    return (complaint.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1][:500]


async def _start(setup: SandboxSetup, path: str, hash_seed: int) -> Process:
    command = setup.command("sandbox.parse", str(setup.dags_folder / path), "--questions")
    return await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=setup.scratch, start_new_session=True,
        env=setup.environment(hash_seed),
    )  # fmt: skip


async def _guard(
    setup: SandboxSetup, path: str, process: Process, questions: ParseQuestions
) -> tuple[bytes, bytes, int]:
    """Return what a process has printed, what it has complained of, and its exit status."""
    assert process.stdout is not None
    assert process.stderr is not None
    outputs = [b"", b""]

    async def read(number: int, stream: asyncio.StreamReader, at_most: int) -> None:
        outputs[number] = await _read(stream, at_most)

    try:
        with anyio.fail_after(setup.longest_seconds):
            async with anyio.create_task_group() as pipes:
                pipes.start_soon(read, 0, process.stdout, setup.most_bytes)
                pipes.start_soon(read, 1, process.stderr, MAX_COMPLAINT_BYTES)
                pipes.start_soon(_write, process, msgspec.json.encode(questions))
            status = await process.wait()
    except TimeoutError as exc:
        raise ParseTimeout(path, setup.longest_seconds) from exc
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
    return outputs[0], outputs[1], status


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
    with anyio.move_on_after(sandbox_setup.TERM_SECONDS):
        await process.wait()
    if process.returncode is None:
        await anyio.to_thread.run_sync(kill_all, process.pid)
        await process.wait()
