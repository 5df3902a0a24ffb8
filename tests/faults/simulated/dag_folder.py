"""The simulated DAG folder of an exploration: files that people edit, their parses, and the events of edits.

All schedulers of an exploration share it, as they do the database. The parse dispatchers and their informed parsers
are the program's own; a parse process is one here that reads its file some time after it was begun, says some time
later what was in it, and may die or take too long.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from asynsched.channels import FileChanged, FolderScanned
from asynsched.errors import ParseCrashed, ParseTimeout
from asynsched.parsing.looks import Look
from asynsched.parsing.processes.sandbox_parser import HASH_SEED
from asynsched.serialization.schema import (
    SCHEMA_VERSION,
    FileError,
    ParsedDag,
    ParseQuestions,
    ParseReport,
    SerializedDag,
    SourceFile,
)
from asynsched.service import Service
from tests.faults.simulated.ledger import Violation
from tests.faults.simulated.stored import DagRow, Stored
from tests.faults.simulated.worlds import N_VERSIONS, World

RECONCILE_SECONDS = 10.0
"""Between two full scans."""


@dataclass(frozen=True)
class DagFile:
    """A file at some moment.

    Attributes:
        dags: Its DAGs, by dag_id, with the hash of each one's version.
        is_broken: Its import fails.
        is_cut: It is being written: nothing of its text is there yet.
    """

    text: str
    modified_at: datetime
    dags: Mapping[str, tuple[str, SerializedDag]]
    is_broken: bool = False
    is_cut: bool = False

    @property
    def content_hash(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def report(self, path: str, seconds: float) -> ParseReport:
        """Return the report of a parse."""
        source = SourceFile(path, f"unusual_prefix_{path.removesuffix('.py')}", self.content_hash, self.text)
        found = {} if self.is_broken or self.is_cut else self.dags
        return ParseReport(
            SCHEMA_VERSION,
            path=path,
            dags=tuple(ParsedDag(dag, version_hash) for version_hash, dag in found.values()),
            errors=(FileError("import", "there is no such module"),) if self.is_broken else (),
            sources=(source,),
            duration=seconds,
        )


class DagFolder:
    """The files of one exploration.

    Attributes:
        files: By path.
        too_slow: The files whose last parse took too long, with their hashes: they wait for the next edit.
        absent: The DAGs that people have taken out of a file, so that they may leave.
    """

    def __init__(self, exploration: Any) -> None:
        self._exploration = exploration
        self._world: World = exploration.world
        self._random = Random(f"folder {exploration.seed}")
        self._n_edits = 0
        self._versions: dict[str, int] = defaultdict(int)
        self._watchers: dict[ScriptedWatcher, None] = {}
        self.files: dict[str, DagFile] = {}
        self.too_slow: dict[str, str] = {}
        self._parsed_at: dict[tuple[str, str], float] = {}
        """When a file with this hash was last parsed well."""
        self.absent: set[str] = set()
        for dag_id in self._world.dags:
            self.files[f"{dag_id}.py"] = self._file({dag_id: self._world.versions[dag_id][0]})

    # Actions of people

    def release(self, dag_id: str) -> None:
        """Save a DAG's next version, if there is one: the same of all files that define it."""
        if f"copy_of_{dag_id}.py" not in self.files:
            self._versions[dag_id] = min(self._versions[dag_id] + 1, N_VERSIONS - 1)
        self._write(f"{dag_id}.py", {dag_id: self._current(dag_id)})

    def save_again(self, dag_id: str) -> None:
        """Save a DAG with another text, and no other meaning."""
        self._write(f"{dag_id}.py", {dag_id: self._current(dag_id)})

    def break_file(self, dag_id: str) -> None:
        """Save a file that cannot be imported."""
        self._write(f"{dag_id}.py", {}, is_broken=True)

    def cut_file(self, dag_id: str) -> None:
        """Begin to write a file: nothing of its text is there yet."""
        self._write(f"{dag_id}.py", {}, is_cut=True)

    def empty_file(self, dag_id: str) -> None:
        """Save a file that has no DAG any more."""
        self.absent.add(dag_id)
        self._write(f"{dag_id}.py", {})

    def remove_file(self, dag_id: str) -> None:
        """Remove a DAG's file."""
        self._remove(f"{dag_id}.py", dag_id)

    def remove_copy(self, dag_id: str) -> None:
        """Remove the second file that defines a DAG, if there is one."""
        self._remove(f"copy_of_{dag_id}.py", dag_id)

    def copy_file(self, dag_id: str) -> None:
        """Save a second file that defines the same DAG."""
        self._write(f"copy_of_{dag_id}.py", {dag_id: self._current(dag_id)})

    # The program's view

    def look_at(self, _root: Path, path: str) -> Look:
        """Stand in for `asynsched.parsing.looks.look_at`."""
        file = self.files.get(path)
        if file is None:
            return Look(is_gone=True)
        return Look(
            content_hash=file.content_hash,
            text_hash=file.content_hash,
            modified_ns=int(file.modified_at.timestamp() * 1e9),
            size=len(file.text),
            mentions_dag=not file.is_cut,
        )

    async def parse(self, path: str, *, is_second: bool) -> ParseReport:
        """Parse a file, perhaps to compare that with another parse. Raises SandboxError."""
        world, chance = self._exploration, self._exploration.chance
        begin = world.clock.monotonic()
        await asyncio.sleep(chance.latency())
        file = self.files.get(path)
        slowness = self._random.choice([0.05, 0.05, 0.5, 4.0])
        if chance.happens("parse_death"):
            await asyncio.sleep(slowness * self._random.random())
            world.say("fault", f"the parse of {path} dies, or takes too long")
            if file is None or is_second or self._random.random() < 0.7:
                raise ParseCrashed(path, "was killed")
            if self._parsed_at.get((path, file.content_hash), -1.0) < begin:
                self.too_slow[path] = file.content_hash  # else it is out of date: another scheduler has parsed the file
            raise ParseTimeout(path, 50.0)
        await asyncio.sleep(slowness)
        if not is_second:
            self.too_slow.pop(path, None)
            if file is not None:
                self._parsed_at[path, file.content_hash] = world.clock.monotonic()
        if file is None:
            error = FileError("unreadable", f"{path} is gone")
            return ParseReport(SCHEMA_VERSION, path=path, errors=(error,))
        return file.report(path, world.clock.monotonic() - begin)

    def watch(self, watcher: "ScriptedWatcher") -> None:
        """Tell a watcher of edits from now on."""
        self._watchers[watcher] = None

    # Invariants

    def check_leave(self, before: DagRow | None, dag: DagRow) -> None:
        """A DAG leaves only if it was taken out of its file."""
        if before is not None and before.is_active and not dag.is_active and dag.dag_id not in self.absent:
            raise Violation(f"the DAG {dag.dag_id} has left, and was in its file all the time")

    def what_is_left(self, stored: Stored) -> Iterator[str]:
        """Yield the files whose present text is not parsed yet."""
        parsed = stored.parsed_files()
        for path in sorted({*parsed, *self.files}):
            now = self.files.get(path)
            if parsed.get(path) != (None if now is None else now.content_hash):
                yield f"{path} is not parsed as it is now"
        for path in sorted(stored.failing_files() - self._failing()):
            yield f"{path} was killed as it was parsed, and is to be parsed again"

    def problems(self, stored: Stored) -> Iterator[str]:
        """Yield the errors in the end, when everything is parsed: the last version of each file counts."""
        failing = self._failing()
        for dag_id in self._world.dags:
            dag = stored.dags[dag_id]
            holding = {path: file.dags[dag_id][0] for path, file in self.files.items() if dag_id in file.dags}
            if dag.file_path in failing:
                continue  # it keeps its DAGs
            if dag.is_active and dag.file_path not in holding:
                yield f"the DAG {dag_id} is there, and {dag.file_path} has it no more"
            if not dag.is_active and holding.keys() - failing:
                yield f"the DAG {dag_id} is gone, and {min(holding)} has it"
            if dag.file_path in holding and dag.is_active and dag.version_hash != holding[dag.file_path]:
                yield f"the DAG {dag_id} is of {dag.version_hash}, and {dag.file_path} has {holding[dag.file_path]}"
        if missing := failing - stored.failing_files():
            yield f"these files fail, and are not said to: {sorted(missing)}"

    def _failing(self) -> set[str]:
        """Return the files that cannot be used as they are now."""
        return {
            path for path, file in self.files.items() if file.is_broken or self.too_slow.get(path) == file.content_hash
        }

    def _current(self, dag_id: str) -> tuple[str, SerializedDag]:
        return self._world.versions[dag_id][self._versions[dag_id]]

    def _file(self, dags: Mapping[str, tuple[str, SerializedDag]], **flags: bool) -> DagFile:
        self._n_edits += 1
        text = f"# edit {self._n_edits}: {' '.join(version_hash for version_hash, _ in dags.values())}"
        return DagFile(text, self._exploration.clock.now(), dags, **flags)

    def _write(self, path: str, dags: Mapping[str, tuple[str, SerializedDag]], **flags: bool) -> None:
        file = self.files[path] = self._file(dags, **flags)
        state = next((name for name, is_so in flags.items() if is_so), "")
        self._exploration.say("people", f"save {path} {state} {file.text}")
        self._tell(path)

    def _remove(self, path: str, dag_id: str) -> None:
        if self.files.pop(path, None) is not None:
            self.absent.add(dag_id)
            self._exploration.say("people", f"remove {path}")
            self._tell(path)

    def _tell(self, path: str) -> None:
        for watcher in list(self._watchers):
            if watcher.process is None or watcher.process.is_dead:
                del self._watchers[watcher]
            elif self._exploration.chance.happens("lost_file_event"):
                self._exploration.say("fault", f"{watcher.process.name} does not hear of {path}")
            else:
                latency = self._exploration.chance.latency()
                self._exploration.later(latency, watcher.hear, path, process=watcher.process)


