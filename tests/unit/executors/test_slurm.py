"""The adapter of Slurm, alone with commands of a test."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from asynsched.clock import VirtualClock
from asynsched.executors.base import ExecutorContext
from asynsched.executors.engines import slurm
from asynsched.executors.engines.circuit_breaker import OPEN_SECONDS
from asynsched.executors.engines.slurm import SlurmEngine
from asynsched.executors.remote.engine import Accepted, Job, Later, Rejected, Sight
from asynsched.protocol.worker_messages import Ticket
from asynsched.settings import Settings


class Commands:
    """Commands of Slurm, which are shell scripts here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = folder / "calls"
        self._calls.touch()

    def write(self, name: str, script: str) -> None:
        path = self._folder / name
        path.write_text(f'#!/bin/sh\necho "$0 $*" >> {self._calls}\n{script}\n')
        path.chmod(0o755)

    @property
    def n_calls(self) -> int:
        return len(self._calls.read_text().splitlines())


@pytest.fixture
def commands(tmp_path, monkeypatch) -> Commands:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Commands(tmp_path)


@pytest.fixture
def engine(tmp_path) -> SlurmEngine:
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    return SlurmEngine(ExecutorContext(tmp_path, Settings(), clock, "me", print, None))


def job_of(name: str, queue: str = "default", **config: Any) -> Job:
    ticket = Ticket(name, "secret", ("http://a",), "dag", "run", name, try_number=1)
    return Job(ticket, queue, 1, "default_pool", config)


AWAY = "Unable to contact slurm controller (connect failure)"


def kinds(answers: Sequence[object]) -> list[type]:
    return [type(one) for one in answers]


async def test_a_wrong_option_rejects_the_jobs_that_have_it_only(engine: SlurmEngine, commands: Commands):
    commands.write(
        "sbatch", 'case "$*" in *--mem=much*) echo "sbatch: error: Invalid --mem" >&2; exit 1;; esac; echo 7'
    )
    wrong = [job_of("mem", mem="much"), job_of("nul", comment="a\0b"), job_of("long", comment=20_000 * "x")]
    answers = await engine.submit([*wrong, job_of("queue", "a\0b"), job_of("right")])
    assert kinds(answers) == [Rejected, Rejected, Rejected, Rejected, Accepted]
    assert answers[0] == Rejected("Slurm does not take it: Invalid --mem")
    assert answers[1] == Rejected("options of sbatch have at most 10,000 characters, and none of them is NUL")


async def test_a_job_with_too_many_options_to_start_sbatch_is_rejected_alone(engine: SlurmEngine, commands: Commands):
    commands.write("sbatch", "echo 7")
    many = {f"{a}{b}{c}": 9_000 * "x" for a in "bcfijk" for b in "abcdefgh" for c in "abcdefghijklmnop"}
    answers = await engine.submit([job_of("many", **many), job_of("right")])
    assert kinds(answers) == [Rejected, Accepted]
    assert "Argument list too long" in answers[0].reason


async def test_a_controller_that_does_not_answer_is_asked_once_for_a_batch(engine: SlurmEngine, commands: Commands):
    commands.write("sbatch", f"echo 'sbatch: error: {AWAY}' >&2; exit 1")
    assert await engine.submit([job_of(f"task-{n}") for n in range(5)]) == [Later(AWAY)] * 5
    await fails_at_once(engine)
    assert commands.n_calls == 1
    commands.write("sbatch", "echo 7")
    engine.context.clock.leap(OPEN_SECONDS)
    assert await engine.submit([job_of("again")]) == [Accepted("7_0")]


@pytest.mark.parametrize("command", ["exec sleep 600", "sleep 600; echo"], ids=["itself", "a script's child"])
async def test_a_command_that_does_not_end_costs_a_batch_one_time_limit(
    tmp_path, commands: Commands, monkeypatch, command: str
):
    monkeypatch.setattr(slurm, "CALL_SECONDS", 0.3)
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    engine = SlurmEngine(ExecutorContext(tmp_path, Settings(), clock, "me", print, None))
    commands.write("sbatch", command)
    answers = await engine.submit([job_of(f"task-{n}") for n in range(5)])
    assert answers == [Later("Slurm has not answered for 0 s")] * 5
    await fails_at_once(engine)
    assert commands.n_calls <= 1, "a busy machine may end it before it has begun"


