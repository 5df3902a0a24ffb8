"""The log of a try by ranges of bytes: a log of any length costs no more than the part of it that is read.

A part begins and ends with whole lines, unless a line is longer than the part.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import TypeVar

import anyio
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync
from msgspec import Struct

from asynsched.errors import NotFound, StoreUnavailable
from asynsched.executors.log_paths import log_path
from asynsched.executors.own_threads import in_own_thread
from asynsched.executors.store_calls import THREAD
from asynsched.home import LOGS
from asynsched.keys import TaskInstanceKey
from asynsched.queries.context import QueryContext
from asynsched.queries.events import Missed
from asynsched.queries.file_events import FollowedFiles, Follower
from asynsched.queries.log_lines import FoundLine, find_lines, start_of_line, start_of_tail
from asynsched.queries.log_sources import LogSource, opened_log
from asynsched.queries.task_instances import TaskInstanceInfo, is_try_over, list_tries, number_of_newest_try
from asynsched.queries.turns import turns
from asynsched.states import SLOT_TASK_STATES
from asynsched.store.schema import Change

MOST_BYTES = 1024**2
"""Of one part."""
SEARCHES_AT_ONCE = 4
READS_AT_ONCE = 8
"""Parts of logs that are read from the store of logs at once: it may be slow."""
PAUSE = timedelta(milliseconds=50)
"""Shortest time between two looks at a log that is followed: a busy task writes more often than a look is useful."""
LONGEST_PAUSE = timedelta(seconds=5)
"""Longest time between two looks: news may be lost."""
BLIND_PAUSE = timedelta(milliseconds=500)
"""The same where no event reports that a file grows, as on macOS."""


T = TypeVar("T")


class LogPart(Struct, frozen=True):
    """A part of a log: whole lines, unless one is longer than a part.

    Attributes:
        start: Its first byte.
        end: The byte at which the next part begins.
        is_last: Whether nothing follows: the log is read to its end, and its try is over.
        exists: Whether there is a log; a try has none before it begins, or while only another home has it.
        size: The bytes of the whole log at this moment.
    """

    text: str
    start: int
    end: int
    is_last: bool
    exists: bool
    size: int = 0


async def read_log(
    context: QueryContext, key: TaskInstanceKey, try_number: int, *, start: int = 0, n_bytes: int = MOST_BYTES
) -> LogPart:
    """Return a part of a try's log.

    Raises NotFound if there is no such task instance or try, and LogStoreUnavailable if the store that has the log does
    not answer.
    """
    # Read after the state: the log of a try that is over is whole.
    state = await _state(context, key, try_number)
    return await _part(context, key, try_number, state, start, n_bytes)


async def read_log_end(
    context: QueryContext, key: TaskInstanceKey, try_number: int, *, n_bytes: int = MOST_BYTES, until: int | None = None
) -> LogPart:
    """Return the end of a try's log, or the part before the byte `until`. Raises the errors of `read_log`."""
    state = await _state(context, key, try_number)
    read = partial(_read_end, until, min(n_bytes, MOST_BYTES), state.is_over)
    return await _from_log(context, key, try_number, state, read)


async def read_tail(context: QueryContext, key: TaskInstanceKey, try_number: int, n_lines: int) -> LogPart:
    """Return the last lines of a try's log, MOST_BYTES of them at most. Raises the errors of `find_in_log`."""

    def read(log: LogSource | None, is_over: bool) -> LogPart:
        start = 0 if log is None else start_of_tail(log, n_lines)
        found = _read_end(None, MOST_BYTES, is_over, log)
        return found if start <= found.start else _read(start, MOST_BYTES, is_over, log)

    return await _search(context, key, try_number, read)


async def read_lines(
    context: QueryContext, key: TaskInstanceKey, try_number: int, first: int, last: int | None = None
) -> LogPart:
    """Return lines of a try's log by their numbers, MOST_BYTES of them at most. Raises the errors of `find_in_log`.

    Args:
        first: The number of the first line, from 1.
        last: That of the last line; None: as many as fit.
    """

    def read(log: LogSource | None, is_over: bool) -> LogPart:
        start, n_bytes = 0, MOST_BYTES
        if log is not None:
            start = start_of_line(log, first)
            if last is not None:
                n_bytes = min(start_of_line(log, last - first + 2, start=start) - start, MOST_BYTES)
        return _read(start, n_bytes, is_over, log)

    return await _search(context, key, try_number, read)


async def find_in_log(context: QueryContext, key: TaskInstanceKey, try_number: int, wanted: str) -> list[FoundLine]:
    """Return the first lines of a log that have a text, in either case.

    Raises the errors of `read_log`, and AsynschedError if many searches are waiting: each reads a whole log.
    """
    return await _search(context, key, try_number, lambda log, _: [] if log is None else find_lines(log, wanted))


async def _search(
    context: QueryContext, key: TaskInstanceKey, try_number: int, read: Callable[[LogSource | None, bool], T]
) -> T:
    """Read much of a log, in a thread and in turn; `read` learns whether the try is over."""
    state = await _state(context, key, try_number)

    def search() -> T:
        with opened_log(context.home, context.settings, log_path(key, try_number)) as log:
            return read(log, state.is_over)

    return await in_own_thread(search, turns("searches of logs", SEARCHES_AT_ONCE), THREAD)


