"""Parses by a warmed server: each as fresh as in a new interpreter, and the remains when one of its processes dies."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from textwrap import dedent
from venv import EnvBuilder

import anyio
import anyio.to_thread
import psutil
import pytest
from msgspec.structs import replace

from asynsched.errors import ParseCrashed, ParseTimeout
from asynsched.parsing.processes import sandbox_parser as parse_server
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.serialization.decode import decode_report
from asynsched.serialization.schema import ParseReport
from asynsched.settings import KubernetesSettings, WebSettings
from tests.integration.parsing.parse_site import HANGING, Patience, Site, all_gone
from tests.support.waiting import until

TRACES = """
import builtins, os, random, sys, warnings
import asynsched, helper
print(os.getpid(), os.getppid(), random.random(), os.getcwd())
print(hash("text"), len(helper.SEEN), hasattr(builtins, "trace"), hasattr(asynsched, "trace"), "TRACE" in os.environ)
helper.SEEN.append(1)
builtins.trace = asynsched.trace = True
os.environ["TRACE"] = "yes"
with asynsched.DAG("traced", tags=set("abcdefgh")):
    asynsched.EmptyOperator(task_id="only")
"""
HANGS_IN = 4
"""The server, the guardian, the parse, and the process that this has started."""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    async with site.parser:
        yield site
    assert site.scratch() == []
    assert site.processes() == []


async def test_a_good_file_gives_its_dags_and_the_modules_it_imports(site):
    site.write("helper.py", "NAME = 'made'\n")
    site.write(
        "good.py", "import helper\nfrom asynsched import DAG\nprint('hello')\nwith DAG(helper.NAME):\n    pass\n"
    )
    (site.settings.home_path / "tmp" / "parse-killed").mkdir()
    report = await site.parser.parse("good.py")
    assert site.scratch() == [], "a killed parse's folder is removed before the first parse"
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


async def test_a_parse_without_a_server_that_is_kept_leaves_no_process(tmp_path):
    site = Site(tmp_path)
    site.write("good.py", "print('fine')\n")
    assert (await site.parser.parse("good.py")).output == "fine\n"
    assert site.processes() == []
    site.write("hanging.py", HANGING.format(apart=False))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(site.parser.parse, "hanging.py")
        processes = await site.waits(HANGS_IN)
        tasks.cancel_scope.cancel()
    # A guardian has hung up when the parse returns, and is about to end.
    await anyio.to_thread.run_sync(lambda: until(all_gone(processes), "the processes of the parse have ended"))
    assert site.scratch() == []


async def test_each_parse_is_a_fork_of_its_own_that_knows_nothing_of_the_others(site):
    site.write("helper.py", "SEEN = []\n")
    site.write("traces.py", TRACES)
    reports: list[ParseReport] = []

    async def parse() -> None:
        reports.extend([await site.parser.parse("traces.py") for _ in range(5)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parse)
        tasks.start_soon(parse)
    [server] = psutil.Process().children()
    first, second = zip(*(report.output.splitlines() for report in reports), strict=True)
    pids, guardians, numbers, folders = zip(*(line.split() for line in first), strict=True)
    assert len(set(pids)) == len(set(numbers)) == len(set(folders)) == 10
    assert set(guardians) == {str(child.pid) for child in server.children()}
    assert len(set(guardians)) == 2
    [line] = set(second)
    assert line.endswith(" 0 False False False")
    # A new interpreter finds the same, including the hash of the version.
    setup = parse_server.setup_of(site.settings)
    command = setup.command("sandbox.parse", str(site.settings.dags_path / "traces.py"))
    found = await anyio.run_process(command, env=setup.environment(), cwd=setup.scratch)
    by_itself = decode_report(found.stdout)
    assert all(report.dags == by_itself.dags for report in reports)
    assert by_itself.output.splitlines()[1] == line
    assert by_itself.confinement == reports[0].confinement


REACHES = """
import os
from asynsched import DAG

def is_open(path):
    try:
        with open(path):
            return True
    except OSError:
        return False

