"""The list of data files is as the folder was after somebody asked for it."""

import anyio
import pytest

from asynsched.errors import DataFilesUnavailable
from asynsched.settings import Settings, WorkersSettings
from asynsched.web.data_files import DataFiles


@pytest.fixture
def files(tmp_path) -> DataFiles:
    """The data files of a folder with `a.sql`, at most 100 bytes."""
    (tmp_path / "a.sql").write_text("select 1")
    workers = WorkersSettings(files=("*.sql",), files_bytes=100)
    return DataFiles(Settings(dags_folder=str(tmp_path), home=str(tmp_path / "home"), workers=workers))


async def test_everybody_who_asks_while_the_files_are_too_large_is_told_so(files: DataFiles, tmp_path):
    assert [file.path for file in await files.list()] == ["a.sql"]
    (tmp_path / "b.sql").write_text("x" * 101)
    told = []

    async def ask() -> None:
        with pytest.raises(DataFilesUnavailable, match="more than 100 bytes"):
            await files.list()
        told.append(True)

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ask)
    assert len(told) == 5


async def test_the_home_git_and_links_out_of_the_folder_are_left_out(files: DataFiles, tmp_path):
    for folder in ("home", ".git", "sub"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "b.sql").write_text("select 2")
    outside = tmp_path.parent / f"{tmp_path.name}.sql"
    outside.write_text("select 3")
    (tmp_path / "out.sql").symlink_to(outside)
    (tmp_path / "in.sql").symlink_to("a.sql")
    (tmp_path / "gone.sql").symlink_to("nothing")
    (tmp_path / "hidden.sql").symlink_to(".git/b.sql")
    (tmp_path / "own.sql").symlink_to("home/b.sql")
    assert [file.path for file in await files.list()] == ["a.sql", "in.sql", "sub/b.sql"]


async def test_a_changed_file_has_another_hash(files: DataFiles, tmp_path):
    (before,) = await files.list()
    (tmp_path / "a.sql").write_text("select 2")
    (after,) = await files.list()
    (tmp_path / "a.sql").chmod(0o700)
    (executable,) = await files.list()
    assert before.content_hash != after.content_hash == executable.content_hash
    assert (after.is_executable, executable.is_executable) == (False, True)
