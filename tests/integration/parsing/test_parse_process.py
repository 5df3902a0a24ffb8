"""One parse as a process: what it is given, what it leaves, and that it ends, whatever happens to it."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import anyio
import anyio.to_thread
import psutil
import pytest
from msgspec.structs import replace

from asynsched.errors import ParseCrashed, ParseTimeout, SandboxError
from asynsched.home import prepare_home
from asynsched.parsing import sandbox_setup
from asynsched.parsing.sandbox_parser import SandboxParser
from asynsched.settings import ParseSettings, Settings
from tests.support.waiting import until

HANGING = """
    import subprocess, time
    subprocess.Popen(["sleep", "1000"], start_new_session={apart})
    time.sleep(1000)
"""


class Site:
    """A DAG folder with a parser."""

    def __init__(self, tmp_path: Path) -> None:
        self.settings = Settings(
            dags_folder=str(tmp_path / "dags"), home=str(tmp_path / "home"), parse=ParseSettings(timeout=40)
        )
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

    async def failure_of(self, path: str, n: int, strike: Callable[[psutil.Process], None]) -> SandboxError | None:
        """Parse a file that hangs in `n` processes, strike the guarding one, and return what `parse` raises."""
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
            strike(processes[0])
        await anyio.to_thread.run_sync(lambda: until(all_gone(processes), "what it started has ended"))
        return caught


def _tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def all_gone(processes: list[psutil.Process]) -> Callable[[], bool]:
    def check() -> bool:
        return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)

    return check


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    assert site.scratch() == []
    assert site.processes() == []


async def test_a_good_file_gives_its_dags_and_the_modules_it_imports(site):
    site.write("helper.py", "NAME = 'made'\n")
    site.write(
        "good.py", "import helper\nfrom asynsched import DAG\nprint('hello')\nwith DAG(helper.NAME):\n    pass\n"
    )
    report = await site.parser.parse("good.py")
    assert [parsed.dag.dag_id for parsed in report.dags] == ["made"]
    assert [source.path for source in report.sources] == ["good.py", "helper.py"]
    assert (report.path, report.errors, report.output) == ("good.py", (), "hello\n")


async def test_user_code_sees_the_allowed_environment_only(site, monkeypatch):
    monkeypatch.setenv("ASYNSCHED_DATABASE", "postgresql://me:secret@host/name")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AIRFLOW_VAR_COLOUR", "green")
    site.write("curious.py", "import os\nprint(dict(os.environ))\n")
    report = await site.parser.parse("curious.py")
    assert "green" in report.output
    assert "secret" not in report.output


async def test_a_parse_that_is_not_wanted_any_more_leaves_nothing(site):
    site.write("hanging.py", HANGING.format(apart=False))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(site.parser.parse, "hanging.py")
        processes = await site.waits()
        tasks.cancel_scope.cancel()
    assert all_gone(processes)()


async def test_a_parse_whose_guard_sleeps_is_killed_with_all_that_it_started(site, monkeypatch):
    monkeypatch.setattr(sandbox_setup, "GUARD_SECONDS", 2 - site.settings.parse.timeout)
    monkeypatch.setattr(sandbox_setup, "TERM_SECONDS", 0.1)
    # Without confinement, what a file starts can leave its process group.
    site.parser = SandboxParser(replace(site.settings, parse=ParseSettings(timeout=40, confinement="off")))
    site.write("hanging.py", HANGING.format(apart=True))
    caught = await site.failure_of("hanging.py", 3, lambda guard: guard.send_signal(signal.SIGSTOP))
    assert isinstance(caught, ParseTimeout)
    assert "hanging.py" in str(caught)
    assert site.scratch() != []
    # What a kill has left behind is swept by the next parser, once it is old.
    for folder in site.scratch():
        os.utime(folder, (0, 0))
    site.write("good.py", "")
    await SandboxParser(site.settings).parse("good.py")


async def test_a_guard_that_is_killed_is_a_crash_of_that_file(site):
    site.write("hanging.py", "import time\ntime.sleep(1000)\n")
    caught = await site.failure_of("hanging.py", 2, lambda guard: guard.kill())
    assert isinstance(caught, ParseCrashed)
    assert "hanging.py: the parse process was killed by signal 9" in str(caught)
    for folder in site.scratch():
        folder.rmdir()
