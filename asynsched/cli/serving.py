"""A scheduler in the foreground: its first messages, its stop and the tries that delay it, and its summary."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

import anyio
from sqlalchemy import Connection

from asynsched._version import __version__
from asynsched.cli import live_on
from asynsched.cli.airflow_cfg import without_effect
from asynsched.cli.command import fail_if_wanted
from asynsched.cli.logging import configure_logging
from asynsched.cli.output import command_line, have, note, printable, some_of
from asynsched.cli.page_process import serve_beside
from asynsched.cli.web import serve_web
from asynsched.clock import Clock
from asynsched.errors import AsynschedError, NotServing, SettingsError, Standstill, ungrouped
from asynsched.health import Health
from asynsched.home import hold_home
from asynsched.keys import instance_name
from asynsched.loggers import get_logger
from asynsched.queries.import_errors import all_import_errors
from asynsched.queries.users import ROLES
from asynsched.results import Running, RunningTry
from asynsched.scheduler import Scheduler
from asynsched.settings import Settings
from asynsched.states import DagRunState
from asynsched.store.engines.opening import open_direct
from asynsched.store.engines.urls import without_secrets
from asynsched.store.runs.dag_runs import count_ended_since, failed_since
from asynsched.web.server import Listener, open_listener
from sandbox.confine import available, close_memory

log = get_logger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST_RUNS = 10
"""Failed runs that the summary names one by one."""
LEAST_SECONDS = 2.0
"""Shortest time between two reports of a stop, when other tries run than the last report named."""
MOST_SECONDS = 10.0
"""Time between two reports while the same tries run."""


@dataclass(frozen=True, slots=True)
class StopRules:
    """The conditions that end a scheduler without a signal: the first one met does."""

    until_idle: bool = False
    num_runs: int | None = None
    seconds: float | None = None
    fail_on: frozenset[str] = frozenset()
    """The problems that --fail-on names, which make an end by `until_idle` have exit code 1."""


class ForcedStop(AsynschedError):
    """A second signal came while the scheduler was stopping."""


def serve_until_stopped(
    settings: Settings, rules: StopRules, options: Sequence[str] = (), like_airflow: Sequence[str] | None = None, *,
    located: Callable[[str], str] = str,
) -> None:  # fmt: skip
    """Run a scheduler in this process, whose memory and environment its tasks cannot read.

    Args:
        options: The options of commands that work on the same home and database.
        like_airflow: The settings that Airflow's configuration gives, for the log; None: it does not count.
        located: Adds to a problem of a setting the place where that was set.

    Raises:
        AsynschedError: It cannot start: a setting, the home or the database is at fault.
        Standstill: It was to end when idle, and there are runs that cannot go on.
        ForcedStop: A second signal ended it at once.
    """
    # Tasks are processes of the same user, and the environment may have the password of the database.
    close_memory()
    manager = ServiceManager(os.environ, os.getpid())
    since = Clock().now()
    live_on()
    configure_logging(settings.log, options)
    if like_airflow is not None:
        log.info("settings.like_airflow", airflow_cfg=settings.airflow_cfg or "none", taken="; ".join(like_airflow))
    for sentence in without_effect(settings, os.environ) if like_airflow is not None else ():
        log.warning("settings.no_effect", reason=sentence)
    if (role := settings.web.default_role) and role not in ROLES:
        problem = f"web.default_role: {role!r} is none of {', '.join(ROLES)}: only DAGs' access_control gives it rights"
        log.warning("settings.unknown_role", reason=located(problem))
    try:
        with ungrouped(), telemetry(settings):
            asyncio.run(_serve(settings, rules, manager))
    except Standstill:
        tell_what_came_of_it(settings, since, options=options)
        raise
    if rules.until_idle:
        tell_what_came_of_it(settings, since, rules.fail_on, options)


async def _serve(settings: Settings, rules: StopRules, manager: "ServiceManager") -> None:
    scheduler = Scheduler(settings=settings)
    failures: list[AsynschedError] = []
    signalled = anyio.Event()
    try:
        listener = open_listener(settings.web)
    except SettingsError:
        if settings.home_path.is_dir():
            with hold_home(settings.home_path):  # raises HomeInUse, if a scheduler of this home listens there
                pass
        raise
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_accompany, scheduler, rules, failures, listener)
        tasks.start_soon(manager.accompany, scheduler, scheduler.clock)
        tasks.start_soon(tell_of_stop, scheduler, signalled)
        async with _signals_stop(scheduler, manager, signalled):
            await scheduler.serve()
        tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]


@asynccontextmanager
async def _signals_stop(scheduler: Scheduler, manager: "ServiceManager", signalled: anyio.Event) -> AsyncIterator[None]:
    """In the block, the first SIGINT, SIGTERM or SIGHUP stops the scheduler; the second kills running tries.

    The third ends this process, even if the database does not answer: the next scheduler does the rest. After this
    block the handlers are those from before. The first signal sets `signalled`.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]  # as nohup wants it
    forced = False
    with anyio.CancelScope() as scope:

        def stop(number: signal.Signals) -> None:
            nonlocal forced
            if signalled.is_set():
                if forced:
                    note("Error: Left by a third signal, before everything was stored: the next scheduler does that.")
                    os._exit(1)
                forced = True
                hint = "Ctrl-C again leaves without storing it"
                log.info("scheduler.stopping_at_once", signal=number.name, hint=hint)
                scheduler.hurry()
                if not scheduler.started.is_set():
                    scope.cancel()
                return
            signalled.set()
            log.info("scheduler.stopping", signal=number.name, hint="Ctrl-C again kills running tries")
            manager.tell("STOPPING=1", "STATUS=Waiting for running tasks")
            scheduler.request_stop()

        for number in before:
            loop.add_signal_handler(number, stop, number)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)
    if forced:
        raise ForcedStop("Stopped at once by a second signal.")


