"""The watcher on a real folder, with the kernel's own events: nothing that happens to a file is missed."""

import errno
import os
import shutil
import sys
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from asynsched.channels import FileChanged
from asynsched.errors import SettingsError
from asynsched.parsing.watching import watcher as watcher_module
from asynsched.parsing.watching.file_events import InotifyEvents, WatchfilesEvents
from tests.integration.parsing.watched import Watched, watching

# The code for other systems works on Linux, too, and is tested there.
each_kind = pytest.mark.parametrize("file_events", [InotifyEvents, WatchfilesEvents])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "dags"
    root.mkdir()
    return root


@pytest.mark.parametrize(
    ("mode", "file_events"), [("auto", InotifyEvents), ("auto", WatchfilesEvents), ("poll", InotifyEvents)]
)
async def test_saves_moves_and_removals_of_files_and_folders_are_told(root, mode, file_events):
    (root / "first.py").write_text("x = 1")
    async with watching(root, mode=mode, poll_interval=0.05, file_events=file_events) as site:
        assert site.files == {"first.py": FileChanged("first.py", at_start=True)}
        site.write("first.py", "x = 22")
        await site.told_of("first.py")
        (root / ".first.py.swp").write_text("x = 333")
        (root / ".first.py.swp").replace(root / "first.py")
        await site.told_of("first.py")
        site.write("new/nested/deep.py")
        await site.told_of("new/nested/deep.py")
        site.write("new/nested/deep.py", "x = 22")
        await site.told_of("new/nested/deep.py")
        (root / "new").rename(root / "moved")
        await site.until(lambda: site.known == {"first.py", "moved/nested/deep.py"})
        (root / "first.py").rename(root / "second.py")
        await site.until(lambda: site.known == {"second.py", "moved/nested/deep.py"})
        site.write("moved/nested/deep.py", "x = 333")
        await site.told_of("moved/nested/deep.py")
        shutil.rmtree(root / "moved")
        await site.until(lambda: site.known == {"second.py"})
        # The new folder has the old one's path, and often its inode too.
        site.write("moved/nested/deep.py")
        await site.until(lambda: site.known == {"second.py", "moved/nested/deep.py"})
        site.write("moved/nested/deep.py", "x = 22")
        await site.told_of("moved/nested/deep.py")
        for number in range(5):
            shutil.rmtree(root / "moved")
            site.write("moved/nested/deep.py", f"x = {number}")
            site.write("moved/nested/more.py", f"x = {number}")
            await site.told_of("moved/nested/deep.py", "moved/nested/more.py")
            await site.told_of_edits("moved/nested/more.py")
        (root / "moved/nested/more.py").unlink()
        (root / "second.py").unlink()
        await site.until(lambda: site.known == {"moved/nested/deep.py"})


@each_kind
async def test_a_thousand_files_at_once_are_all_told_though_the_queue_is_short(root, file_events):
    async with watching(root, queue_size=5, file_events=file_events) as site:
        names = [f"package_{number % 20}/module_{number}.py" for number in range(1000)]
        for name in names:
            site.write(name)
        await site.until(lambda: site.known == set(names))
        for name in names:
            (root / name).write_text("x = 22")
        site.files.clear()
        await site.until(lambda: site.known == set(names))
        shutil.rmtree(root)
        root.mkdir()
        site.write("last.py")
        await site.until(lambda: site.known == {"last.py"})
        assert site.n_messages < 10 * len(names)