class ScriptedWatcher(Service):
    """Tells a dispatcher of edits, as the production watcher does: by events, and by a full scan now and then."""

    name = "watcher"
    interval = timedelta(seconds=RECONCILE_SECONDS)

    def __init__(self, folder: DagFolder, channels: Any, clock: Any, process: Any) -> None:
        super().__init__(clock)
        self.process = process
        self._folder = folder
        self._channel = channels.file_changes
        self._known: dict[str, DagFile] | None = None
        self._heard: dict[str, None] = {}
        self._scan_at = 0.0
        folder.watch(self)

    def hear(self, path: str) -> None:
        """Hear of an edit."""
        self._heard[path] = None
        self.wake()

    async def tick(self, now: datetime) -> None:
        heard, self._heard = self._heard, {}
        files, known = dict(self._folder.files), self._known
        is_scan = self.clock.monotonic() >= self._scan_at
        paths = sorted({*files, *(known or {})}) if is_scan else heard
        for path in paths:
            if known is None or known.get(path) != files.get(path):
                await self._channel.put(FileChanged(path, removed=path not in files, at_start=known is None))
        if is_scan:
            await self._channel.put(FolderScanned())
            self._scan_at = self.clock.monotonic() + RECONCILE_SECONDS
            self._known = files
        elif known is not None:
            for path in heard:
                known.pop(path, None)
                if path in files:
                    known[path] = files[path]


class ScriptedParser:
    """Stands in for the processes of `asynsched.parsing.processes.sandbox_parser.SandboxParser`."""

    def __init__(self, folder: DagFolder | None) -> None:
        self._folder = folder

    async def __aenter__(self) -> "ScriptedParser":
        return self

    async def __aexit__(self, *_: Any) -> None:
        """Nothing is left of a parse that was cancelled."""

    async def parse(
        self, path: str, questions: ParseQuestions | None = None, *, hash_seed: int = HASH_SEED
    ) -> ParseReport:
        """Parse a file, and answer whether its code is that of a known version: its hash is that of its text."""
        assert self._folder is not None
        report = await self._folder.parse(path, is_second=hash_seed != HASH_SEED)
        dags = [msgspec.structs.replace(parsed, known_hash=parsed.version_hash) for parsed in report.dags]
        return msgspec.structs.replace(report, dags=tuple(dags))

    async def warm_up(self, hash_seed: int) -> None:
        """Do nothing: there is no server to start."""
