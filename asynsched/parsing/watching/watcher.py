"""The watcher: says which files of the DAG folder have changed, by events of the kernel where there are any.

    start ──▶ walk ──▶ watch the folders found ──▶ walk again (what happened in between)
                                  │
              events ──▶ touched files; a changed folder, link or ignore file ──▶ walk ──▶ watch anew
              reconcile_interval ──▶ walk; finds what no event told of ──▶ polling
    polling: a walk each poll_interval

A walk compares the folder with the one before, so nothing is lost by a new watch, by a full queue, or while the folder
is away. Walks and looks at files are done by threads.
"""

import os
import socket
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup, TaskStatus

from asynsched.channels import Channels, FileChanged, FolderScanned
from asynsched.clock import Clock
from asynsched.errors import SettingsError
from asynsched.parsing.watching.discovery import FolderId, Snapshot, scan
from asynsched.parsing.watching.file_events import FileEvents
from asynsched.parsing.watching.file_system import has_events
from asynsched.parsing.watching.scan_order import changes_between, in_order
from asynsched.parsing.watching.touched import Touched, interpret, watched_folders
from asynsched.service import Service
from asynsched.settings import Settings

if sys.platform == "linux":
    from asynsched.parsing.watching.inotify_events import InotifyEvents as NativeEvents
else:
    from asynsched.parsing.watching.watchfiles_events import WatchfilesEvents as NativeEvents

log = structlog.get_logger(__name__)

EVENT_GRACE = timedelta(seconds=3)
"""How late an event may be before it counts as one that never comes."""
MOST_FAILURES = 3
"""How often in a row a watch may fail before the folder is polled."""


