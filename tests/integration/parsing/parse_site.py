"""A DAG folder with a parser, and a look at the processes that this has started."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import psutil
import pytest

from asynsched.errors import SandboxError
from asynsched.home import prepare_home
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.settings import ParseSettings, Settings
from tests.support.waiting import until

HANGING = """
    import subprocess, time
    subprocess.Popen(["sleep", "1000"], start_new_session={apart})
    time.sleep(1000)
"""


class Patience:
    """The end of a module's wait in a parse: not a limit of time, but the moment that a test decides."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        self._scope = anyio.CancelScope()
        monkeypatch.setattr(module, "anyio", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(anyio, name)

    @contextmanager
    def fail_after(self, _seconds: float) -> Iterator[anyio.CancelScope]:
        with anyio.fail_after(None) as self._scope:
            yield self._scope

    def end(self) -> None:
        """End it, from a thread of anyio's."""
        anyio.from_thread.run_sync(setattr, self._scope, "deadline", 0.0)


class Site:
    """A DAG folder with a parser."""

    def __init__(self, tmp_path: Path, home: Path | None = None) -> None:
        home = home or tmp_path / "home"
        parse = ParseSettings(timeout=100, import_timeout=100)
        self.settings = Settings(dags_folder=str(tmp_path / "dags"), home=str(home), parse=parse)
        self.settings.dags_path.mkdir()
        prepare_home(self.settings.home_path)
        self.parser = SandboxParser(self.settings)

    def write(self, path: str, text: str) -> None:
        (self.settings.dags_path / path).write_text(dedent(text))

    def processes(self) -> list[psutil.Process]:
        """The processes of parses, the outer one first."""
        return [process for child in psutil.Process().children() if self._parses(child) for process in _tree(child)]

    def _parses(self, process: psutil.Process) -> bool:
        try:
            return str(self.settings.dags_path) in process.cmdline()
        except psutil.Error:
            return False

    def scratch(self) -> list[Path]:
        return list((self.settings.home_path / "tmp").iterdir())

    async def waits(self, n: int = 3) -> list[psutil.Process]:
        """Return the processes of a parse, once that many of them run."""

        def hanging() -> list[psutil.Process]:
            found = self.processes()
            return found if len(found) >= n else []

        return await anyio.to_thread.run_sync(lambda: until(hanging, "it hangs"))

    async def failure_of(
        self, path: str, n: int, strike: Callable[[psutil.Process], object], *, spared: int = 0
    ) -> SandboxError | None:
        """Parse a file that hangs in `n` processes, strike by the first one, and return the exceptions of `parse`.

        All of them but the first `spared` are gone then.
        """
        caught = None

        async def parse() -> None:
            nonlocal caught
            try:
                await self.parser.parse(path)
            except SandboxError as exc:
                caught = exc

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(parse)
            processes = await self.waits(n)
            await anyio.to_thread.run_sync(strike, processes[0])
        await anyio.to_thread.run_sync(lambda: until(all_gone(processes[spared:]), "its processes have ended"))
        return caught


def _tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def all_gone(processes: list[psutil.Process]) -> Callable[[], bool]:
    return lambda: not any(_runs(process) for process in processes)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