async def fails_at_once(engine: SlurmEngine) -> None:
    """Check that the engine calls none of Slurm's commands."""
    with pytest.raises(TimeoutError):
        await engine.cancel(["1_0"])
    with pytest.raises(TimeoutError):
        await engine.look(["1_0"])


async def test_all_jobs_are_cancelled_by_one_command(engine: SlurmEngine, commands: Commands):
    commands.write("scancel", "true")
    await engine.cancel([f"{n}_0" for n in range(100)])
    assert commands.n_calls == 1


async def test_a_limit_of_one_task_makes_the_others_wait_for_nothing(engine: SlurmEngine, commands: Commands):
    said = "Batch job submission failed: Job violates accounting/QOS policy (job submit limit)"
    commands.write("sbatch", f'case "$*" in *full*) echo "sbatch: error: {said}" >&2; exit 1;; esac; echo 7')
    answers = await engine.submit([job_of("a", "full"), job_of("b")])
    assert answers == [Later(said), Accepted("7_0")]


async def test_an_array_that_a_limit_refuses_is_submitted_as_far_as_there_is_room(
    engine: SlurmEngine, commands: Commands
):
    said = "Batch job submission failed: Job violates accounting/QOS policy (job submit limit)"
    refuse = f'echo "sbatch: error: {said}" >&2; exit 1'
    commands.write("sbatch", f'case "$*" in *--array=0-[01]\\ *) echo 7;; *) {refuse};; esac')
    jobs = [job_of("same") for _ in range(8)]
    jobs = [replace(job, ticket=replace(job.ticket, token=f"{n}")) for n, job in enumerate(jobs)]
    later = Later(said)
    assert await engine.submit(jobs) == [Accepted("7_0"), Accepted("7_1"), *[later] * 6]


UNKNOWN = Sight("gone", "Slurm does not know it any more")
ACCOUNTS = """cat <<'END'
7_0|OUT_OF_MEMORY|0:125|n1
7_1|CANCELLED by 1000|0:0|None assigned
7_2|RUNNING|0:0|n1
END"""


async def test_jobs_that_squeue_has_forgotten_have_the_ends_that_the_accounting_knows(
    engine: SlurmEngine, commands: Commands
):
    commands.write("squeue", "echo '8_0|RUNNING|None|main|n2'")
    commands.write("sacct", ACCOUNTS)
    sights = await engine.look(["7_0", "7_1", "7_2", "7_3", "8_0"])
    advice = "; slurm.options can name a file for its --output"
    assert sights == {
        "7_0": Sight("gone", f"Slurm's accounting: OUT_OF_MEMORY, exit code 0:125, on n1{advice}"),
        "7_1": Sight("gone", f"Slurm's accounting: CANCELLED by 1000, exit code 0:0{advice}"),
        "7_2": UNKNOWN,  # the controller has lost it: it does not run
        "7_3": UNKNOWN,
        "8_0": Sight("running", "Slurm: RUNNING on n2"),
    }


@pytest.mark.parametrize("sacct", ["echo 'Slurm accounting storage is disabled' >&2; exit 1", "echo nonsense", None])
async def test_without_accounting_only_the_ends_of_forgotten_jobs_are_unknown(
    engine: SlurmEngine, commands: Commands, sacct: str | None, tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    commands.write("squeue", "echo '8_0|RUNNING|None|main|n2'")
    if sacct is not None:
        commands.write("sacct", sacct)
    sights = await engine.look(["7_0", "8_0"])
    assert (sights["7_0"], sights["8_0"].state) == (UNKNOWN, "running")


async def test_silent_accounting_is_left_alone_for_a_while_and_delays_nothing_else(
    engine: SlurmEngine, commands: Commands
):
    commands.write("squeue", "true")
    commands.write("sacct", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1")
    for _ in range(3):
        assert await engine.look(["7_0"]) == {"7_0": UNKNOWN}
    assert commands.n_calls == 3 + 1


async def test_the_accounting_is_asked_only_for_jobs_that_are_forgotten(engine: SlurmEngine, commands: Commands):
    commands.write("squeue", "echo '8_0|RUNNING|None|main|n2'")
    await engine.look(["8_0"])
    assert commands.n_calls == 1
