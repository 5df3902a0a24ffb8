"""The watcher: reports which files of the DAG folder have changed, by events of the kernel where these arrive.

    start ──▶ walk ──▶ watch the folders found ──▶ walk again (changes in between)
                                  │
              events ──▶ touched files; a changed folder, link or ignore file ──▶ walk ──▶ a new watch
              reconcile_interval ──▶ walk; finds unreported changes ──▶ polling
    polling: a walk each poll_interval

A walk compares the folder with the one before, so nothing is lost by a new watch, by a full queue, or while the folder
is away. Walks and looks at files are done by threads.
"""

import hashlib
import os
import socket
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct
from msgspec.structs import replace

from asynsched.airflow.installation import digest_of
from asynsched.channels import Channels, FileChanged, FolderScanned, InstallationChanged
from asynsched.clock import Clock
from asynsched.errors import SettingsError
from asynsched.loggers import get_logger
from asynsched.parsing.looks import shown
from asynsched.parsing.watching.discovery import (
    IGNORE_FILES,
    ROOT,
    VIRTUAL_ENVIRONMENT,
    FolderId,
    FoundFile,
    Snapshot,
    file_at,
    has_events,
    is_candidate,
    join,
    scan,
)
from asynsched.parsing.watching.file_events import FileEvents, NativeEvents
from asynsched.service import Service
from asynsched.settings import Settings
from asynsched.timers import has_come

log = get_logger(__name__)

EVENT_GRACE = timedelta(seconds=3)
"""How late an event may be before it counts as one that never comes."""
MOST_FAILURES = 3
"""How often in a row a watch may fail before the folder is polled."""
MANY_EVENTS = 1000
"""For as many, a walk is cheaper, and also finds changes that an overflowing queue of the kernel has lost."""


