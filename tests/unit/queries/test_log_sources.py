"""Where a log is read that several homes have parts of."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from asynsched.clock import VirtualClock
from asynsched.errors import LogStoreUnavailable
from asynsched.executors.log_archive import LogArchive, archive_of
from asynsched.home import LOGS
from asynsched.housekeeping.home_logs import HomeLogs, LocalLog
from asynsched.queries.log_sources import opened_log
from asynsched.settings import LogSettings, Settings

PATH = "dag_id=d/run_id=r/task_id=t/attempt=1.log"
HERE = "[2026-05-01T12:00:01.000Z] here\n"
WHOLE = f"{HERE}[2026-05-01T12:00:02.000Z] in another home\n"


class Home:
    """A home that has stored its part of a log."""

    def __init__(self, folder: Path, url: str) -> None:
        self.path = folder
        self.settings = Settings(home=str(folder), database=url, log=LogSettings(store=f"memory://{folder}"))
        self.file = folder / LOGS / PATH
        self.file.parent.mkdir(parents=True)
        self.file.write_text(HERE)
        self.archive = archive_of(self.settings.log)
        self.archive.put(PATH, self.file, folder)
        status = self.file.stat()
        stored = LocalLog(PATH, status.st_size, status.st_mtime_ns)
        HomeLogs(folder / LOGS).note_stored(stored, status.st_size, datetime(2026, 5, 1, tzinfo=UTC))

    def store_part_of_another_home(self) -> None:
        part = self.path / "part"
        part.write_text(WHOLE.removeprefix(HERE))
        self.archive.put(PATH, part, self.path)

    def read(self, **options: bool) -> str:
        with opened_log(self.path, self.settings, PATH, **options) as log:
            return log.read(0, log.size).decode()


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path, "postgresql://localhost/asynsched")


def test_a_log_that_the_store_has_more_of_is_read_there(home):
    assert home.read() == HERE
    home.store_part_of_another_home()
    assert home.read() == WHOLE
    assert home.read(may_be_archived=False) == HERE
    assert home.read(joins_parts=False) == HERE, "a reader goes on at a byte of this home's part"


def test_a_part_that_is_not_stored_yet_is_read_in_its_home(home):
    home.store_part_of_another_home()
    with home.file.open("a") as log:
        log.write("more\n")
    assert home.read() == f"{HERE}more\n"


def test_the_part_in_the_home_is_shown_while_the_store_is_away(home, monkeypatch):
    asked, clock = [], VirtualClock(datetime(2026, 5, 1, tzinfo=UTC))

    def fail(*_):
        asked.append(1)
        raise LogStoreUnavailable("it is away")

    home.store_part_of_another_home()
    monkeypatch.setattr(home.archive, "_clock", clock)
    with monkeypatch.context() as patched:
        patched.setattr(LogArchive, "size", fail)
        assert [home.read(), home.read()] == [HERE, HERE]
        assert len(asked) == 1, "it may hang, and then nobody waits twice"
    clock.leap(60)
    assert home.read() == WHOLE


def test_the_only_home_of_a_database_asks_no_store_for_the_logs_that_it_has(tmp_path, monkeypatch):
    home = Home(tmp_path, "")
    monkeypatch.setattr(LogArchive, "size", lambda *_: pytest.fail("the store is asked"))
    assert home.read() == HERE
