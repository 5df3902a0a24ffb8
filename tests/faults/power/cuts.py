"""Power cuts at moments of a recorded life, and the errors that follow."""

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
"""Folders that a power cut does not undo: DAG files, which belong to people, and effects on the world outside."""
UNTOLD = ("-shm", "/lock", "/keeper.lock", ".sock")
"""Ends of paths of files that are not read after a start."""
VOLATILE = "home/tmp/"
SHARED = ("world/", "home/logs/")


@dataclass(frozen=True)
class Life:
    """A scheduler's recorded operations in a folder."""

    root: Path
    operations: Sequence[Operation]

    @classmethod
    def record(cls, root: Path) -> "Life":
        """Run a scheduler there."""
        root.mkdir()
        command = [sys.executable, "-m", "tests.faults.power.first_life", str(root)]
        return cls(root, record(command, root, root.with_suffix(".trace"), _environment(root), timeout=90))

    def disk(self, n_operations: int) -> Disk:
        """Return the disk after this many operations."""
        disk = Disk(self.root, SAFE)
        for one in self.operations[:n_operations]:
            if _matters(one.path.removeprefix(f"{self.root}/")):
                disk.do(one)
        return disk

    def unlike_the_folder(self) -> dict[str, str]:
        """Return the paths where the folder differs from the operations' result: gaps of the recording."""
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
        """Return this many moments for a cut: half of them just after a promise, or after a task began."""
        world = f"{self.root}/world/"
        counted = list(enumerate(self.operations))
        spoken = [index + 1 for index, one in counted if one.path.startswith(world) and one.name == "write"]
        synced = [index for index, one in counted if one.name == "sync"]
        return sorted(chance.choice(found) for found in (spoken, synced) for _ in range(n // 2))


@dataclass(frozen=True)
class Cut:
    """A power cut after a number of operations; unsynced data is lost, or with a seed kept in part."""

    after: int
    seed: int | None

    def __str__(self) -> str:
        what = "all lost" if self.seed is None else f"seed {self.seed}"
        return f"power cut after operation {self.after}, {what}"

    def problems(self, life: Life) -> Iterator[str]:
        """Cut the power, have a scheduler go on from the remaining state in the same place, and yield the errors."""
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
    """Return cuts at that many moments, where every second one loses all unsynced data."""
    moments = enumerate(life.moments(n, chance))
    return [Cut(moment, chance.randrange(10**6) if index % 2 else None) for index, moment in moments]


def _broken_promises(folder: Path, found: dict[str, Any]) -> Iterator[str]:
    promised, runs = _lines(folder / "world" / "promised"), found["runs"]
    for kind, name in promised:
        if kind in ("run", "ended") and runs.get(name) != "success":
            yield f"the run {name}, whose storage was confirmed to a user, is {runs.get(name)}"
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
    """Return the content to compare: the order of lines does not count in files to which several processes append."""
    return sorted(data.splitlines()) if data is not None and path.startswith(SHARED) else data


def _matters(path: str) -> bool:
    return not (path.startswith(VOLATILE) or path.endswith(UNTOLD))


def _lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def _environment(root: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ASYNSCHED_", "PYTEST_"))}
    return inherited | {"BEGUN": str(root / "world" / "begun"), "PYTHONPATH": str(Path.cwd())}
