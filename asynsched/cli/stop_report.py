"""What a scheduler that stops waits for: which tries, for how long at most, and how to end them at once."""

from datetime import datetime, timedelta

import anyio
import structlog

from asynsched.cli.rendering import note, some_of
from asynsched.errors import NotServing
from asynsched.results import Running, RunningTry
from asynsched.scheduler import Scheduler
from asynsched.settings import Settings

log = structlog.get_logger(__name__)

PAUSE = timedelta(milliseconds=200)
"""Between two looks at what still runs."""
LEAST_SECONDS = 2.0
"""Between two lines, where other tries run than were told of."""
MOST_SECONDS = 10.0
"""Between two lines, where the same run still."""


class StopReport:
    """Decides when to say what is waited for, and says it in words.

    Args:
        grace: How long tries are left alone, seconds.
        kill_time: How long they have to end themselves after that, seconds.
        began_at: When the stop began, seconds of a monotonic clock.
    """

    def __init__(self, grace: float, kill_time: float, began_at: float) -> None:
        self._left_alone_until = began_at + grace
        self._over_at = began_at + grace + kill_time
        self._kill_time = kill_time
        self._told: tuple[Running, bool] | None = None
        self._told_at = 0.0

    def next_line(self, running: Running, at: float, now: datetime, *, by_signal: bool) -> str:
        """Return what is to be said now; empty for nothing.

        Args:
            running: What runs.
            at: The present moment of the monotonic clock.
            now: The present instant.
            by_signal: Whether a signal has begun the stop, so that the next one ends it.
        """
        is_asked = at >= self._left_alone_until
        if running.is_nothing or at >= self._over_at or not self._is_due((running, is_asked), at):
            return ""
        self._told, self._told_at = (running, is_asked), at
        what = _what(running)
        if is_asked:
            line = f"Waiting for {what}, which had to be asked to end, {self._over_at - at:.0f} s at most"
        else:
            line = f"Waiting for {what} to end, {self._left_alone_until - at:.0f} s at most"
        names = f": {some_of([_name(one, now) for one in running.tries])}." if running.tries else "."
        then = "" if is_asked else f" Then they are asked to, and have {self._kill_time:.0f} s for it."
        return f"{line}{names}{then}{' Ctrl-C kills them.' if by_signal else ''}"

    def _is_due(self, found: tuple[Running, bool], at: float) -> bool:
        if self._told is None or self._told[1] != found[1]:
            return True
        return at - self._told_at >= (MOST_SECONDS if self._told == found else LEAST_SECONDS)


def _what(running: Running) -> str:
    parts = [(len(running.tries), "try", "tries"), (running.n_callbacks, "callback", "callbacks")]
    return " and ".join(f"{n} {one if n == 1 else many}" for n, one, many in parts if n)


def _name(one: RunningTry, now: datetime) -> str:
    index = "" if one.map_index < 0 else f"[{one.map_index}]"
    since = "" if one.started_at is None else f", for {(now - one.started_at).total_seconds():.0f} s"
    return f"{one.dag_id}.{one.task_id}{index} (run {one.run_id}{since})"


async def tell_of_stop(scheduler: Scheduler, signalled: anyio.Event) -> None:
    """Say what a scheduler waits for, from when it is asked to stop until it has stopped.

    Args:
        scheduler: It may not have started yet.
        signalled: Whether a signal has asked it to.
    """
    await scheduler.stopping.wait()
    clock, settings = scheduler.clock, scheduler.settings
    report = StopReport(settings.shutdown_grace, settings.lease.kill_time, clock.monotonic())
    while True:
        try:
            running = scheduler.running()
        except NotServing:
            return
        line = report.next_line(running, clock.monotonic(), clock.now(), by_signal=signalled.is_set())
        if line:
            _say(settings, running, line)
        await clock.sleep(PAUSE)


def _say(settings: Settings, running: Running, line: str) -> None:
    if settings.log.format == "json":
        log.info("scheduler.waiting", message=line, n_tries=len(running.tries), n_callbacks=running.n_callbacks)
    else:
        note(line)