async def _accompany(
    scheduler: Scheduler, rules: StopRules, failures: list[AsynschedError], listener: Listener | None
) -> None:
    """Introduce the scheduler once it has started, serve its page, and ask it to stop when a first rule is met.

    The reason why a rule can never be met is added to `failures`.
    """
    await scheduler.started.wait()
    _introduce(scheduler.settings)
    if listener is None:
        await _stop_by(rules, scheduler, failures)
        return
    async with anyio.create_task_group() as tasks:
        if scheduler.settings.workers.addresses:  # only a scheduler answers workers
            tasks.start_soon(serve_web, scheduler.web(checks_host=True), listener, scheduler.settings)
        else:
            tasks.start_soon(serve_beside, scheduler.settings, listener, scheduler.clock)
        await _stop_by(rules, scheduler, failures)


async def _stop_by(rules: StopRules, scheduler: Scheduler, failures: list[AsynschedError]) -> None:
    waits: dict[str, Callable[[], Awaitable[object]]] = {}
    if rules.until_idle:
        waits["idle"] = scheduler.wait_idle
    if rules.num_runs is not None:
        waits["runs ended"] = partial(scheduler.wait_runs, rules.num_runs)
    if rules.seconds is not None:
        waits["time is over"] = partial(Clock().sleep, timedelta(seconds=rules.seconds))
    if not waits:
        return
    async with anyio.create_task_group() as waiting:

        async def first(reason: str, wait: Callable[[], Awaitable[object]]) -> None:
            try:
                await wait()
            except NotServing:
                return  # something else has stopped it
            except Standstill as exc:
                failures.append(exc)
                reason = "standstill"
            waiting.cancel_scope.cancel()
            log.info("scheduler.stopping", reason=reason)

        for reason, wait in waits.items():
            waiting.start_soon(first, reason, wait)
    scheduler.request_stop()


def _introduce(settings: Settings) -> None:
    """Print the folder, the home and the database, and how strictly parses are confined."""
    strength = available()
    home, database = settings.home_path, without_secrets(settings.database_url)
    if settings.log.format == "json":
        log.info(
            "scheduler.starting", version=__version__, dags_folder=str(settings.dags_path), home=str(home),
            database=database, confinement=", ".join(strength.enforced) or "none", not_enforced=strength.missing,
            stricter=strength.stricter, executor=settings.executor, parallelism=settings.parallelism,
            parse_processes=settings.parse.processes,
        )  # fmt: skip
        return
    note(f"asynsched {__version__}")
    note(f"  DAG folder   {settings.dags_path}")
    note(f"  state        {home}, {database}")
    for line in strength.lines if settings.parse.confinement != "off" else ("off, by the setting parse.confinement",):
        note(f"  confinement  {line}")
    note(f"  tasks        {settings.executor} executor, {settings.parallelism} at once")
    note(f"  parses       {settings.parse.processes} at once")
    if settings.log.level == "info":
        note("  shown        runs, and tries that fail; every try with -v")


