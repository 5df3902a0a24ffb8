"""A dispatcher with a real folder, a real database and a parser that reads a few words instead of running Python."""

import hashlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import anyio

from asynsched.channels import Channels, FileChanged, FolderScanned
from asynsched.clock import VirtualClock
from asynsched.errors import SandboxError
from asynsched.parsing.dispatcher import ParseClaims, ParseDispatcher
from asynsched.parsing.looks import runtime_of, text_hash
from asynsched.parsing.processes.informed_parser import ParseSlots
from asynsched.parsing.progress import ReadingProgress
from asynsched.serialization.schema import (
    SCHEMA_VERSION,
    FileError,
    ParsedDag,
    ParseReport,
    SerializedDag,
    SourceFile,
)
from asynsched.settings import ParseSettings, Settings, WatchSettings
from asynsched.simulation.simulation import run_virtual
from asynsched.store.dags.dags import list_dags
from asynsched.store.dags.files import list_errors
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_inline

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
LONG_AGO = 1_700_000_000


class ScriptedParser:
    """Reads a file's lines: `dag NAME`, `imports MODULE`, `error KIND`, `crashes`. Airflow is mentioned for safe mode.

    `parsed` lists each parse in the order of their starts, `edited` those that are said to be of an edit. A path in
    `gates` waits there once it has read the file. `seconds`: how long a parse says that it has
    taken, instead of a moment.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.parsed: list[str] = []
        self.edited: list[str] = []
        self.gates: dict[str, anyio.Event] = {}
        self.failures: dict[str, SandboxError] = {}
        self.seconds: dict[str, float] = {}
        self.under_way: Counter[str] = Counter()
        self.most_at_once = 0

    async def parse(self, path: str, slots: ParseSlots, *, is_edited: bool) -> ParseReport:
        self.parsed.append(path)
        self.edited += [path] if is_edited else []
        self.under_way[path] += 1
        assert self.under_way[path] == 1
        self.most_at_once = max(self.most_at_once, self.under_way.total())
        try:
            report = self._read(path)
            await anyio.sleep(0.01)
            if path in self.gates:
                await self.gates[path].wait()
            if path in self.failures:
                raise self.failures[path]
        finally:
            self.under_way[path] -= 1
        return report

    async def prepare(self, paths: Sequence[str]) -> None:
        """A script needs to know nothing."""

    async def warm_up(self, progress: ReadingProgress) -> None:
        """Nothing is read ahead of a script."""

    def _read(self, path: str) -> ParseReport:
        text = (self._root / path).read_text()
        words = [line.split() for line in text.splitlines()]
        version = hashlib.sha256(text.encode()).hexdigest()
        dags = [ParsedDag(SerializedDag(word[1], {"kind": "null"}), version) for word in words if word[0] == "dag"]
        errors = [FileError(word[1], f"{path} has an error") for word in words if word[0] == "error"]
        imports = [word[1] for word in words if word[0] == "imports"]
        errors += [FileError("import", f"no {name}") for name in imports if not (self._root / name).exists()]
        found = [name for name in imports if (self._root / name).exists()]
        return ParseReport(
            SCHEMA_VERSION, path, () if errors else tuple(dags), tuple(errors),
            sources=tuple(self._source(name) for name in (path, *found)), duration=self.seconds.get(path, 0.01),
        )  # fmt: skip

    def _source(self, path: str) -> SourceFile:
        data = (self._root / path).read_bytes()
        return SourceFile(path, path.removesuffix(".py"), text_hash(data), data.decode())


class Dispatching:
    """One dispatcher at work. `database` and `clock` may be those of another one; `scheduler`: whose it is, if several
    parse the folder; `silent`: the others that it has not heard of for long."""

    def __init__(
        self, tmp_path: Path, database: Database, clock: VirtualClock, scheduler: str | None = None, **settings: Any
    ) -> None:
        self.root = tmp_path / "dags"
        self.root.mkdir(exist_ok=True)
        self.settings = Settings(dags_folder=str(self.root), home=str(tmp_path / "home"), **settings)
        self.channels = Channels()
        self.database = database
        self.clock = clock
        self.parser = ScriptedParser(self.root)
        self.silent: set[str] = set()
        runtime = runtime_of(self.settings)
        claims = ParseClaims(database, clock, scheduler, runtime, lambda: self.silent) if scheduler else None
        self.dispatcher = ParseDispatcher(self.settings, self.channels, database, clock, self.parser, claims)

    def write(self, path: str, *lines: str, modified: float = LONG_AGO) -> None:
        """Write a file that mentions Airflow and DAGs, last modified long before the clock's time."""
        file = self.root / path
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(["airflow dag_file", *lines]))
        os.utime(file, (modified, modified))

    async def tell(self, *paths: str, **flags: bool) -> None:
        """Send a FileChanged for each path."""
        for path in paths:
            await self.channels.file_changes.put(FileChanged(path, **flags))

    async def scan(self, *ignored: str) -> None:
        """Tell of every file of the folder, as the first scan does."""
        for file in sorted(self.root.rglob("*.py")):
            path = file.relative_to(self.root).as_posix()
            await self.tell(path, at_start=True, is_ignored=path in ignored)
        await self.channels.file_changes.put(FolderScanned())

    async def idle(self) -> list[str]:
        """Wait until all is parsed and stored; return the files that were parsed since the last call."""
        with anyio.fail_after(3600):
            await self.dispatcher.wait_idle()
        parsed = list(self.parser.parsed)
        self.parser.parsed.clear()
        return parsed

    async def dags(self) -> dict[str, str]:
        """Return the files of the active DAGs."""
        return {dag.dag_id: dag.file_path for dag in await self.database.read(list_dags) if dag.is_active}

    async def errors(self) -> dict[str, str]:
        """Return the kind of error of each file that has one."""
        return {error.file_path: error.kind for error in await self.database.read(list_errors)}

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Dispatching"]:
        """Run the dispatcher inside the block."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.dispatcher.run)
            yield self
            tasks.cancel_scope.cancel()


class Folder:
    """Starts dispatchers, one after the other, on the same folder, database and clock."""

    def __init__(self, tmp_path: Path) -> None:
        self._tmp_path = tmp_path
        self._database: Database = open_inline()
        self.clock = VirtualClock(START)
        self.dispatching = self.new()

    def new(
        self, *, watch: WatchSettings | None = None, processes: int = 2, database: Database | None = None, **more: Any
    ) -> Dispatching:
        """Return a new dispatcher, not yet running."""
        self.dispatching = Dispatching(
            self._tmp_path, database or self._database, self.clock,
            watch=watch or WatchSettings(), parse=ParseSettings(processes=processes), **more,
        )  # fmt: skip
        return self.dispatching

    @property
    def database(self) -> Database:
        """The database of all of them."""
        return self._database

    def run(self, main: Callable[[], Any]) -> None:
        """Run a test's coroutine function in virtual time."""
        run_virtual(main, self.clock)

    def close(self) -> None:
        """Release the database."""
        run_virtual(self._database.close, self.clock)


def in_virtual_time(test: Callable[..., Any]) -> Callable[..., None]:
    """Run a test, a coroutine function with the fixture `folder`, in the time of that folder."""

    @wraps(test)
    def wrapped(folder: Folder, **others: Any) -> None:
        folder.run(lambda: test(folder, **others))

    return wrapped