class Touched(Struct):
    """The meaning of a burst of events.

    `files` are relative paths with the metadata that each has now, None for one that is gone. `needs_walk` is set when
    folders, links or ignore files changed, `needs_watch` when a watched folder itself was removed or moved: another
    one may have its path, and even its inode, by now.
    """

    files: dict[str, FoundFile | None] = {}
    needs_walk: bool = False
    needs_watch: bool = False


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
        self._others = settings.installation_folders
        self._channel = channels.file_changes
        self._snapshot: Snapshot | None = None
        self._tasks: TaskGroup | None = None
        self._events: FileEvents | None = None
        self._watched: dict[str, FolderId] = {}
        self._failures = 0
        self._walk_again = True
        self._walk_at = clock.now()
        self._reconcile_at = clock.now()
        self._rest, self._rest_until = timedelta(), clock.now()
        self._unreported: dict[str, datetime] = {}
        self._logged_problems: set[str] = set()
        self._folder_is_away = False
        self.is_polling = self._settings.mode == "poll"

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled. Raises SettingsError unless the DAG folder can be watched."""
        await anyio.to_thread.run_sync(check_folder, self._root, self._home)
        if self._settings.mode == "auto" and not await anyio.to_thread.run_sync(has_events, self._root):
            self._poll("its file system reports no changes")
        async with anyio.create_task_group() as self._tasks:
            try:
                await super().run(task_status=task_status)
            finally:
                self._stop_watching()

    async def tick(self, now: datetime) -> None:
        events = set() if self._events is None else self._events.take()
        self._note_failed_watch()
        if events and self._snapshot is not None:
            await self._follow(events)
        is_full = has_come(self._reconcile_at, now, timedelta(seconds=self._settings.reconcile_interval))
        has_rested = self._walk_again and has_come(self._rest_until, now, self._rest)
        if is_full or has_rested or now >= self._walk_at:
            await self._walk(is_full=is_full)
        self._judge_events(self.clock.now())
        if not self.is_polling:
            await self._watch_what_was_found()
        self._plan()

    async def _follow(self, events: set[str]) -> None:
        """Send the changes that events report, at once."""
        assert self._snapshot is not None
        touched = await anyio.to_thread.run_sync(interpret, self._root, self._snapshot, events)
        self._note_reported(touched)
        changes = []
        for path, found in sorted(touched.files.items()):
            if found is not None:
                self._snapshot.files[path] = found
                changes.append(FileChanged(path, is_ignored=found.is_ignored))
            elif self._snapshot.files.pop(path, None) is not None:
                changes.append(FileChanged(path, removed=True))
        await self._send(changes)

    def _note_reported(self, touched: Touched) -> None:
        self._walk_again = self._walk_again or touched.needs_walk
        reported = list(self._unreported) if touched.needs_walk else touched.files
        for path in reported:
            self._unreported.pop(path, None)
        if touched.needs_watch:
            self._stop_watching()

    async def _walk(self, *, is_full: bool) -> None:
        """Walk through the whole folder, and send the differences from the walk before."""
        was_asked_for, self._walk_again = self._walk_again, False
        begin = self.clock.monotonic()
        try:
            syntax = self._settings.ignore_file_syntax
            after = await anyio.to_thread.run_sync(scan, self._root, self._home, self._others, syntax)
        except OSError as exc:
            self._lose_folder(exc)
            return
        if self._folder_is_away:
            self._folder_is_away = False
            log.info("folder.found", folder=str(self._root))
        before, self._snapshot = self._snapshot, after
        for problem in set(after.problems) - self._logged_problems:
            log.warning("folder.problem", problem=problem)
        self._logged_problems = set(after.problems)
        if before is not None and before.installation != after.installation:
            await self._channel.put(InstallationChanged(await anyio.to_thread.run_sync(digest_of, self._others)))
        if before is None:
            found = [replace(change, at_start=True) for change in changes_between({}, after.files)]
        else:
            found = changes_between(before.files, after.files)
        await self._send(in_order(found, after.files, self._settings.sort_mode, socket.gethostname()))
        if is_full:
            await self._channel.put(FolderScanned())
            self._reconcile_at = self.clock.now() + timedelta(seconds=self._settings.reconcile_interval)
            if not was_asked_for and self._events is not None:
                self._unreported = {change.path: self.clock.now() for change in found} | self._unreported
        # A folder in which folders come and go all the time must not keep a processor busy.
        self._rest = timedelta(seconds=self.clock.monotonic() - begin)
        self._rest_until = self.clock.now() + self._rest

    async def _send(self, changes: list[FileChanged]) -> None:
        for change in changes:
            await self._channel.put(change)

    def _lose_folder(self, exc: OSError) -> None:
        """Wait for a DAG folder that is missing; its files stay known, because their DAGs stay too."""
        if not self._folder_is_away:
            self._folder_is_away = True
            log.warning("folder.missing", folder=str(self._root), error=exc.strerror, note="its DAGs are kept")
        self._stop_watching()
        self._walk_again = False

    def _judge_events(self, now: datetime) -> None:
        """Poll from now on if a full scan has found a change that no event has reported."""
        late = [path for path, found_at in self._unreported.items() if now >= found_at + EVENT_GRACE]
        self._unreported = {path: found_at for path, found_at in self._unreported.items() if path not in late}
        if late and self._settings.mode == "auto":
            self._poll(f"no event reported the change of {late[0]}")

    def _poll(self, reason: str) -> None:
        self.is_polling = True
        self._stop_watching()
        interval = self._settings.poll_interval
        log.warning("folder.polled", folder=str(self._root), reason=reason, poll_interval=interval)

    def _note_failed_watch(self) -> None:
        """Walk again after a failed watch: there was no room for it, which lasts, or a folder went away meanwhile."""
        if self._events is None or self._events.failure is None:
            return
        failure = self._events.failure
        self._stop_watching()
        self._walk_again = True
        # Folders may come and go for long, such as while a large tree is removed.
        if isinstance(failure, FileNotFoundError | NotADirectoryError):
            return
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            self._poll(f"file events are not available: {failure}")

    async def _watch_what_was_found(self) -> None:
        """Watch the folders of the last walk, unless they are watched, and walk once more."""
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
        self._tasks.start_soon(self._events.listen, name="file_events")
        await self._events.is_ready.wait()
        if self._events.failure is None:
            self._failures = 0
        self._walk_again = True

    def _stop_watching(self) -> None:
        """Stop the watch. This loses pending events, so no event counts as missing from now on."""
        if self._events is not None:
            self._events.stop()
        self._events = None
        self._unreported = {}

    def _plan(self) -> None:
        now = self.clock.now()
        self._walk_at = self._reconcile_at
        if self.is_polling or self._folder_is_away:
            self._walk_at = now + timedelta(seconds=self._settings.poll_interval)
        moments = [self._walk_at]
        if self._walk_again:
            moments.append(self._rest_until)
        moments += [found_at + EVENT_GRACE for found_at in self._unreported.values()]
        self.due_at = min(moments)


def check_folder(dags_folder: Path, home: Path) -> None:
    """Raise SettingsError unless this is a folder that can be watched. Blocks as long as the file system does."""
    if dags_folder.resolve() == home.resolve():
        raise SettingsError(f"The DAG folder {dags_folder} is the scheduler's home; choose another one for the DAGs")
    try:
        os.scandir(dags_folder).close()
    except FileNotFoundError:
        raise SettingsError(f"The DAG folder {dags_folder} does not exist; create it, or name another one") from None
    except OSError as exc:
        raise SettingsError(f"The DAG folder {dags_folder} cannot be read: {exc.strerror}") from exc


def changes_between(before: Mapping[str, FoundFile], after: Mapping[str, FoundFile]) -> list[FileChanged]:
    """Return the files that were made, edited, removed, ignored or no longer ignored, by path."""
    removed = [FileChanged(path, removed=True) for path in before if path not in after]
    changed = [
        FileChanged(path, is_ignored=found.is_ignored) for path, found in after.items() if before.get(path) != found
    ]
    return sorted(removed + changed, key=lambda change: change.path)


def in_order(changes: Iterable[FileChanged], files: Mapping[str, FoundFile], mode: str, host: str) -> list[FileChanged]:
    """Return the changes as their files are to be parsed; removed files come first.

    `modified_time`: newest first; `random_seeded_by_host`: by chance, the same on each start of one host.

    Source:
        Airflow "file_parsing_sort_mode".
    """

    def place(change: FileChanged) -> tuple[object, ...]:
        path = change.path
        if path not in files:
            return ()
        if mode == "modified_time":
            return -files[path].modified_ns, path
        if mode == "random_seeded_by_host":
            return (hashlib.sha256(f"{host}\n{path}".encode("utf-8", "surrogateescape")).digest(),)
        return (path,)

    return sorted(changes, key=place)


def watched_folders(root: Path, snapshot: Snapshot) -> dict[str, FolderId]:
    """Return the absolute paths of the folders to watch. Names that are not UTF-8 cannot be watched."""
    folders = dict(snapshot.outside)
    for identity, relative in snapshot.folders.items():
        folders[identity] = f"{root}/{relative}" if relative else str(root)
    return {path: identity for identity, path in folders.items() if shown(path) == path}


def interpret(root: Path, snapshot: Snapshot, events: Iterable[str]) -> Touched:
    """Return the files and folders that a burst of events touched. Blocking: it looks at each file.

    Args:
        root: The DAG folder, absolute.
        snapshot: The folder as it was when the watch began.
        events: Absolute paths that events name, below the watched folders.
    """
    touched = Touched()
    watched = watched_folders(root, snapshot)
    for path in map(Path, events):
        folder, name = str(path.parent), path.name
        touched.needs_watch = touched.needs_watch or str(path) in watched
        if str(path) in watched or folder not in watched:
            touched.needs_walk = True
            continue
        if watched[folder] in snapshot.whole and (name.endswith(".py") or _is_folder(path)):
            touched.needs_walk = True
        for relative in _known_as(snapshot, watched[folder], name):
            if relative == ROOT or not is_candidate(relative.rpartition("/")[2]):
                touched.needs_walk = touched.needs_walk or relative == ROOT or _changes_walk(path, name)
                continue
            found = file_at(root / relative, is_ignored=snapshot.is_ignored(relative))
            touched.files[relative] = found
            # A link's target has to be watched, and a folder may be called `x.py`.
            touched.needs_walk = touched.needs_walk or _is_link(path) or _is_folder(path)
    touched.needs_walk = touched.needs_walk or len(touched.files) >= MANY_EVENTS
    return touched


def _known_as(snapshot: Snapshot, folder: FolderId, name: str) -> set[str]:
    """Return the relative paths under which the DAG folder has this file."""
    paths = set(snapshot.links.get((folder, name), ()))
    if folder in snapshot.folders:
        paths.add(join(snapshot.folders[folder], name))
    return paths


_is_folder, _is_link = os.path.isdir, os.path.islink
"""Unlike pathlib's, these say no if nothing may be read there."""


def _changes_walk(path: Path, name: str) -> bool:
    return name in IGNORE_FILES or name == VIRTUAL_ENVIRONMENT or _is_folder(path) or _is_link(path)
