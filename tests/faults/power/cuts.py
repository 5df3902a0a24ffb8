"""Power cuts at moments of a recorded life, and what is wrong with what follows."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.power.disk import Disk
from tests.faults.power.recording import Operation, record

SAFE = ("dags", "world")
"""What a power cut does not undo: DAG files, which are people's, and what the world outside has seen."""
UNTOLD = ("-shm", "/lock", "/keeper.lock", ".sock")
"""Ends of paths of files that nobody reads after a start."""
VOLATILE = "home/tmp/"
SHARED = ("world/", "home/logs/")


@dataclass(frozen=True)
class Life:
    """What a scheduler has done in a folder, as it was recorded."""

    root: Path
    operations: Sequence[Operation]

    @classmethod
    def record(cls, root: Path) -> "Life":
        """Have a scheduler live there."""
        root.mkdir()
        command = [sys.executable, "-m", "tests.faults.power.first_life", str(root)]
        return cls(root, record(command, root, root.with_suffix(".trace"), _environment(root), timeout=90))

    def disk(self, n_operations: int) -> Disk:
        """Return the disk after so many operations."""
        disk = Disk(self.root, SAFE)
        for one in self.operations[:n_operations]:
            if _matters(one.path.removeprefix(f"{self.root}/")):
                disk.do(one)
        return disk

    def unlike_the_folder(self) -> dict[str, str]:
        """Return where the folder is not as the operations have left it: what the recording has missed."""
        told = self.disk(len(self.operations)).files()
        paths = [path for path in self.root.rglob("*") if path.is_file()]
        there = {str(path.relative_to(self.root)): path.read_bytes() for path in paths}
        there = {path: data for path, data in there.items() if _matters(path)}
        paths_known = told.keys() | there.keys()
        differ = {
            path for path in paths_known if _comparable(path, told.get(path)) != _comparable(path, there.get(path))
        }
        return {path: f"{len(told.get(path, b''))} bytes told, {len(there.get(path, b''))} there" for path in differ}

    def moments(self, n: int, chance: Random) -> list[int]:
        """Return so many moments for a cut: half of them as something was just promised, or had begun."""
        world = f"{self.root}/world/"
        counted = list(enumerate(self.operations))
        spoken = [index + 1 for index, one in counted if one.path.startswith(world) and one.name == "write"]
        synced = [index for index, one in counted if one.name == "sync"]
        return sorted(chance.choice(found) for found in (spoken, synced) for _ in range(n // 2))


@dataclass(frozen=True)
class Cut:
    """A power cut after so many operations; what was not synced is lost, or with a seed kept in part."""

    after: int
    seed: int | None

    def __str__(self) -> str:
        what = "all lost" if self.seed is None else f"seed {self.seed}"
        return f"power cut after operation {self.after}, {what}"

    def problems(self, life: Life) -> Iterator[str]:
        """Do it, have a scheduler go on from what is left, where it was, and yield what is wrong then."""
        shutil.rmtree(life.root)
        life.disk(self.after).write_out(life.root, None if self.seed is None else Random(self.seed))
        before = _lines(life.root / "world" / "begun")
        command = [sys.executable, "-m", "tests.faults.power.second_life", str(life.root)]
        env = _environment(life.root)
        done = subprocess.run(command, env=env, timeout=90, check=False, capture_output=True, text=True)
        if done.returncode:
            yield f"no scheduler can go on: {done.stderr[-3000:]}"
            return
        found = json.loads(done.stdout.splitlines()[-1])
        yield from _broken_promises(life.root, found)
        yield from _wrong_tries(before, _lines(life.root / "world" / "begun"), found["runs"])
        if found["journal"]:
            yield f"records of tries are left: {found['journal']}"
        if found["served"] not in (None, str(life.root / "dags")):
            yield f"another DAG folder is known as the one that was served: {found['served']!r}"


def some_cuts(life: Life, n: int, chance: Random) -> list[Cut]:
    """Return cuts at that many moments, after every second of which all is lost that was not synced."""
    moments = enumerate(life.moments(n, chance))
    return [Cut(moment, chance.randrange(10**6) if index % 2 else None) for index, moment in moments]


def _broken_promises(folder: Path, found: dict[str, Any]) -> Iterator[str]:
    promised, runs = _lines(folder / "world" / "promised"), found["runs"]
    for kind, name in promised:
        if kind in ("run", "ended") and runs.get(name) != "success":
            yield f"the run {name}, of which somebody was told that it is there, is {runs.get(name)}"
    if ["connection", "safe"] in promised and found["connection"] != "secret":
        yield f"a connection that was stored: {found['connection']}"
    if ["variable", "wanted"] in promised and found["variable"] != "something":
        yield f"a variable that was stored: {found['variable']}"


def _wrong_tries(before: list[list[str]], begun: list[list[str]], runs: dict[str, str]) -> Iterator[str]:
    """Yield which tries have begun twice, and which runs have run other code than they began with."""
    for line, n in Counter(tuple(words[:4]) for words in begun).items():
        if n > 1:
            yield f"a try has begun {n} times: {' '.join(line)}"
    for run_id in runs:
        versions = {(words[4], words[5]) for words in begun if words[1] == run_id}
        if len(versions) > 1:
            yield f"the run {run_id} has run several versions: {sorted(versions)}"
    for words in before:
        if words[1] not in runs:
            yield f"a run is gone whose task had begun: {' '.join(words)}"


def _comparable(path: str, data: bytes | None) -> object:
    """Return what has to be alike: of files that several processes append to at once, not the order of the lines."""
    return sorted(data.splitlines()) if data is not None and path.startswith(SHARED) else data


def _matters(path: str) -> bool:
    return not (path.startswith(VOLATILE) or path.endswith(UNTOLD))


def _lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def _environment(root: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ASYNSCHED_", "PYTEST_"))}
    return inherited | {"BEGUN": str(root / "world" / "begun"), "PYTHONPATH": str(Path.cwd())}
