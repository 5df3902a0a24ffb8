"""The log of a try by ranges of bytes: a log of any length costs no more than the part of it that is read.

A part begins and ends with whole lines, unless a line is longer than the part.
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import anyio
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync
from msgspec import Struct

from asynsched.errors import NotFound
from asynsched.executors.log_paths import log_path
from asynsched.home import LOGS
from asynsched.keys import TaskInstanceKey
from asynsched.queries.events import Missed
from asynsched.queries.file_events import FollowedFiles, Follower
from asynsched.queries.log_lines import start_of_line, start_of_tail
from asynsched.queries.place import Place
from asynsched.queries.task_instances import TaskInstanceInfo, is_try_over, list_tries, number_of_newest_try
from asynsched.queries.turns import turns
from asynsched.store.schema import Change

MOST_BYTES = 1024**2
"""Of one part."""
MOST_FOUND = 500
"""Lines that a search returns."""
SEARCHES_AT_ONCE = 4
PAUSE = timedelta(milliseconds=50)
"""Shortest time between two looks at a log that is followed: a busy task writes more often than a look is useful."""
LONGEST_PAUSE = timedelta(seconds=5)
"""Longest time between two looks: news may be lost."""
BLIND_PAUSE = timedelta(milliseconds=500)
"""The same where no event reports that a file grows, as on macOS."""


class LogPart(Struct, frozen=True):
    """A part of a log: whole lines, unless one is longer than a part.

    Attributes:
        start: Its first byte.
        end: The byte at which the next part begins.
        is_last: Whether nothing follows: the log is read to its end, and its try is over.
        exists: Whether there is a log; a try has none before it begins, or if another home has it.
        size: The bytes of the whole log at this moment.
    """

    text: str
    start: int
    end: int
    is_last: bool
    exists: bool
    size: int = 0


class FoundLine(Struct, frozen=True):
    """A line with a text that was looked for, and its first byte."""

    start: int
    text: str


async def read_log(
    place: Place, key: TaskInstanceKey, try_number: int, *, start: int = 0, n_bytes: int = MOST_BYTES
) -> LogPart:
    """Return a part of a try's log. Raises NotFound if there is no such task instance or try."""
    # Read after the state: the log of a try that is over is whole.
    is_over = await _is_over(place, key, try_number)
    return await run_sync(_read, _path(place, key, try_number), start, min(n_bytes, MOST_BYTES), is_over)


async def read_log_end(
    place: Place, key: TaskInstanceKey, try_number: int, *, n_bytes: int = MOST_BYTES, until: int | None = None
) -> LogPart:
    """Return the end of a try's log, or the part before the byte `until`. Raises the errors of `read_log`."""
    is_over = await _is_over(place, key, try_number)
    return await run_sync(_read_end, _path(place, key, try_number), until, min(n_bytes, MOST_BYTES), is_over)


async def read_tail(place: Place, key: TaskInstanceKey, try_number: int, n_lines: int) -> LogPart:
    """Return the last lines of a try's log, MOST_BYTES of them at most. Raises the errors of `find_in_log`."""
    is_over, path = await _is_over(place, key, try_number), _path(place, key, try_number)

    def read() -> LogPart:
        start = start_of_tail(path, n_lines)
        found = _read_end(path, None, MOST_BYTES, is_over)
        return found if start <= found.start else _read(path, start, MOST_BYTES, is_over)

    return await run_sync(read, limiter=turns("searches of logs", SEARCHES_AT_ONCE))


async def read_lines(
    place: Place, key: TaskInstanceKey, try_number: int, first: int, last: int | None = None
) -> LogPart:
    """Return lines of a try's log by their numbers, MOST_BYTES of them at most. Raises the errors of `find_in_log`.

    Args:
        first: The number of the first line, from 1.
        last: That of the last line; None: as many as fit.
    """
    is_over, path = await _is_over(place, key, try_number), _path(place, key, try_number)

    def read() -> LogPart:
        start = start_of_line(path, first)
        n_bytes = MOST_BYTES if last is None else start_of_line(path, last - first + 2, start=start) - start
        return _read(path, start, min(n_bytes, MOST_BYTES), is_over)

    return await run_sync(read, limiter=turns("searches of logs", SEARCHES_AT_ONCE))


async def find_in_log(place: Place, key: TaskInstanceKey, try_number: int, wanted: str) -> list[FoundLine]:
    """Return the first lines of a log that have a text, in either case.

    Raises the errors of `read_log`, and AsynschedError if many searches are waiting: each reads a whole log.
    """
    await _is_over(place, key, try_number)
    limiter = turns("searches of logs", SEARCHES_AT_ONCE)
    return await run_sync(_find, _path(place, key, try_number), wanted.lower(), limiter=limiter)


