"""The commands of Slurm: how they are called, and what they print of jobs."""

import asyncio
import os
import re
import signal
from asyncio.subprocess import PIPE
from collections.abc import Iterable, Sequence
from contextlib import suppress

import anyio

from asynsched.executors.remote.engine import LONGEST_REASON, Sight

INHERITED = re.compile(r"(PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|SLURM_\w+|SBATCH_\w+)\Z")
"""Variables of the scheduler that Slurm's commands, and so the jobs, get."""
AWAY = re.compile("(?i)contact slurm controller|timed out|connection|zero bytes|not responding|in standby")
"""Errors of commands, each after some seconds, that say that Slurm's controller does not answer."""
FIELDS = "%i|%T|%r|%P|%N"
ACCOUNTING_FIELDS = "JobID,State,ExitCode,NodeList"
FORGOTTEN = Sight("gone", "Slurm does not know it any more")
RUNNING = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "SUSPENDED", "RESIZING"})
WAITING = {
    "PENDING": "PD", "CONFIGURING": "CF", "REQUEUED": "RQ", "REQUEUE_FED": "RF", "REQUEUE_HOLD": "RH",
    "RESV_DEL_HOLD": "RD", "SPECIAL_EXIT": "SE",
}  # fmt: skip
"""States of jobs that may still start, with the codes that squeue shows."""
NO_NODE = "None assigned"
"""Of a job that has not started, in the accounting."""
OUTPUT = "slurm.options can name a file for its --output"


class SlurmError(Exception):
    """A command of Slurm has failed: the last line that it has printed."""


async def called(command: Sequence[str], text: str = "") -> str:
    """Run a command of Slurm, and return its output.

    Args:
        text: Its standard input.

    Raises:
        SlurmError: It has failed.
        TimeoutError: It says that Slurm's controller does not answer.
    """
    environment = {name: value for name, value in os.environ.items() if INHERITED.match(name)}
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, cwd="/", start_new_session=True
    )
    try:
        # It may refuse its options before it has read its input, which is no error of the pipe's.
        output, errors = await process.communicate(text.encode())
    finally:
        if process.returncode is None:
            # A site's command may be a script, whose child would keep the pipes open.
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.wait()
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        said = lines[-1] if lines else f"{command[0]} ended with exit code {process.returncode}"
        said = said.removeprefix(f"{command[0]}: ").removeprefix("error: ")[:LONGEST_REASON]
        raise (TimeoutError if AWAY.search(said) else SlurmError)(said)
    return output.decode(errors="replace")


def sights_of(text: str, engine_ids: Iterable[str]) -> dict[str, Sight]:
    """Return how Slurm sees these jobs, by what squeue has printed of all jobs."""
    wanted, sights = set(engine_ids), {}
    for line in text.splitlines():
        engine_id, _, rest = line.partition("|")
        if engine_id in wanted and rest.count("|") == FIELDS.count("|") - 1:
            sights[engine_id] = _sight(*rest.split("|"))
    return {engine_id: sights.get(engine_id, FORGOTTEN) for engine_id in wanted}


def ends_of(text: str, engine_ids: Iterable[str]) -> dict[str, Sight]:
    """Return how those of these jobs ended that have, by what sacct has printed of them.

    One that its controller has forgotten may go on in the accounting, if the controller has lost its state.
    """
    wanted, ends = set(engine_ids), {}
    for line in text.splitlines():
        engine_id, _, rest = line.partition("|")
        if engine_id in wanted and rest.count("|") == ACCOUNTING_FIELDS.count(",") - 1:
            state, exit_code, nodes = rest.split("|")
            if state not in RUNNING and state not in WAITING:
                on = "" if nodes in ("", NO_NODE) else f", on {nodes}"
                ends[engine_id] = Sight("gone", f"Slurm's accounting: {state}, exit code {exit_code}{on}; {OUTPUT}")
    return ends


def _sight(state: str, reason: str, partition: str, nodes: str) -> Sight:
    if code := WAITING.get(state):
        return Sight("queued", f"Slurm: {code} ({reason}) in the partition {partition}")
    if state in RUNNING:
        return Sight("running", f"Slurm: {state} on {nodes}")
    on = f" on {nodes}" if nodes else ""
    because = "" if reason == "None" else f" ({reason})"
    return Sight("gone", f"Slurm: {state}{because}{on}; {OUTPUT}")
