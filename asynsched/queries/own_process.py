"""Long work in a process of its own: a module that reads a question from standard input, and writes the answer.

One after the other: these processes take a core, and up to 2 GiB, each.
"""

import os
import signal
import subprocess
import sys

import anyio
import msgspec
from anyio.abc import Process

from asynsched.errors import AsynschedError
from asynsched.executors.base import parted_environment
from asynsched.queries.turns import turns
from asynsched.simulation.own_process import LONGEST_SECONDS, REFUSED

END_SECONDS = 5.0
"""How long a process has to end its parses when it is stopped."""
MOST_BYTES = 32 * 1024**2
"""Of an answer."""


async def answer_of(module: str, question: bytes, *, command: str) -> bytes:
    """Return the answer of `python -m MODULE`, which `simulation/own_process.py` helps to write.

    Args:
        command: The command that does the same, for errors.

    Raises:
        AsynschedError: It refuses, takes too long, or has too long an answer; or too many questions are waiting.
    """
    async with turns("simulations and previews", 1):
        return await _answer_of(module, question, command)


async def _answer_of(module: str, question: bytes, command: str) -> bytes:
    shown, hidden = parted_environment(os.environ)
    process = await anyio.open_process([sys.executable, "-P", "-m", module], stderr=subprocess.DEVNULL, env=shown)
    try:
        with anyio.fail_after(LONGEST_SECONDS):
            assert process.stdin is not None
            await process.stdin.send(msgspec.json.encode(hidden) + b"\n" + question)
            await process.stdin.aclose()
            content = await _read(process)
            code = await process.wait()
    except TimeoutError as exc:
        raise AsynschedError(
            f"This has taken longer than {LONGEST_SECONDS:g} s: ask for less, or use the command `{command}`."
        ) from exc
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
    if code == REFUSED:
        raise AsynschedError(content.decode())
    if code != 0:
        raise AsynschedError(f"This has failed with exit code {code}. `{command}` shows why.")
    return content


async def _read(process: Process) -> bytes:
    assert process.stdout is not None
    parts, n_bytes = [], 0
    async for part in process.stdout:
        n_bytes += len(part)
        if n_bytes > MOST_BYTES:
            raise AsynschedError("The answer is too long: ask for less.")
        parts.append(part)
    return b"".join(parts)


async def _end(process: Process) -> None:
    """End a process that is left, with the parses that it has started."""
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
        with anyio.move_on_after(END_SECONDS):
            await process.wait()
        if process.returncode is None:
            process.kill()
    await process.aclose()