processes = [f"/proc/{{pid}}/status" for pid in (os.getpid(), os.getppid())]
print(*map(is_open, (__file__, *processes, *{paths})))
open("mine", "w").close()
DAG("reaching")
"""


async def test_parses_of_one_guardian_reach_nothing_hidden(tmp_path):
    site = Site(tmp_path, home=tmp_path / "dags" / "home")
    (secret := site.settings.home_path / "secret").write_text("x")
    (release := tmp_path / "dags" / "release").mkdir()
    (release / "token").write_text("x")
    (moved := tmp_path / "dags" / "moved").write_text("x")
    site.write("reaches.py", dedent(REACHES).format(paths=[str(secret), str(moved), str(release / "token")]))
    async with site.parser:
        for _ in range(2):
            assert (await site.parser.parse("reaches.py")).output == "True True False False True True\n"
        # Rights are granted to a file, regardless of its later path; they end once it is in a hidden folder.
        moved.rename(secret)
        assert (await site.parser.parse("reaches.py")).output == "True True False False False True\n"
        # Nor is a file refused because another one had its path before.
        release.rename(tmp_path / "dags" / "old_release")
        release.mkdir()
        (release / "token").write_text("x")
        assert (await site.parser.parse("reaches.py")).output == "True True False False False True\n"


OPENS = """
from pathlib import Path

def is_open(path):
    try:
        return bool(path.read_text())
    except OSError:
        return False

print([name for name in {names} if is_open(Path({folder!r}, name))])
"""


async def test_a_parse_reads_no_file_with_secrets_in_a_folder_that_it_may_read(tmp_path, monkeypatch):
    (config := tmp_path / "config").mkdir()
    named = ["client", "cluster", "keys", "tls", ".env"]
    names = ["airflow.cfg", "asynsched.toml", "own.toml", "words.txt", *named]
    for name in names:
        (config / name).write_text("[core]\n")
    site = Site(tmp_path)
    site.write("opens.py", OPENS.format(folder=str(config), names=names))
    assert str(config) in site.settings.installation_folders
    monkeypatch.setenv("ASYNSCHED_CONFIG", str(config / "own.toml"))
    for cfg in ("", str(config / "airflow.cfg")):
        client, cluster, keys, tls, env = (str(config / name) for name in named)
        settings = replace(
            site.settings, fernet_key_file=keys, airflow_cfg=cfg, kubernetes=KubernetesSettings(kubeconfig=cluster),
            web=WebSettings(tls_certificate="public", tls_key=tls, oidc_client_secret_file=client),
            parse=replace(site.settings.parse, hidden=(env,)),
        )  # fmt: skip
        assert (await SandboxParser(settings).parse("opens.py")).output == "['words.txt']\n"


async def test_a_parse_reads_no_settings_in_the_working_folder(tmp_path, monkeypatch):
    site = Site(tmp_path)
    monkeypatch.chdir(dags := site.settings.dags_path)
    site.write("asynsched.toml", "[parse]\n")
    site.write("opens.py", OPENS.format(folder=str(dags), names=["asynsched.toml", "opens.py"]))
    assert (await SandboxParser(site.settings).parse("opens.py")).output == "['opens.py']\n"


LEAVING = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from asynsched.protocol.parse_messages import ParseLimits
from asynsched.serialization.schema import ParseQuestions
from sandbox.parse_server import warm
from sandbox.parsing import supervise
from sandbox.parsing.importing import ParseRequest

supervise.become_guardian()
warm(ParseLimits())
folder, lifeline = Path(sys.argv[1]), supervise.PipeLifeline(os.pipe()[1])
for number in range(2):
    (scratch := folder.parent / f"scratch_{number}").mkdir()
    request = ParseRequest("reaches.py", folder, scratch, ParseLimits(), ParseQuestions(now=datetime.now(UTC)))
    print(supervise.parse_file(request, lifeline).output, end="")
"""


def test_a_parse_reaches_nothing_that_the_one_before_has_left_behind(tmp_path):
    (folder := tmp_path / "dags").mkdir()
    left = tmp_path / "scratch_0" / "mine"
    (folder / "reaches.py").write_text(dedent(REACHES).format(paths=[str(left)]))
    command = [sys.executable, "-P", "-c", LEAVING, str(folder)]
    ended = subprocess.run(command, capture_output=True, check=True, text=True)
    assert left.exists()
    assert ended.stdout == "True True False False\n" * 2


async def test_a_parse_that_is_not_wanted_any_more_leaves_nothing_but_the_server(site):
    site.write("hanging.py", HANGING.format(apart=False))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(site.parser.parse, "hanging.py")
        processes = await site.waits(HANGS_IN)
        tasks.cancel_scope.cancel()
    assert all_gone(processes[2:])()  # its guardian has hung up, and is about to end
    assert site.scratch() == []
    site.write("good.py", "print('fine')\n")
    assert (await site.parser.parse("good.py")).output == "fine\n"
    assert site.processes()[0] == processes[0]


