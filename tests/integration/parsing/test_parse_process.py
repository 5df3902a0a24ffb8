"""One parse as a process: what it is given, what it leaves, and that it ends, whatever happens to it."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from asynsched.errors import ParseCrashed, ParseTimeout
from asynsched.parsing.processes import parse_process, sandbox_setup
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from tests.integration.parsing.parse_site import HANGING, Patience, Site, all_gone
from tests.support.waiting import DEADLINE_SECONDS


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


async def test_a_parse_that_is_not_wanted_any_more_leaves_nothing(site, monkeypatch):
    # Nothing is killed from here for want of time, and left to the next parser: the guard ends it all.
    monkeypatch.setattr(sandbox_setup, "TERM_SECONDS", DEADLINE_SECONDS)
    site.write("hanging.py", HANGING.format(apart=False))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(site.parser.parse, "hanging.py")
        processes = await site.waits()
        tasks.cancel_scope.cancel()
    assert all_gone(processes)()


async def test_a_parse_whose_guard_sleeps_is_killed_with_all_that_it_started(site, monkeypatch):
    patience = Patience(monkeypatch, parse_process)
    monkeypatch.setattr(sandbox_setup, "TERM_SECONDS", 0.1)
    # Without confinement, what a file starts can leave its process group.
    site.parser = SandboxParser(replace(site.settings, parse=replace(site.settings.parse, confinement="off")))
    site.write("hanging.py", HANGING.format(apart=True))
    caught = await site.failure_of("hanging.py", 3, lambda guard: (guard.suspend(), patience.end()))
    assert isinstance(caught, ParseTimeout)
    assert "hanging.py" in str(caught)
    assert site.scratch() != []
    # What a kill has left behind is swept by the next parser.
    site.write("good.py", "")
    await SandboxParser(site.settings).parse("good.py")


async def test_a_guard_that_is_killed_is_a_crash_of_that_file(site):
    site.write("hanging.py", "import time\ntime.sleep(1000)\n")
    caught = await site.failure_of("hanging.py", 2, lambda guard: guard.kill())
    assert isinstance(caught, ParseCrashed)
    assert "hanging.py: the parse process was killed by signal 9" in str(caught)
    for folder in site.scratch():
        folder.rmdir()
