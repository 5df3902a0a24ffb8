"""From a save to a stored DAG: real events, real confined parses, a real database."""

import os
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import anyio
import psutil
import pytest
from structlog.testing import capture_logs

from asynsched.channels import Channels
from asynsched.clock import Clock
from asynsched.home import prepare_home
from asynsched.parsing.dispatcher import ParseDispatcher
from asynsched.parsing.processes import informed_parser
from asynsched.parsing.processes.informed_parser import InformedParser
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.parsing.watching.watcher import Watcher
from asynsched.serialization.decode import decode_dag
from asynsched.settings import ParseSettings, Settings
from asynsched.store.dags.dags import get_version, list_dags
from asynsched.store.dags.files import list_errors
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database
from tests.support.up import title_of

DAG_FILE = """
    from asynsched import DAG, EmptyOperator

    with DAG("{dag_id}"):
        EmptyOperator(task_id="{task_id}")
"""


class Pipeline:
    """A DAG folder that is watched and parsed."""

    def __init__(self, settings: Settings, database: Database, parser: SandboxParser) -> None:
        self.root = settings.dags_path
        self.database = database
        self._channels = Channels()
        clock = Clock()
        self.watcher = Watcher(settings, self._channels, clock)
        informed = InformedParser(parser, database, clock)
        self.dispatcher = ParseDispatcher(settings, self._channels, database, clock, informed)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(exist_ok=True)
        (self.root / path).write_text(dedent(text))

    def write_dag(self, path: str, dag_id: str, task_id: str = "only") -> None:
        self.write(path, DAG_FILE.format(dag_id=dag_id, task_id=task_id))

    async def changes_of(self, *dag_ids: str) -> None:
        """Wait until news of each of these DAGs has come, in any order."""
        waiting = set(dag_ids)
        with anyio.fail_after(30):
            while waiting:
                waiting.discard((await self._channels.dag_changes.get()).dag_id)

    async def tasks(self) -> dict[str, list[str]]:
        """Return the tasks of each active DAG."""
        found = {}
        for dag in await self.database.read(list_dags):
            version = await self.database.read(get_version, dag.version_id)
            found[dag.dag_id] = [task.task_id for task in decode_dag(version.serialized).tasks]
        return found

    async def errors(self) -> dict[str, str]:
        return {error.file_path: error.message for error in await self.database.read(list_errors)}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings(
        dags_folder=str(tmp_path / "dags"), home=str(tmp_path / "dags" / ".asynsched"), parse=ParseSettings(processes=3)
    )
    settings.dags_path.mkdir()
    prepare_home(settings.home_path)
    return settings


@asynccontextmanager
async def running(settings: Settings, parser: SandboxParser | None = None) -> AsyncIterator[Pipeline]:
    """Run watcher and dispatcher inside the block, on the database in the home.

    Without a parser that was opened, each parse is a new interpreter.
    """
    database = await open_database(settings.database_url, synchronous="normal")
    try:
        pipeline = Pipeline(settings, database, parser or SandboxParser(settings))
        async with anyio.create_task_group() as tasks:
            await tasks.start(pipeline.watcher.run)
            await tasks.start(pipeline.dispatcher.run)
            yield pipeline
            tasks.cancel_scope.cancel()
    finally:
        await database.close()


async def test_saves_reach_the_database_and_a_restart_parses_nothing(settings):
    async with running(settings) as site:
        site.write_dag("team/one.py", "one")
        await site.changes_of("one")
        site.write_dag("team/one.py", "one", "edited")
        await site.changes_of("one")
        site.write("team/names.py", "NAME = 'named'\n")
        site.write_dag("user.py", "user")
        site.write("user.py", "from team.names import NAME\n" + dedent(DAG_FILE).format(dag_id="user", task_id="a"))
        await site.changes_of("user")
        await site.dispatcher.wait_idle()
        site.write(
            "user.py",
            "from team.names import NAME\n" + dedent(DAG_FILE.replace('"{task_id}"', "NAME")).format(dag_id="user"),
        )
        await site.changes_of("user")
        await site.dispatcher.wait_idle()
        with capture_logs() as logs:
            site.write("team/names.py", "NAME = 'renamed'\n")
            await site.changes_of("user")
            await site.dispatcher.wait_idle()
        assert [log["file"] for log in logs if log["event"] == "file.parsed"] == ["user.py"]
        with zipfile.ZipFile(settings.home_path / "packed", "w") as archive:
            archive.writestr("zipped.py", dedent(DAG_FILE).format(dag_id="zipped", task_id="z"))
        (settings.home_path / "packed").replace(site.root / "packed.zip")
        await site.changes_of("zipped")
        (site.root / "not.zip").write_text("this is no zip archive")
        with anyio.fail_after(30):
            while not await site.errors():  # noqa: ASYNC110 - an error causes no event
                await anyio.sleep(0.01)
        assert list(await site.errors()) == ["not.zip"]
        expected = {"one": ["edited"], "user": ["renamed"], "zipped": ["z"]}
        assert await site.tasks() == expected
    with capture_logs() as logs:
        async with running(settings) as site:
            await site.dispatcher.wait_idle()
            assert await site.tasks() == expected
    assert [log["event"] for log in logs] == ["file.failed"]


async def test_a_first_save_waits_for_no_parse_server_to_start(settings, monkeypatch):
    monkeypatch.setattr(informed_parser, "WARM_UP_DELAY", timedelta(0))

    def guardians() -> dict[int, list[int]]:
        """The guardians of each parse server, by its process."""
        servers = [child for child in psutil.Process().children() if title_of(child) == "asynsched: parse server"]
        return {
            server.pid: [child.pid for child in server.children() if leads_session(child.pid)] for server in servers
        }

    def leads_session(pid: int) -> bool:
        """Whether this is a guardian: a server starts programs, too, to find out where libraries are."""
        try:
            return os.getsid(pid) == pid
        except ProcessLookupError:
            return False

    async with running(settings) as site:
        site.write_dag("edited.py", "edited")
        await site.changes_of("edited")
    async with SandboxParser(settings) as parser, running(settings, parser) as site:
        await site.dispatcher.wait_idle()
        with anyio.fail_after(30):
            while len(warm := guardians()) < 2 or not all(warm.values()):  # noqa: ASYNC110 - a process causes no event
                await anyio.sleep(0.01)
        site.write_dag("edited.py", "edited", "other")
        await site.changes_of("edited")
        assert guardians() == warm
        assert await site.tasks() == {"edited": ["other"]}


async def test_a_slow_file_delays_no_other_and_may_be_deleted_meanwhile(settings):
    slow = "import pathlib, time\nfrom asynsched import DAG\ngo = pathlib.Path(__file__).with_name('go')\n"
    slow += "while not go.exists():\n    time.sleep(0.05)\n"
    async with running(settings) as site:
        site.write("slow.py", f"{slow}raise ValueError\n")
        site.write("late.py", f"{slow}with DAG('late'):\n    pass\n")
        # The slow ones came first, so they are being parsed when this one is stored.
        site.write_dag("fast_0.py", "fast_0")
        await site.changes_of("fast_0")
        (site.root / "slow.py").unlink()
        for number in range(1, 10):
            site.write_dag(f"fast_{number}.py", f"fast_{number}")
        await site.changes_of(*(f"fast_{number}" for number in range(1, 10)))
        assert "late" not in await site.tasks()
        (site.root / "go").touch()
        await site.changes_of("late")
        await site.dispatcher.wait_idle()
        assert await site.errors() == {}
