"""Slurm as an engine: a ticket is an element of a job array, whose script starts a worker that ends with the try.

    job id: Slurm's, ARRAY_INDEX, also for an array of one
    script: the setting `slurm.setup`, a worker for the ticket of the element's number, and the tickets, as comments

Slurm shows a job's script to its user and to administrators, and arguments and environments to everybody: so tickets,
which hold secrets, are in the script. Tickets of one task that ask for the same are one array. A job never starts
twice (`--no-requeue`): a try whose job is gone is given up, and its next one is a new job.
"""

import errno
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from anyio.to_thread import run_sync
from msgspec import Struct

from asynsched.errors import SettingsError
from asynsched.executors.base import ExecutorContext
from asynsched.executors.engines.circuit_breaker import CircuitBreaker
from asynsched.executors.engines.slurm_commands import (
    ACCOUNTING_FIELDS,
    FIELDS,
    FORGOTTEN,
    SlurmError,
    called,
    ends_of,
    sights_of,
)
from asynsched.executors.remote.engine import Accepted, Engine, Job, Later, Rejected, Sight
from asynsched.executors.remote.executor import RemoteExecutor
from asynsched.loggers import get_logger
from asynsched.settings import SlurmSettings

log = get_logger(__name__)

OF_OTHERS = ("pod_override", "KubernetesExecutor")
"""What DAG files of Airflow say to other executors."""
DEFAULT_QUEUE = "default"
OWN = frozenset({
    "array", "clusters", "cluster", "export", "export-file", "get-user-env", "gid", "help", "input", "job-name",
    "parsable", "quiet", "requeue", "test-only", "uid", "usage", "version", "wait", "wrap",
})  # fmt: skip
"""Options of sbatch that are the engine's, or that would keep it from knowing its jobs."""
LONGEST_NAME = 200
LONGEST_OPTION = 10_000
CALL_SECONDS = 30.0
"""Longest that the scheduler waits for one of Slurm's commands."""
ACCOUNTING_SECONDS = 5.0
"""The same for Slurm's accounting, which only knows reasons."""
MOST_FORGOTTEN = 1000
"""Jobs that the accounting is asked for at once."""
PASSING = re.compile("(?i)temporarily|try again|slow down|submit limit")
"""Errors of sbatch after which the same job may be accepted later."""
SCRIPT = """#!/bin/sh
# A worker of asynsched, for the ticket below that has the number of this element of the array.
umask 077
trap : TERM
{setup}
home=$(mktemp -d {homes}/asynsched-XXXXXXXX) || exit
trap 'rm -rf "$home"' EXIT
# Older versions of Slurm do not tell a job when its time limit ends it, but squeue does.
end=${{SLURM_JOB_END_TIME:-$(date -d "$(squeue --noheader --job="$SLURM_JOB_ID" --format=%e)" +%s 2>/dev/null)}}
sed -n "s/^#$SLURM_ARRAY_TASK_ID //p" "$0" |
    {python} -m asynsched worker run --home "$home" --name "$(hostname)" ${{end:+--until "$end"}}
exit
{tickets}
"""


class _Array(Struct, frozen=True):
    """What elements of one array have in common."""

    name: str
    options: tuple[str, ...]