async def test_a_guardian_that_sleeps_is_killed_with_all_that_it_started(site, monkeypatch):
    patience = Patience(monkeypatch, parse_server)
    monkeypatch.setattr(parse_server, "TERM_SECONDS", 0.1)
    site.write("hanging.py", HANGING.format(apart=True))
    # Without confinement, the processes of a file can leave its process group.
    async with SandboxParser(replace(site.settings, parse=replace(site.settings.parse, confinement="off"))) as parser:
        site.parser = parser
        caught = await site.failure_of(
            "hanging.py", HANGS_IN, lambda server: (server.children()[0].suspend(), patience.end()), spared=1
        )
    assert isinstance(caught, ParseTimeout)
    assert "hanging.py" in str(caught)


def _kill_guardian(server: psutil.Process) -> None:
    server.children()[0].kill()


@pytest.mark.parametrize("strike", [_kill_guardian, psutil.Process.kill], ids=["guardian", "server"])
async def test_a_parse_whose_watchers_are_killed_is_done_again_once(site, strike: Callable[[psutil.Process], None]):
    site.write("hanging.py", HANGING.format(apart=False))
    reports: list[ParseReport] = []

    async def parse() -> None:
        reports.append(await site.parser.parse("hanging.py"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parse)
        processes = await site.waits(HANGS_IN)
        site.write("hanging.py", "print('mended')\n")
        strike(processes[0])
    assert reports[0].output == "mended\n"
    await anyio.to_thread.run_sync(lambda: until(all_gone(processes[1:]), "the processes of the lost parse have ended"))


def parsing_guardian(server: psutil.Process, but: list[psutil.Process]) -> psutil.Process | None:
    """A guardian whose parse has begun; None while there is none, or while they come and go."""
    try:
        return next((child for child in server.children() if child not in but and child.children()), None)
    except psutil.NoSuchProcess:
        return None


async def test_a_file_whose_watchers_are_killed_again_and_again_is_a_crash(site):
    site.write("hanging.py", "import time\ntime.sleep(1000)\n")

    def kill_two(server: psutil.Process) -> None:
        struck: list[psutil.Process] = []
        for _ in range(2):
            struck.append(until(lambda: parsing_guardian(server, struck), "a guardian parses"))
            struck[-1].kill()

    caught = await site.failure_of("hanging.py", 3, kill_two, spared=1)
    assert isinstance(caught, ParseCrashed)
    assert "hanging.py: the parse process was lost without a report" in str(caught)


def environment_of_its_own(folder: Path) -> tuple[Path, Path]:
    """Return the Python of a new virtual environment that sees this one's packages, and the folder of its own."""
    EnvBuilder(symlinks=True).create(folder)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    (packages / "others.pth").write_text("\n".join(path for path in sys.path if path))
    return folder / "bin" / "python", packages


async def test_a_server_is_replaced_when_environment_or_packages_change(site, monkeypatch, tmp_path):
    python, packages = environment_of_its_own(tmp_path / "python")  # other tests have servers meanwhile
    monkeypatch.setattr(sys, "executable", str(python))
    site.write("curious.py", "import os\nprint(os.environ.get('AIRFLOW_VAR_COLOUR'))\n")
    assert (await site.parser.parse("curious.py")).output == "None\n"
    [first] = psutil.Process().children()
    monkeypatch.setenv("AIRFLOW_VAR_COLOUR", "green")
    assert (await site.parser.parse("curious.py")).output == "green\n"
    [second] = psutil.Process().children()
    os.utime(packages)
    assert (await site.parser.parse("curious.py")).output == "green\n"
    [third] = psutil.Process().children()
    assert len({first, second, third}) == 3


PROGRAM = """
import asyncio, sys
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.settings import Settings

async def main():
    async with SandboxParser(Settings(dags_folder=sys.argv[1], home=sys.argv[2])) as parser:
        await parser.parse("hanging.py")

asyncio.run(main())
"""


def test_nothing_outlives_the_process_that_started_the_server(tmp_path):
    site = Site(tmp_path)
    site.write("hanging.py", HANGING.format(apart=False))
    command = [sys.executable, "-c", PROGRAM, str(site.settings.dags_path), str(site.settings.home_path)]
    with subprocess.Popen(command) as owner:
        processes = until(
            lambda: found if len(found := psutil.Process(owner.pid).children(recursive=True)) >= HANGS_IN else [],
            "it hangs",
        )
        owner.kill()
    until(all_gone(processes), "all of it has ended")
    assert site.scratch() == []