async def follow_log(
    place: Place, key: TaskInstanceKey, try_number: int, *, start: int, n_bytes: int = MOST_BYTES
) -> AsyncGenerator[LogPart, None]:
    """Yield a log from a byte on, and what is appended to it, until its try is over: the last part says so.

    Close the generator when you leave it early. Raises the errors of `read_log`.
    """
    path, has_news = _path(place, key, try_number), True
    following = nullcontext() if place.feed is None else place.following(key.run)
    with _followed().follow(path, place.home) as follower:
        async with following as changes:
            while True:
                is_reported = follower.begin_look()
                # Read after the state: the log of a try that is over is whole.
                is_over = has_news and await _is_over(place, key, try_number)
                while (part := await run_sync(_read, path, start, min(n_bytes, MOST_BYTES), is_over)).text:
                    start = part.end
                    yield part
                    if part.is_last:
                        return
                if part.is_last:
                    yield part
                if part.is_last or (place.feed is not None and place.feed.has_ended):
                    return
                has_news = await _has_news(follower, changes, key, LONGEST_PAUSE if is_reported else BLIND_PAUSE)
                await place.clock.sleep(PAUSE)


async def _has_news(
    follower: Follower, changes: AsyncIterator[Change | Missed] | None, key: TaskInstanceKey, longest: timedelta
) -> bool:
    """Wait until a log has grown or its task instance has changed, or for a time; return False if only the log has."""
    causes = set()

    async def wait_for_log() -> None:
        await follower.changed()
        causes.add("log")
        tasks.cancel_scope.cancel()

    async def wait_for_change(changes: AsyncIterator[Change | Missed]) -> None:
        async for change in changes:
            if isinstance(change, Missed) or (change.task_id, change.map_index) == (key.task_id, key.map_index):
                break
        causes.add("change")
        tasks.cancel_scope.cancel()

    with anyio.move_on_after(longest.total_seconds()):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_log)
            if changes is not None:
                tasks.start_soon(wait_for_change, changes)
    return causes != {"log"}


_files: RunVar[FollowedFiles] = RunVar("followed logs")


def _followed() -> FollowedFiles:
    """Return the followed files of this event loop."""
    try:
        return _files.get()
    except LookupError:
        _files.set(files := FollowedFiles())
        return files


async def newest_try(place: Place, info: TaskInstanceInfo) -> int:
    """Return the number of the newest try that has begun; 0 before the first."""
    return await run_sync(number_of_newest_try, place.home, info)


async def _is_over(place: Place, key: TaskInstanceKey, number: int) -> bool:
    """Return whether a try is over. Raises NotFound if there is no such try."""
    found = await place.ask(list_tries, key)
    newest = await newest_try(place, found.of)
    # A try that is about to begin has an empty log.
    if number != newest and all(one.try_number != number for one in found.tries):
        raise NotFound("try", str(number), where=f"the task instance {key.task_id!r} of the run {key.run_id!r}")
    return is_try_over(found.of, number, newest)


def _path(place: Place, key: TaskInstanceKey, try_number: int) -> Path:
    return place.home / LOGS / log_path(key, try_number)


def _read(path: Path, start: int, n_bytes: int, is_over: bool) -> LogPart:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = min(max(start, 0), size)
            file.seek(start)
            block = file.read(n_bytes)
    except FileNotFoundError:
        return LogPart("", 0, 0, is_over, exists=False)
    end = start + len(block)
    is_whole = end >= size and is_over
    if not is_whole and (line_end := block.rfind(b"\n")) >= 0:
        # What follows is the beginning of a line, or perhaps of a character.
        block = block[: line_end + 1]
        end = start + len(block)
    elif not is_whole and len(block) < n_bytes:
        return LogPart("", start, start, is_last=False, exists=True, size=size)
    return LogPart(block.decode("utf-8", "replace"), start, end, is_whole, exists=True, size=size)


def _read_end(path: Path, until: int | None, n_bytes: int, is_over: bool) -> LogPart:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            end = size if until is None else max(0, min(until, size))
            start = max(0, end - n_bytes)
            file.seek(start)
            block = file.read(end - start)
    except FileNotFoundError:
        return LogPart("", 0, 0, is_over, exists=False)
    # Only the end of a line that is longer than the part has no other line behind it.
    if start and (line_end := block.find(b"\n", 0, -1)) >= 0:
        start += line_end + 1
        block = block[line_end + 1 :]
    text = block.decode("utf-8", "replace")
    return LogPart(text, start, end, is_last=is_over and end == size, exists=True, size=size)


def _find(path: Path, wanted: str) -> list[FoundLine]:
    found: list[FoundLine] = []
    start = 0
    try:
        with path.open("rb") as file:
            while len(found) < MOST_FOUND and (line := file.readline(MOST_BYTES)):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                if wanted in text.lower():
                    found.append(FoundLine(start, text))
                start += len(line)
    except FileNotFoundError:
        return []
    return found