async def follow_log(
    context: QueryContext, key: TaskInstanceKey, try_number: int, *, start: int, n_bytes: int = MOST_BYTES
) -> AsyncGenerator[LogPart, None]:
    """Yield a log from a byte on, and what is appended to it, until its try is over: the last part says so.

    Close the generator when you leave it early. Raises the errors of `read_log`.
    """
    path, has_news = context.home / LOGS / log_path(key, try_number), True
    following = nullcontext() if context.feed is None else context.following(key.run)
    with _followed().follow(path, context.home) as follower:
        async with following as changes:
            while True:
                is_reported = follower.begin_look()
                # Read after the state: the log of a try that is over is whole.
                if has_news:
                    state = await _state(context, key, try_number)
                while (part := await _part(context, key, try_number, state, start, n_bytes, joins_parts=False)).text:
                    start = part.end
                    yield part
                    if part.is_last:
                        return
                if part.is_last:
                    yield part
                if part.is_last or (context.feed is not None and context.feed.has_ended):
                    return
                has_news = await _has_news(follower, changes, key, LONGEST_PAUSE if is_reported else BLIND_PAUSE)
                await context.clock.sleep(PAUSE)


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
        with suppress(StoreUnavailable):  # the caller finds out
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


async def newest_try(context: QueryContext, info: TaskInstanceInfo) -> int:
    """Return the number of the newest try that has begun; 0 before the first."""
    return await run_sync(number_of_newest_try, context.home, info)


class _TryState(Struct, frozen=True):
    """Whether a try is over, and whether its log may be in the store: not while it runs, or is about to."""

    is_over: bool
    may_be_archived: bool


async def _state(context: QueryContext, key: TaskInstanceKey, number: int) -> _TryState:
    """Return the state of a try. Raises NotFound if there is no such try."""
    found = await context.ask(list_tries, key)
    newest = await newest_try(context, found.of)
    # A try that is about to begin has an empty log.
    if number != newest and all(one.try_number != number for one in found.tries):
        raise NotFound("try", str(number), where=f"the task instance {key.task_id!r} of the run {key.run_id!r}")
    is_busy = found.of.state in SLOT_TASK_STATES and number >= found.of.try_number
    return _TryState(is_try_over(found.of, number, newest), bool(context.settings.log.store) and not is_busy)


async def _part(
    context: QueryContext, key: TaskInstanceKey, number: int, state: _TryState, start: int, n_bytes: int, *,
    joins_parts: bool = True,
) -> LogPart:  # fmt: skip
    read = partial(_read, start, min(n_bytes, MOST_BYTES), state.is_over)
    return await _from_log(context, key, number, state, read, joins_parts=joins_parts)


async def _from_log(
    context: QueryContext, key: TaskInstanceKey, number: int, state: _TryState, read: Callable[[LogSource | None], T],
    *, joins_parts: bool = True,
) -> T:  # fmt: skip
    """Read from a log, in a thread: from that in the home, or else from the store, whose readers take turns."""
    opened = partial(
        opened_log,
        context.home,
        context.settings,
        log_path(key, number),
        joins_parts=joins_parts and state.may_be_archived,
    )

    def read_here() -> T | None:
        with opened(may_be_archived=False) as log:
            return None if state.may_be_archived and (log is None or log.may_be_part) else read(log)

    def read_anywhere() -> T:
        with opened() as log:
            return read(log)

    if (found := await run_sync(read_here)) is not None:
        return found
    return await in_own_thread(read_anywhere, turns("parts of logs in log.store", READS_AT_ONCE), THREAD)


def _read(start: int, n_bytes: int, is_over: bool, log: LogSource | None) -> LogPart:
    if log is None:
        return LogPart("", 0, 0, is_over, exists=False)
    size = log.size
    start = min(max(start, 0), size)
    block = log.read(start, n_bytes)
    end = start + len(block)
    is_whole = end >= size and is_over
    if not is_whole and (line_end := block.rfind(b"\n")) >= 0:
        # What follows is the beginning of a line, or perhaps of a character.
        block = block[: line_end + 1]
        end = start + len(block)
    elif not is_whole and len(block) < n_bytes:
        return LogPart("", start, start, is_last=False, exists=True, size=size)
    return LogPart(block.decode("utf-8", "replace"), start, end, is_whole, exists=True, size=size)


def _read_end(until: int | None, n_bytes: int, is_over: bool, log: LogSource | None) -> LogPart:
    if log is None:
        return LogPart("", 0, 0, is_over, exists=False)
    size = log.size
    end = size if until is None else max(0, min(until, size))
    start = max(0, end - n_bytes)
    block = log.read(start, end - start)
    # Only the end of a line that is longer than the part has no other line behind it.
    if start and (line_end := block.find(b"\n", 0, -1)) >= 0:
        start += line_end + 1
        block = block[line_end + 1 :]
    text = block.decode("utf-8", "replace")
    return LogPart(text, start, end, is_last=is_over and end == size, exists=True, size=size)
