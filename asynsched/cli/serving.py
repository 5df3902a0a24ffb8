"""A scheduler in the foreground: what it says at start, the signals that stop it, and what it then waits for."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import anyio
import structlog

from asynsched._version import __version__
from asynsched.cli import live_on
from asynsched.cli.causes import only_cause
from asynsched.cli.idle_report import tell_what_came_of_it
from asynsched.cli.logging import configure_logging
from asynsched.cli.open_telemetry import telemetry
from asynsched.cli.rendering import note, some_of
from asynsched.cli.service_manager import ServiceManager, service_manager
from asynsched.clock import SystemClock
from asynsched.errors import AsynschedError, NotServing, Standstill
from asynsched.results import Running, RunningTry
from asynsched.scheduler import Scheduler
from asynsched.settings import Settings
from asynsched.store.engines.urls import without_secrets
from sandbox.confine import available
from sandbox.supervision.children import set_readable

log = structlog.get_logger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PAUSE = timedelta(milliseconds=200)
"""Between two looks at what still runs."""
LEAST_SECONDS = 2.0
"""Shortest time between two lines when other tries run than the last line named."""
MOST_SECONDS = 10.0
"""Time between two lines while the same tries run."""


@dataclass(frozen=True, slots=True)
class StopRules:
    """When a scheduler ends without a signal: whatever comes first."""

    until_idle: bool = False
    num_runs: int | None = None
    seconds: float | None = None
    fail_on: frozenset[str] = frozenset()
    """What makes an end by `until_idle` one with exit code 1, as --fail-on names it."""


class ForcedStop(AsynschedError):
    """A second signal came while the scheduler was stopping."""


def serve_until_stopped(settings: Settings, rules: StopRules, options: Sequence[str] = ()) -> None:
    """Run a scheduler in this process, whose memory and environment its tasks cannot read.

    Args:
        settings: All of them.
        rules: When it ends.
        options: Those with which commands work on the same home and database.

    Raises:
        AsynschedError: It cannot start: a setting, the home or the database is at fault.
        Standstill: It was to end when idle, and there are runs that cannot go on.
        ForcedStop: A second signal ended it at once.
    """
    # They are of the same user, and the environment may name the database with its password.
    set_readable(readable=False)
    manager = service_manager()
    since = SystemClock().now()
    live_on()
    configure_logging(settings.log, options)
    try:
        with telemetry(settings):
            asyncio.run(_serve(settings, rules, manager))
    except BaseExceptionGroup as group:
        raise only_cause(group) from group
    except Standstill:
        tell_what_came_of_it(settings, since, options=options)
        raise
    if rules.until_idle:
        tell_what_came_of_it(settings, since, rules.fail_on, options)


async def _serve(settings: Settings, rules: StopRules, manager: ServiceManager) -> None:
    scheduler = Scheduler(settings=settings)
    failures: list[AsynschedError] = []
    signalled = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_accompany, scheduler, rules, failures)
        tasks.start_soon(manager.accompany, scheduler, scheduler.clock)
        tasks.start_soon(tell_of_stop, scheduler, signalled)
        async with _signals_stop(scheduler, manager, signalled):
            await scheduler.serve()
        tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]


@asynccontextmanager
async def _signals_stop(scheduler: Scheduler, manager: ServiceManager, signalled: anyio.Event) -> AsyncIterator[None]:
    """Within, the first SIGINT or SIGTERM asks the scheduler to stop, the second kills what runs and stores that.

    The third ends this process, whatever the database does: what is left to do is the next scheduler's. After this
    block all is as before. The first sets `signalled`.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    forced = False
    with anyio.CancelScope() as scope:

        def stop(number: signal.Signals) -> None:
            nonlocal forced
            if signalled.is_set():
                if forced:
                    note("Error: Left by a third signal, before everything was stored: the next scheduler does that.")
                    os._exit(1)
                forced = True
                log.info("scheduler.stopping_at_once", signal=number.name, again="leaves without storing it")
                scheduler.hurry()
                if not scheduler.started.is_set():
                    scope.cancel()
                return
            signalled.set()
            log.info("scheduler.stopping", signal=number.name, again="kills what runs, and stops at once")
            manager.tell("STOPPING=1", "STATUS=Waiting for running tasks")
            scheduler.request_stop()

        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, stop, number)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)
    if forced:
        raise ForcedStop("Stopped at once by a second signal.")


async def _accompany(scheduler: Scheduler, rules: StopRules, failures: list[AsynschedError]) -> None:
    """Say what the scheduler does once it has started, and ask it to stop when the first of the rules is met.

    `failures` takes why a rule can never be met.
    """
    await scheduler.started.wait()
    _introduce(scheduler.settings)
    waits: dict[str, Callable[[], Awaitable[object]]] = {}
    if rules.until_idle:
        waits["idle"] = scheduler.wait_idle
    if rules.num_runs is not None:
        waits["runs ended"] = partial(scheduler.wait_runs, rules.num_runs)
    if rules.seconds is not None:
        waits["time is over"] = partial(SystemClock().sleep, timedelta(seconds=rules.seconds))
    if not waits:
        return
    async with anyio.create_task_group() as waiting:

        async def first(reason: str, wait: Callable[[], Awaitable[object]]) -> None:
            try:
                await wait()
            except NotServing:
                # Something else has stopped it.
                return
            except Standstill as exc:
                failures.append(exc)
                reason = "standstill"
            waiting.cancel_scope.cancel()
            log.info("scheduler.stopping", reason=reason)

        for reason, wait in waits.items():
            waiting.start_soon(first, reason, wait)
    scheduler.request_stop()


def _introduce(settings: Settings) -> None:
    """Say what is watched, where the state is, and how strong parses are confined."""
    strength = available()
    facts = {
        "dags_folder": str(settings.dags_path),
        "home": str(settings.home_path),
        "database": without_secrets(settings.database_url),
        "confinement": ", ".join(strength.enforced) or "none",
        "not_enforced": strength.missing,
        "stricter": strength.stricter,
        "executor": settings.executor,
        "parallelism": settings.parallelism,
        "parse_processes": settings.parse.processes,
    }
    if settings.log.format == "json":
        log.info("scheduler.starting", version=__version__, **facts)
        return
    note(f"asynsched {__version__}")
    note(f"  DAG folder   {facts['dags_folder']}")
    note(f"  state        {facts['home']}, {facts['database']}")
    for line in strength.lines if settings.parse.confinement != "off" else ("off, by the setting parse.confinement",):
        note(f"  confinement  {line}")
    note(f"  tasks        {settings.executor} executor, {settings.parallelism} at once")
    note(f"  parses       {settings.parse.processes} at once")
    if settings.log.level == "info":
        note("  shown        runs, and tries that fail; every try with -v")


class StopReport:
    """Decides when to report what the stop waits for, and words the report.

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
        """Return the line to print now; empty if there is none.

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
