"""After any fault at any time: nothing is lost, nothing runs twice, no limit is exceeded, everything ends."""

import asyncio
import os
import subprocess
import sys
from datetime import UTC, datetime
from random import Random
from unittest.mock import ANY

import anyio.lowlevel
import pytest

from asynsched.clock import VirtualClock
from tests.faults.simulated.__main__ import replay_command, seed_that_finds
from tests.faults.simulated.exploration import explore
from tests.faults.simulated.loop import ShuffledLoop, TimeStandsStill

SEEDS_AT_ONCE = 15
N_SEEDS = 60
"""Of the seeds that CI explores by the command: as many as have room in a suite that people wait for."""


@pytest.mark.parametrize("first", range(0, N_SEEDS, SEEDS_AT_ONCE))
def test_no_seed_finds_anything(first):
    for seed in range(first, first + SEEDS_AT_ONCE):
        violation, trace = explore(seed)
        if violation is not None:
            last = "\n".join(trace[-40:])
            pytest.fail(f"seed {seed} has found something: {violation}\nreplay: {replay_command(seed)}\n{last}")


def test_a_task_that_never_lets_time_pass_ends_its_seed_instead_of_hanging():
    async def spin() -> None:
        while True:
            await anyio.lowlevel.checkpoint()

    loop = ShuffledLoop(VirtualClock(datetime(2026, 1, 1, tzinfo=UTC)), Random(1))
    with asyncio.Runner(loop_factory=lambda: loop) as runner, pytest.raises(TimeStandsStill):
        runner.run(spin())


def test_a_planted_bug_is_found():
    """Any of them; the command with `--planted` tries all."""
    assert seed_that_finds("lost-wake-up") == ("lost-wake-up", ANY, "")


@pytest.mark.parametrize(
    ("seed", "parts"),
    [(51, ("b 1: starts", " people: save ", " host: ")), (14, (" w1 1: starts", " engine: ", " ticket: "))],
    ids=["two schedulers, files that are edited, trigger hosts", "tasks on other machines"],
)
def test_a_seed_is_replayed_byte_for_byte_in_another_process(seed, parts):
    explore(seed - 1)
    violation, trace = explore(seed)
    seen = "\n".join(trace)
    missing = [word for word in parts if word not in seen]
    assert not missing, "all of it is to be replayed"
    replayed = subprocess.run(
        [sys.executable, "-m", "tests.faults.simulated", "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": "17"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (replayed.returncode, replayed.stdout.splitlines()) == (0 if violation is None else 1, trace)
    assert explore(seed)[1] == trace