class SlurmEngine(Engine):
    """Submits arrays, and asks Slurm for their elements."""

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        self._settings = context.settings.slurm
        self._breaker = CircuitBreaker(context.clock, "Slurm", CALL_SECONDS)
        self._accounting_breaker = CircuitBreaker(context.clock, "Slurm's accounting", ACCOUNTING_SECONDS)

    async def start(self) -> None:
        missing = [name for name in ("sbatch", "squeue", "scancel") if shutil.which(name) is None]
        if missing:
            raise SettingsError(
                f"executor: Slurm needs the command {missing[0]} on the scheduler's machine: install Slurm's client"
                " programs"
            )

    async def submit(self, jobs: Sequence[Job]) -> Sequence[Accepted | Rejected | Later]:
        answers: dict[str, Accepted | Rejected | Later] = {}
        arrays: dict[_Array, list[Job]] = {}
        for job in jobs:
            array = array_of(job, self._settings)
            if isinstance(array, Rejected):
                answers[job.ticket.token] = array
            else:
                arrays.setdefault(array, []).append(job)
        for array, its in arrays.items():
            placed = await self._place(array, its)
            answers.update((job.ticket.token, answer) for job, answer in zip(its, placed, strict=True))
        return [answers[job.ticket.token] for job in jobs]

    async def _place(self, array: _Array, jobs: Sequence[Job]) -> Sequence[Accepted | Rejected | Later]:
        answer: Rejected | Later
        try:
            # Only the first word is the id: with several clusters, the cluster's name follows.
            job_id, _, _ = (await self._submit(array, jobs)).strip().partition(";")
        except SlurmError as exc:
            is_passing = PASSING.search(str(exc))
            answer = Later(str(exc)) if is_passing else Rejected(f"Slurm does not take it: {exc}")
            if isinstance(answer, Later) and (half := len(jobs) // 2):  # a limit may leave room for a part
                return [*await self._place(array, jobs[:half]), *[answer] * (len(jobs) - half)]
        except TimeoutError as exc:
            # It may have taken them. They start as well as the next ones: one of both can claim each try.
            answer = Later(str(exc))
        except OSError as exc:
            answer = (Rejected if exc.errno == errno.E2BIG else Later)(f"sbatch cannot be started: {exc}")
        else:
            return [Accepted(f"{job_id}_{n}") for n in range(len(jobs))]
        return [answer] * len(jobs)

    async def _submit(self, array: _Array, jobs: Sequence[Job]) -> str:
        script = script_of(jobs, self._settings)
        command = [
            "sbatch", "--parsable", "--no-requeue", f"--array=0-{len(jobs) - 1}", f"--job-name={array.name}",
            "--output=/dev/null", "--chdir=/", *self._settings.options, *array.options,
        ]  # fmt: skip
        return await self._called(command, script)

    async def cancel(self, engine_ids: Sequence[str]) -> None:
        await self._called(["scancel", "--quiet", *engine_ids])

    async def look(self, engine_ids: Sequence[str]) -> Mapping[str, Sight]:
        # For a while, the controller remembers jobs that have ended (its MinJobAge).
        user = f"--user={os.getuid()}"
        text = await self._called(["squeue", "--noheader", "--array", "--states=all", user, f"--format={FIELDS}"])
        sights = await run_sync(sights_of, text, engine_ids)
        forgotten = [engine_id for engine_id, sight in sights.items() if sight is FORGOTTEN]
        return sights | await self._accounted(forgotten[:MOST_FORGOTTEN]) if forgotten else sights

    async def _accounted(self, engine_ids: Sequence[str]) -> dict[str, Sight]:
        """Return the ends of jobs, as far as Slurm's accounting knows them. Many clusters have none."""
        command = [
            "sacct", "--noheader", "--parsable2", "--allocations", f"--format={ACCOUNTING_FIELDS}",
            f"--jobs={','.join(engine_ids)}",
        ]  # fmt: skip
        try:
            text = await self._accounting_breaker.call(lambda: called(command))
        except (SlurmError, TimeoutError, OSError) as exc:
            log.debug("slurm.not_accounted", error=str(exc))
            return {}
        return ends_of(text, engine_ids)

    async def _called(self, command: Sequence[str], text: str = "") -> str:
        """Run a command of Slurm, as `called` does. Once one is not answered, others fail at once for a while."""
        return await self._breaker.call(lambda: called(command, text))


def array_of(job: Job, settings: SlurmSettings) -> _Array | Rejected:
    """Return what a job has in common with others of its array, or why Slurm must not get it."""
    options: dict[str, object] = {}
    if partition := settings.partition if job.queue == DEFAULT_QUEUE else job.queue:
        options["partition"] = partition
    for key, value in job.executor_config.items():
        if key in OF_OTHERS:
            continue
        name = key.replace("_", "-")
        if not re.fullmatch("[a-z][a-z-]*", name) or not isinstance(value, str | int | float):
            return Rejected(f"executor_config of Slurm has long options of sbatch and their values, not {key!r}")
        if any(own.startswith(name) for own in OWN):  # sbatch knows an option by the beginning of its name, too
            return Rejected(f"executor_config of Slurm cannot have {key!r}: asynsched sets this option itself")
        options[name] = value
    words = tuple(
        f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items() if value is not False
    )
    if any("\0" in word or len(word) > LONGEST_OPTION for word in words):
        return Rejected(f"options of sbatch have at most {LONGEST_OPTION:,} characters, and none of them is NUL")
    return _Array(job.ticket.kind[:LONGEST_NAME], words)


def script_of(jobs: Iterable[Job], settings: SlurmSettings) -> str:
    """Return the script of an array of these jobs."""
    return SCRIPT.format(
        setup=settings.setup,
        homes=shlex.quote(settings.worker_homes) if settings.worker_homes else '"${TMPDIR:-/tmp}"',
        python=shlex.quote(settings.python or sys.executable),
        tickets="\n".join(f"#{n} {msgspec.json.encode(job.ticket).decode()}" for n, job in enumerate(jobs)),
    )


class SlurmExecutor(RemoteExecutor):
    """Runs tries as jobs of Slurm."""

    engine_class = SlurmEngine
