"""Reports that files of known names change, by inotify: among them those of a SQLite database, with each commit.

A commit is appended to a file beside the database, and all processes of a SQLite database are on one machine. So
inotify reports each commit, shortly before it can be read: SQLite appends a commit before it syncs and publishes it.
"""

import asyncio
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inotify_simple import INotify


class FileEvents:
    """The events of some files. Without inotify, as on macOS, there are none, and `watch` says so."""

    def __init__(self) -> None:
        self._inotify = _open_inotify()
        self._names: dict[int, set[str]] = {}

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()

    def fileno(self) -> int | None:
        """Return the descriptor that is readable once there are events; None without inotify."""
        return None if self._inotify is None else self._inotify.fileno()

    def watch(self, folder: Path, name: str) -> bool:
        """Watch the files in a folder whose names begin like this. Returns whether that is possible."""
        if self._inotify is None:
            return False
        from inotify_simple import flags

        try:
            number = self._inotify.add_watch(folder, flags.CREATE | flags.MODIFY | flags.MOVED_TO)
        except OSError:  # it does not exist yet, or this user has no more watches
            return False
        self._names.setdefault(number, set()).add(name)  # a folder that is watched twice has one number
        return True

    def watch_database(self, path: Path) -> bool:
        """Watch a SQLite database. Returns whether that is possible."""
        path = path.resolve()  # SQLite keeps its log beside the file that a symbolic link names
        return self.watch(path.parent, path.name)

    def take(self) -> bool:
        """Take the events that there are by now, and return whether one concerns a watched file."""
        events = () if self._inotify is None else self._inotify.read(0)
        # The kernel drops events when too many are unread, and reports that as an event of the watch -1.
        return any(event.wd == -1 or event.name.startswith(tuple(self._names.get(event.wd, ()))) for event in events)

    def follow(self, file: Path, top: Path) -> bool:
        """Watch a file. Neither it nor its folders below `top` need exist yet: call this before each look.

        Returns whether that is possible.
        """
        return all(self.watch(folder, child) for folder, child in steps_to(file, top))


def steps_to(file: Path, top: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folders from `top` to a file, each with the name in it that leads there, up to the first that lacks it.

    A caller that watches each folder before it asks for the next one misses no step.
    """
    folders = [folder for folder in file.parents if folder.is_relative_to(top)]
    for folder, child in zip(reversed(folders), [*reversed(folders[:-1]), file], strict=True):
        yield folder, child.name
        if not child.exists():
            return


class Follower:
    """A reader that waits for a file to grow, and looks at it then. `FollowedFiles.follow` makes it.

    Args:
        top: A folder above the file that exists. The folders between them need not exist yet.
    """

    def __init__(self, files: "FollowedFiles", file: Path, top: Path) -> None:
        self._files = files
        self._file, self._top = file, top
        self._woken = asyncio.Event()
        self.names: dict[int, str] = {}

    def begin_look(self) -> bool:
        """Forget what was reported, since the file is looked at now. Returns whether its next change is reported."""
        self._woken.clear()
        return self._files.watch(self, steps_to(self._file, self._top))

    def wake(self) -> None:
        """Report that the file has changed."""
        self._woken.set()

    async def changed(self) -> None:
        """Return once the file has changed since the last look began."""
        await self._woken.wait()


class FollowedFiles:
    """Files that many followers on one event loop wait for. They share one inotify instance; a user has few of them.

    Without inotify nothing is reported, and `begin_look` says so.
    """

    def __init__(self) -> None:
        self._inotify: INotify | None = None
        self._followers: dict[int, set[Follower]] = {}
        self._n_followers = 0

    @contextmanager
    def follow(self, file: Path, top: Path) -> Iterator[Follower]:
        """Follow a file in the block."""
        loop = asyncio.get_running_loop()
        if self._n_followers == 0 and (opened := _open_inotify()) is not None:
            self._inotify = opened
            loop.add_reader(opened.fileno(), self._take)
        self._n_followers += 1
        follower = Follower(self, file, top)
        try:
            yield follower
        finally:
            self._n_followers -= 1
            for number in follower.names:
                self._leave(number, follower)
            if self._n_followers == 0 and self._inotify is not None:
                loop.remove_reader(self._inotify.fileno())
                self._inotify.close()
                self._inotify = None

    def watch(self, follower: Follower, steps: Iterable[tuple[Path, str]]) -> bool:
        """Wake a follower when one of these names is made or changed. Returns whether that is possible."""
        if self._inotify is None:
            return False
        from inotify_simple import flags

        for folder, name in steps:
            try:
                number = self._inotify.add_watch(folder, flags.CREATE | flags.MODIFY | flags.MOVED_TO)
            except OSError:  # it is gone, or this user has no more watches
                return False
            self._followers.setdefault(number, set()).add(follower)
            follower.names[number] = name
        return True

    def _take(self) -> None:
        assert self._inotify is not None
        for event in self._inotify.read(0):
            # The kernel drops events when too many are unread, and reports that as an event of the watch -1.
            concerned = self._followers.values() if event.wd == -1 else [self._followers.get(event.wd, set())]
            for follower in {one for some in concerned for one in some}:
                if event.wd == -1 or follower.names[event.wd] == event.name:
                    follower.wake()

    def _leave(self, number: int, follower: Follower) -> None:
        self._followers[number].discard(follower)
        if not self._followers[number]:
            del self._followers[number]
            if self._inotify is not None:
                with suppress(OSError):  # its folder is gone
                    self._inotify.rm_watch(number)


def _open_inotify() -> "INotify | None":
    if sys.platform != "linux":
        return None
    from inotify_simple import INotify

    try:
        return INotify()
    except OSError:  # this user has no more of them
        return None