async def tell_of_stop(scheduler: Scheduler, signalled: anyio.Event) -> None:
    """Report the tries that a scheduler waits for, from the request to stop until it has stopped.

    Args:
        signalled: Set if a signal has requested the stop.
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
        if line and settings.log.format == "json":
            log.info("scheduler.waiting", message=line, n_tries=len(running.tries), n_callbacks=running.n_callbacks)
        elif line:
            note(line)
        await clock.sleep(timedelta(seconds=report.next_look(clock.monotonic()) - clock.monotonic()))


class StopReport:
    """Decides when to report the tries that a stopping scheduler waits for, and words the report.

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
        self._told_at = began_at

    def next_line(self, running: Running, at: float, now: datetime, *, by_signal: bool) -> str:
        """Return the line to print now, or an empty text.

        Args:
            at: Now, by the monotonic clock.
            now: The same by the wall clock.
            by_signal: Whether a signal has begun the stop, so that the next one kills the running tries.
        """
        is_asked = at >= self._left_alone_until
        if running.is_nothing or at >= self._over_at or not self._is_due((running, is_asked), at):
            return ""
        self._told, self._told_at = (running, is_asked), at
        counts = ((len(running.tries), "try", "tries"), (running.n_callbacks, "callback", "callbacks"))
        what = " and ".join(f"{n} {one if n == 1 else many}" for n, one, many in counts if n)
        if is_asked:
            line = f"Waiting for {what}, which had to be asked to end, {self._over_at - at:.0f} s at most"
        else:
            line = f"Waiting for {what} to end, {self._left_alone_until - at:.0f} s at most"
        names = f": {some_of([_name(one, now) for one in running.tries])}." if running.tries else "."
        then = "" if is_asked else f" Then they are asked to, and have {self._kill_time:.0f} s for it."
        return f"{line}{names}{then}{' Ctrl-C kills them.' if by_signal else ''}"

    def next_look(self, at: float) -> float:
        """Return the next moment at which a line may be due."""
        moments = (self._told_at + LEAST_SECONDS, self._told_at + MOST_SECONDS, self._left_alone_until)
        return min((moment for moment in moments if moment > at), default=at + MOST_SECONDS)

    def _is_due(self, found: tuple[Running, bool], at: float) -> bool:
        if self._told is None or self._told[1] != found[1]:
            return True
        return at - self._told_at >= (MOST_SECONDS if self._told == found else LEAST_SECONDS)


def _name(one: RunningTry, now: datetime) -> str:
    since = "" if one.started_at is None else f", for {(now - one.started_at).total_seconds():.0f} s"
    return f"{one.dag_id}.{instance_name(one.task_id, one.map_index)} (run {one.run_id}{since})"


def tell_what_came_of_it(
    settings: Settings, since: datetime, fail_on: frozenset[str] = frozenset(), options: Sequence[str] = ()
) -> None:
    """Print how the runs have ended since a scheduler started, and end with code 1 if `fail_on` wants that.

    Args:
        options: The options of commands that work on the same home and database.
    """
    try:
        database = open_direct(settings.database_url)
        try:
            summary = database.read(summarize, since)
        finally:
            database.close()
    except AsynschedError as exc:
        unknown = f"It is not known how the runs have ended: {exc}"
        if fail_on:
            raise AsynschedError(unknown) from exc
        note(unknown)
        return
    if settings.log.format == "json":
        _log(summary)
    else:
        for line in _lines(summary, options):
            note(line)
    n_failed = f"{have(summary.n_failed, 'run')} failed" if summary.n_failed else ""
    n_errors = f"{have(len(summary.files), 'DAG file')} errors" if summary.files else ""
    fail_if_wanted(fail_on, errors=n_errors, failed=n_failed)


class FailedRun(NamedTuple):
    """A failed run, and why it failed."""

    dag_id: str
    run_id: str
    reason: str


class Summary(NamedTuple):
    """How the runs of a scheduler have ended.

    Attributes:
        ended: The number of runs that have ended, by state.
        failed: The first of the failed runs.
    """

    ended: dict[str, int]
    failed: tuple[FailedRun, ...]
    files: tuple[str, ...]

    @property
    def n_failed(self) -> int:
        """The number of failed runs."""
        return self.ended.get(DagRunState.FAILED, 0)

    @property
    def sentences(self) -> tuple[str, str]:
        """How the runs have ended, and which files have errors; the latter is empty for none."""
        states = ", ".join(f"{n} {state}" for state, n in sorted(self.ended.items(), reverse=True))
        ended = f"{have(sum(self.ended.values()), 'run')} ended: {states}." if self.ended else "No run has ended."
        return ended, f"{have(len(self.files), 'DAG file')} errors: {some_of(self.files)}." if self.files else ""