async def test_an_edited_ignore_file_takes_effect(root):
    for name in ("a.py", "lib/b.py"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("x = 1")
    async with watching(root) as site:
        assert site.known == {"a.py", "lib/b.py"}
        site.write(".airflowignore", "lib/\n")
        await site.until(lambda: site.known == {"a.py"})
        site.write("lib/b.py", "x = 22")
        await site.told_of("lib/b.py")
        assert site.known == {"a.py"}
        site.write(".asynschedignore", "!lib/\na.py\n")
        await site.until(lambda: site.known == {"lib/b.py"})
        (root / ".airflowignore").unlink()
        (root / ".asynschedignore").unlink()
        await site.until(lambda: site.known == {"a.py", "lib/b.py"})


@each_kind
async def test_what_links_lead_to_is_watched(root, tmp_path, file_events):
    for release in ("one", "two"):
        (tmp_path / release).mkdir()
        (tmp_path / release / "dag.py").write_text(f"release = '{release}'")
    (root / "current").symlink_to(tmp_path / "one")
    (root / "current_file.py").symlink_to(tmp_path / "one" / "dag.py")
    (root / "loop").symlink_to(root)
    async with watching(root, file_events=file_events) as site:
        assert site.known == {"current/dag.py", "current_file.py"}
        (tmp_path / "one" / "dag.py").write_text("edited = True")
        await site.told_of("current/dag.py", "current_file.py")
        (root / "next").symlink_to(tmp_path / "two")
        (root / "next").replace(root / "current")
        await site.told_of("current/dag.py")
        (tmp_path / "two" / "more.py").write_text("x = 1")
        await site.told_of("current/more.py")
        shutil.rmtree(tmp_path / "two")
        await site.until(lambda: site.known == {"current_file.py"})


@each_kind
@pytest.mark.parametrize(
    ("root", "below"), [("current/dags", ""), ("link_to_a_link", ""), ("folder", "with_link_to_a_link/")]
)
async def test_a_folder_reached_through_links_follows_each_when_it_is_swapped(tmp_path, root, below, file_events):
    for release in ("one", "two"):
        (tmp_path / release / "dags").mkdir(parents=True)
        (tmp_path / release / "dags" / f"{release}.py").write_text("x = 1")
    (tmp_path / "current").symlink_to("one")
    (tmp_path / "link_to_a_link").symlink_to("current/dags")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "with_link_to_a_link").symlink_to("../link_to_a_link")
    async with watching(tmp_path / root, home=tmp_path / "home", file_events=file_events) as site:
        assert site.known == {f"{below}one.py"}
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").replace(tmp_path / "current")
        await site.until(lambda: site.known == {f"{below}two.py"})
        (tmp_path / "two" / "dags" / "two.py").write_text("x = 22")
        await site.told_of(f"{below}two.py")


async def test_the_home_inside_the_folder_is_not_watched(root):
    home = root / ".state"
    (home / "tmp").mkdir(parents=True)
    async with watching(root, home=home) as site:
        (home / "tmp" / "scratch.py").write_text("x = 1")
        (root / "named_home").mkdir()
        site.write("last.py")
        await site.told_of("last.py")
        assert set(site.files) == {"last.py"}
        assert not any(str(home) in folder for folder in site.watched_folders)
    named = root / "named_home"
    async with watching(root, home=named) as site:
        (named / "state.py").write_text("x = 1")
        site.write("last.py", "x = 22")
        await site.told_of("last.py")
        assert set(site.files) == {"last.py"}
        assert str(named) not in site.watched_folders


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_text("")])
async def test_a_folder_that_is_none_is_refused_by_name(tmp_path, make):
    make(tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="nowhere"):
        await Watched(tmp_path / "nowhere", tmp_path / "home").watcher.run()
    with pytest.raises(SettingsError, match="home"):
        await Watched(tmp_path, tmp_path).watcher.run()


@each_kind
async def test_files_of_a_folder_that_goes_away_are_not_called_removed(root, file_events):
    (root / "a.py").write_text("x = 1")
    (root / "b.py").write_text("x = 1")
    with capture_logs() as logs:
        async with watching(root, poll_interval=0.05, file_events=file_events) as site:
            away = root.rename(root.with_name("away"))
            with anyio.fail_after(20):
                while not any(log["event"] == "folder.missing" for log in logs):  # noqa: ASYNC110 - a log line causes no event
                    await anyio.sleep(0.01)
            (away / "b.py").unlink()
            (away / "c.py").write_text("x = 1")
            away.rename(root)
            await site.until(lambda: site.known == {"a.py", "c.py"})
            site.write("c.py", "x = 22")
            await site.told_of("c.py")
    assert [log["event"] for log in logs] == ["folder.missing", "folder.found"]