class Watcher(Service):
    """Sends a FileChanged for each change in the DAG folder, and a FolderScanned after each full scan."""

    name = "watcher"

    def __init__(
        self, settings: Settings, channels: Channels, clock: Clock, *, file_events: type[FileEvents] = NativeEvents
    ) -> None:
        super().__init__(clock)
        self._new_events = file_events
        self._settings = settings.watch
        self._root = settings.dags_path
        self._home = settings.home_path
        self._channel = channels.file_changes
        self._snapshot: Snapshot | None = None
        self._tasks: TaskGroup | None = None
        self._events: FileEvents | None = None
        self._watched: dict[str, FolderId] = {}
        self._failures = 0
        self._walk_again = True
        self._walk_at = clock.now()
        self._reconcile_at = clock.now()
        self._rest_until = clock.now()
        self._untold: dict[str, datetime] = {}
        self._told_problems: set[str] = set()
        self._folder_is_away = False
        self.is_polling = self._settings.mode == "poll"

    @property
    def watched_folders(self) -> frozenset[str]:
        """The absolute paths of the folders whose events are heard at the moment."""
        return frozenset() if self._events is None else self._events.folders

    @property
    def is_caught_up(self) -> bool:
        """Whether changes are heard or polled, and everything that happened before that was found by a walk."""
        return not self._walk_again and (
            self.is_polling or (self._events is not None and self._events.is_ready.is_set())
        )

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled.

        Raises:
            SettingsError: The DAG folder does not exist, is no folder, or cannot be read.
        """
        await anyio.to_thread.run_sync(check_folder, self._root, self._home)
        if self._settings.mode == "auto" and not await anyio.to_thread.run_sync(has_events, self._root):
            self._poll("its file system tells of no changes")
        async with anyio.create_task_group() as self._tasks:
            await super().run(task_status=task_status)

    async def tick(self, now: datetime) -> None:
        events = set() if self._events is None else self._events.take()
        self._note_failed_watch()
        if events and self._snapshot is not None:
            await self._follow(events)
        is_full = now >= self._reconcile_at
        if is_full or now >= self._walk_at or (self._walk_again and now >= self._rest_until):
            await self._walk(is_full=is_full)
        self._judge_events(self.clock.now())
        if not self.is_polling:
            await self._watch_what_was_found()
        self._plan()

    async def _follow(self, events: set[str]) -> None:
        """Send what the events say, at once."""
        assert self._snapshot is not None
        touched = await anyio.to_thread.run_sync(interpret, self._root, self._snapshot, events)
        self._note_told(touched)
        changes = []
        for path, found in sorted(touched.files.items()):
            if found is not None:
                self._snapshot.files[path] = found
                changes.append(FileChanged(path, is_ignored=found.is_ignored))
            elif self._snapshot.files.pop(path, None) is not None:
                changes.append(FileChanged(path, removed=True))
        await self._send(changes)

    def _note_told(self, touched: Touched) -> None:
        self._walk_again = self._walk_again or touched.needs_walk
        told = list(self._untold) if touched.needs_walk else touched.files
        for path in told:
            self._untold.pop(path, None)
        if touched.needs_watch:
            self._stop_watching()

    async def _walk(self, *, is_full: bool) -> None:
        """Compare the whole folder with what is known of it, and send the differences."""
        was_asked_for, self._walk_again = self._walk_again, False
        begin = self.clock.monotonic()
        try:
            after = await anyio.to_thread.run_sync(scan, self._root, self._home)
        except OSError as exc:
            self._lose_folder(exc)
            return
        if self._folder_is_away:
            self._folder_is_away = False
            log.info("folder.found", folder=str(self._root))
        before, self._snapshot = self._snapshot, after
        for problem in set(after.problems) - self._told_problems:
            log.warning("folder.problem", problem=problem)
        self._told_problems = set(after.problems)
        if before is None:
            found = [replace(change, at_start=True) for change in changes_between({}, after.files)]
        else:
            found = changes_between(before.files, after.files)
        await self._send(in_order(found, after.files, self._settings.sort_mode, socket.gethostname()))
        if is_full:
            await self._channel.put(FolderScanned())
            self._reconcile_at = self.clock.now() + timedelta(seconds=self._settings.reconcile_interval)
            if not was_asked_for and self._events is not None:
                self._untold = {change.path: self.clock.now() for change in found} | self._untold
        # A folder in which folders come and go all the time must not keep a processor busy.
        self._rest_until = self.clock.now() + timedelta(seconds=self.clock.monotonic() - begin)

    async def _send(self, changes: list[FileChanged]) -> None:
        for change in changes:
            await self._channel.put(change)

    def _lose_folder(self, exc: OSError) -> None:
        """Wait for a DAG folder that has gone; what is known of its files stays, for their DAGs stay too."""
        if not self._folder_is_away:
            self._folder_is_away = True
            log.warning("folder.missing", folder=str(self._root), error=exc.strerror, note="its DAGs are kept")
        self._stop_watching()
        self._walk_again = False

    def _judge_events(self, now: datetime) -> None:
        """Poll from now on if a full scan has found a change that no event has told of."""
        late = [path for path, found_at in self._untold.items() if now >= found_at + EVENT_GRACE]
        self._untold = {path: found_at for path, found_at in self._untold.items() if path not in late}
        if late and self._settings.mode == "auto":
            self._poll(f"no event told of the change of {late[0]}")

    def _poll(self, reason: str) -> None:
        self.is_polling = True
        self._stop_watching()
        interval = self._settings.poll_interval
        log.warning("folder.polled", folder=str(self._root), reason=reason, poll_interval=interval)

    def _note_failed_watch(self) -> None:
        """A watch fails for lack of room, or because a folder went away while it began; only the former lasts."""
        if self._events is None or self._events.failure is None:
            return
        failure = self._events.failure
        self._stop_watching()
        self._walk_again = True
        # Folders may come and go for as long as somebody likes, such as while a large tree is removed.
        if isinstance(failure, FileNotFoundError | NotADirectoryError):
            return
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            self._poll(f"file events are not to be had: {failure}")

    async def _watch_what_was_found(self) -> None:
        """Watch the folders of the last walk, unless they are watched, and have the folder walked once more."""
        if self._snapshot is None or self._folder_is_away or self._walk_again:
            return
        folders = watched_folders(self._root, self._snapshot)
        if self._events is not None and self._watched == folders:
            return
        self._stop_watching()
        self._watched = folders
        assert self._tasks is not None
        self._events = self._new_events(
            folders, step=self._settings.step, debounce=self._settings.debounce, clock=self.clock, wake=self.wake
        )
        self._events.start(self._tasks)
        await self._events.is_ready.wait()
        if self._events.failure is None:
            self._failures = 0
        self._walk_again = True

    def _stop_watching(self) -> None:
        """Stop; events that are on their way are lost with the watch, so nothing is missed from now on."""
        if self._events is not None:
            self._events.stop()
        self._events = None
        self._untold = {}

    def _plan(self) -> None:
        """Set when to tick at the latest."""
        now = self.clock.now()
        self._walk_at = self._reconcile_at
        if self.is_polling or self._folder_is_away:
            self._walk_at = now + timedelta(seconds=self._settings.poll_interval)
        moments = [self._walk_at]
        if self._walk_again:
            moments.append(self._rest_until)
        moments += [found_at + EVENT_GRACE for found_at in self._untold.values()]
        self.due_at = min(moments)


def check_folder(dags_folder: Path, home: Path) -> None:
    """Raise SettingsError unless this is a folder that can be watched. Blocks as long as the file system does."""
    if dags_folder.resolve() == home.resolve():
        raise SettingsError(f"The DAG folder {dags_folder} is the scheduler's home; choose another one for the DAGs")
    try:
        os.scandir(dags_folder).close()
    except FileNotFoundError:
        raise SettingsError(f"The DAG folder {dags_folder} does not exist; make it, or name another one") from None
    except OSError as exc:
        raise SettingsError(f"The DAG folder {dags_folder} cannot be read: {exc.strerror}") from exc