def summarize(conn: Connection, since: datetime) -> Summary:
    """Return the ends of the runs since an instant, and the files that have errors."""
    failed = (FailedRun(run.dag_id, run.run_id, run.reason) for run in failed_since(conn, since, limit=MOST_RUNS))
    files = dict.fromkeys(error.file for error in all_import_errors(conn))
    return Summary(count_ended_since(conn, since), tuple(failed), tuple(files))


def _lines(summary: Summary, options: Sequence[str]) -> Iterator[str]:
    ends, files = summary.sentences
    yield ends
    for run in summary.failed:
        yield f"  {run.dag_id} {run.run_id}: {run.reason}"
        yield f"    {command_line('why', run.dag_id, run.run_id, options=options)}"
    if (n_more := summary.n_failed - len(summary.failed)) > 0:
        yield f"  and {n_more} more: {command_line('runs', 'list', '--state', DagRunState.FAILED, options=options)}"
    if summary.files:
        yield files
        yield f"    {command_line('dags', 'errors', options=options)}"


def _log(summary: Summary) -> None:
    has_trouble = summary.n_failed or summary.files
    (log.warning if has_trouble else log.info)(
        "scheduler.idle",
        message=" ".join(filter(None, summary.sentences)),
        runs=summary.ended,
        failed_runs=[run._asdict() for run in summary.failed],
        files_with_errors=list(summary.files),
    )


class ServiceManager:
    """The service manager that started this process, such as systemd, if it wants notifications (sd_notify(3)).

    Args:
        environment: The manager's variables are removed from it: they are meant for this process, and not for tasks.

    Attributes:
        watchdog: How long the manager waits for a sign of life before it restarts the service; None: it wants none.
    """

    def __init__(self, environment: MutableMapping[str, str], pid: int) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        # A name that begins with @ is in no folder (unix(7), abstract).
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        microseconds = environment.pop("WATCHDOG_USEC", "")
        is_for_us = environment.pop("WATCHDOG_PID", str(pid)) == str(pid)
        self.watchdog: timedelta | None = None
        if self._address and is_for_us and microseconds.isdecimal() and int(microseconds):
            self.watchdog = timedelta(microseconds=int(microseconds))

    def tell(self, *lines: str) -> None:
        """Send a notification, e.g. `READY=1`. Never blocks; one that cannot be sent is dropped."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as exc:
            log.warning("service_manager.not_told", about=lines[0], error=str(exc))

    async def accompany(self, scheduler: Scheduler, clock: Clock) -> None:
        """Report that a scheduler is ready, and then that it is alive, unless one of its loops is stuck.

        A scheduler that waits for its database is alive. Signs of life are sent three times as often as needed.
        """
        await scheduler.started.wait()
        self.tell("READY=1", f"STATUS=Serving {printable(str(scheduler.settings.dags_path))}")
        if self.watchdog is None:
            return
        with suppress(NotServing):
            is_stuck = False
            while True:
                is_stuck = self._report(scheduler.health(), is_stuck)
                await clock.sleep(self.watchdog / 3)

    def _report(self, health: Health, was_stuck: bool) -> bool:
        """Send a sign of life, or log once why it is withheld. Returns whether a loop is stuck."""
        stuck = health.stuck_loops
        if not stuck:
            self.tell("WATCHDOG=1")
        elif not was_stuck:
            log.error("scheduler.stuck", loops=list(stuck))
            self.tell(f"STATUS=Stuck: {', '.join(stuck)}")
        return bool(stuck)


@contextmanager
def telemetry(settings: Settings) -> Iterator[None]:
    """Send metrics during the block to a collector by OTLP over HTTP, as the variables OTEL_EXPORTER_OTLP_* say.

    Does nothing unless `monitor.metrics` asks for it, or if a provider has been set up already, e.g. by
    `opentelemetry-instrument`.

    Raises:
        SettingsError: The SDK is not installed.
    """
    if settings.monitor.metrics != "opentelemetry":
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.metrics import get_meter_provider, set_meter_provider
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    except ImportError as exc:
        raise SettingsError(
            f"monitor.metrics: opentelemetry needs a library that is not installed ({exc.name}):"
            " pip install 'asynsched[opentelemetry]'"
        ) from exc
    if isinstance(get_meter_provider(), MeterProvider):
        yield
        return
    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    set_meter_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()