class DeafInotify(InotifyEvents):
    """Events as on a network file system: none arrives."""

    def _gather(self, paths: Any) -> None:
        pass


class DeafWatchfiles(WatchfilesEvents):
    """The same elsewhere."""

    def _gather(self, paths: Any) -> None:
        pass


class FullInotify(InotifyEvents):
    """Events as where the kernel has no room for another watch."""

    def _watch_folders(self, inotify: Any) -> dict[int, str]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullWatchfiles(WatchfilesEvents):
    """The same elsewhere."""

    def _watch(self) -> None:
        raise OSError("OS file watch limit reached.")


@pytest.mark.parametrize(
    ("file_events", "reason"),
    [
        (DeafInotify, "no event reported the change of silent.py"),
        (DeafWatchfiles, "no event reported the change of silent.py"),
        (FullInotify, "raise fs.inotify.max_user_watches"),
        (FullWatchfiles, "OS file watch limit reached"),
    ],
)
async def test_a_folder_without_events_is_detected_and_polled(root, monkeypatch, file_events, reason):
    monkeypatch.setattr(watcher_module, "EVENT_GRACE", watcher_module.EVENT_GRACE / 30)
    with capture_logs() as logs:
        async with watching(root, reconcile_interval=0.1, poll_interval=0.05, file_events=file_events) as site:
            for number in count():
                site.write("silent.py", f"x = {number}")
                await site.told_of("silent.py")
                if site.watcher.is_polling:
                    break
            site.write("silent.py", "y = 22")
            await site.told_of("silent.py")
    assert [log["event"] for log in logs] == ["folder.polled"]
    assert reason in logs[0]["reason"]


class VanishingFolders(InotifyEvents):
    """Events as when folders are removed, one by one, just before they are watched."""

    def _watch_folders(self, inotify: Any) -> dict[int, str]:
        for folder in sorted(self.folders):
            if Path(folder).name.startswith("package_"):
                shutil.rmtree(folder)
                break
        return super()._watch_folders(inotify)


async def test_folders_that_vanish_one_after_the_other_do_not_lead_to_polling(root):
    for number in range(watcher_module.MOST_FAILURES + 2):
        (root / f"package_{number}").mkdir()
    async with watching(root, file_events=VanishingFolders) as site:
        await site.told_of_edits("last.py")
        assert not site.watcher.is_polling


@pytest.mark.skipif(sys.platform != "linux", reason="the queue of inotify")
async def test_what_the_queue_of_the_kernel_had_no_room_for_is_found_by_a_walk(root):
    notes = [root / "one.txt", root / "two.txt"]
    for note in notes:
        note.touch()
    room = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())  # noqa: ASYNC240 - no disk
    async with watching(root) as site:
        # The queue is not read until the event loop goes on. Events of one file in a row would count as one.
        for number in range(room + 1):
            os.utime(notes[number % 2])
        site.write("lost.py")
        await site.told_of("lost.py")
        await site.told_of_edits("lost.py")
        assert not site.watcher.is_polling


async def test_full_scans_beside_arriving_events_do_not_lead_to_polling(root, monkeypatch):
    monkeypatch.setattr(watcher_module, "EVENT_GRACE", watcher_module.EVENT_GRACE / 3)
    async with watching(root, reconcile_interval=0.02) as site:
        # This many scans take longer than an event may be late.
        while site.n_scans < 100:
            site.write(f"package_{site.n_scans % 3}/{site.n_scans}.py")
            await site.told_of(f"package_{site.n_scans % 3}/{site.n_scans}.py")
        assert not site.watcher.is_polling


async def test_a_name_that_is_no_text_stops_nothing(root):
    async with watching(root, reconcile_interval=0.5) as site:
        odd = os.fsdecode(b"odd\xff.py")
        (root / odd).write_text("x = 1")
        await site.told_of(odd)
        site.write("even.py")
        await site.told_of("even.py")
        assert not site.watcher.is_polling
