"""`python -m tests.faults.simulated`: explores many seeds, replays one, or shows that each planted bug is found."""

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

from tests.faults.simulated.conditions import AS_THE_SEED_SAYS, Conditions
from tests.faults.simulated.exploration import explore
from tests.faults.simulated.planted import BUGS
from tests.faults.simulated.planted import N_SEEDS as BUGGY_SEEDS

T, R = TypeVar("T"), TypeVar("R")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when no seed has found anything."""
    options = _options(arguments)
    if options.planted:
        return _find_planted(options.processes)
    with BUGS[options.bug].planted() if options.bug else nullcontext():
        return _replay(options) if options.seed is not None else _explore_many(options)


def _find_planted(n_processes: int) -> int:
    """Plant one bug after another, and look for a seed that finds it, and that finds nothing without it."""
    n_missed = 0
    for name, seed, trouble in _each(seed_that_finds, sorted(BUGS), n_processes, chunksize=1):
        n_missed += bool(trouble)
        print(f"{name}: {trouble or f'found by seed {seed}'}", flush=True)
    print(f"{len(BUGS)} bugs planted, {n_missed} of them missed")
    return 1 if n_missed else 0


def seed_that_finds(name: str) -> tuple[str, int | None, str]:
    """Return the name of a planted bug, the first seed that finds it, and why that does not count, if so."""
    bug = BUGS[name]
    with bug.planted():
        seed = next((seed for seed in range(BUGGY_SEEDS) if explore(seed, bug.conditions)[0] is not None), None)
    if seed is None:
        return name, None, f"not found by {BUGGY_SEEDS} seeds"
    violation, _ = explore(seed, bug.conditions)
    return name, seed, "" if violation is None else f"seed {seed} finds something without it, too: {violation}"


def _replay(options: argparse.Namespace) -> int:
    violation, trace = explore(options.seed, _conditions(options))
    print("\n".join(trace))
    return 0 if violation is None else 1


def _explore_many(options: argparse.Namespace) -> int:
    seeds = range(options.first, options.first + options.seeds)
    n_found = 0
    one = partial(_one, conditions=_conditions(options))
    for seed, found in _each(one, seeds, options.processes, chunksize=8):
        if found:
            n_found += 1
            print(f"seed {seed}: {found}\n  replay: {replay_command(seed, options.bug)}", flush=True)
        if (done := seed - options.first + 1) % 500 == 0:
            print(f"{done} seeds, {n_found} of them have found something", flush=True)
    print(f"{len(seeds)} seeds explored, {n_found} of them have found something")
    return 1 if n_found else 0


def _conditions(options: argparse.Namespace) -> Conditions:
    return BUGS[options.bug].conditions if options.bug else AS_THE_SEED_SAYS


def _each(call: Callable[[T], R], subjects: Sequence[T], n_processes: int, *, chunksize: int) -> Iterator[R]:
    """Yield what a call returns for each subject, in their order."""
    if n_processes == 1:
        yield from map(call, subjects)
        return
    with ProcessPoolExecutor(n_processes, multiprocessing.get_context("fork")) as pool:
        yield from pool.map(call, subjects, chunksize=chunksize)


def _one(seed: int, conditions: Conditions) -> tuple[int, str]:
    violation, _ = explore(seed, conditions)
    return seed, "" if violation is None else f"{type(violation).__name__}: {violation}"


def replay_command(seed: int, bug: str | None = None) -> str:
    """Return the command that replays a seed."""
    return f"python -m tests.faults.simulated --seed {seed}" + (f" --bug {bug}" if bug else "")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.simulated", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one seed, and print everything that happens in it")
    parser.add_argument("--seeds", type=int, default=2_000, help="how many seeds to explore")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=2, help="how many processes explore them")
    parser.add_argument("--planted", action="store_true", help="plant each bug, and look for a seed that finds it")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this bug first: see planted.py")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
