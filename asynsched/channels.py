"""Every message and every queue, in flow order: the map of the scheduler.

Messages are past facts, grouped here by their subject, and carry keys and frozen values only. They are hints: the
database is the truth, so a lost message costs latency, never correctness.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec import Struct

from asynsched.keys import DagRunKey
from asynsched.protocol.messages import CodeVersion, Ended, Launch, Started, TriggerOutcome, TriggerSpec

T = TypeVar("T")


class _OfDag(Struct, frozen=True):
    dag_id: str


class _OfRun(Struct, frozen=True):
    run: DagRunKey


# Files


class FileChanged(Struct, frozen=True):
    """A DAG file, or a file that one may have imported, was made, edited or removed.

    `path` is relative to the DAG folder, with forward slashes. `forced` parses it even if its content is known.
    `is_ignored`: an ignore file names it, so it is not a DAG file, but one may import it. `at_start`: it was there when
    the scheduler started, and waits behind later changes.
    """

    path: str
    removed: bool = False
    forced: bool = False
    is_ignored: bool = False
    at_start: bool = False


class NameChanged(Struct, frozen=True):
    """A stored variable or connection was set or deleted; an empty name means several of them, perhaps."""

    kind: str
    name: str = ""


class FolderScanned(Struct, frozen=True):
    """The whole DAG folder was walked; every change that the walk found was sent before."""


class InstallationChanged(Struct, frozen=True):
    """Plugins, policies or helper modules beside the DAG folder have changed; `digest` is that of all of them."""

    digest: str


# DAGs and assets: changes that may make a run due


class DagChanged(_OfDag, frozen=True):
    """A stored DAG has changed: it has a new version, was paused or unpaused, or was removed."""


class AssetsUpdated(Struct, frozen=True):
    """The database has new asset events, and DAGs may wait for them."""


class RunEnded(_OfRun, frozen=True):
    """A DagRun has ended, and its end is stored."""

    state: str


# Runs


class RunCreated(_OfRun, frozen=True):
    """A DagRun is in the database, and waits to be started."""


class RunsCreated(_OfDag, frozen=True):
    """The database may have runs of a DAG that no message announced."""


class RunEdited(_OfRun, frozen=True):
    """A user cleared, marked or cancelled this DagRun, or asks its scheduler to."""


class RunCancelled(_OfRun, frozen=True):
    """This program wants a DagRun ended and its tasks killed, and waits for it no longer."""


class RunWatched(_OfRun, frozen=True):
    """A process on this database waits for changes of this DagRun."""


class RunsOrphaned(Struct, frozen=True):
    """Another scheduler has left runs without an owner."""


RunNews = RunCreated | RunsCreated | RunEdited | RunCancelled | RunWatched | RunsOrphaned


# Limits: changes that may let runs and tasks start, or hold them back


class BackfillChanged(_OfDag, frozen=True):
    """A user made, paused or ended a backfill of this DAG."""


class PoolsChanged(Struct, frozen=True):
    """A user changed the pools."""


class SlotsFreed(Struct, frozen=True):
    """Another scheduler has given back slots of pools, or of other shared limits."""


LimitNews = DagChanged | BackfillChanged | PoolsChanged | SlotsFreed


# Tries


NO_RUN = 0
"""In place of a run's row id, for a process that belongs to no run: a trigger host, or a call of listeners."""


class TaskReady(Struct, frozen=True):
    """A task instance was granted its slots and is stored as queued: launch it."""

    dag_run_id: int
    launch: Launch


class TriesStored(Struct, frozen=True):
    """The ends of these tries are durable: the executor may forget them."""

    tokens: tuple[str, ...]


class TryUnwanted(Struct, frozen=True):
    """A queued or running try must be ended."""

    token: str
    reason: str


class TriesReported(Struct, frozen=True):
    """Workers on other machines have reported starts or ends of tries, which are stored.

    Attributes:
        events: What one of them has reported here; empty: another scheduler was told, and the database says what.
    """

    events: tuple[Started | Ended, ...] = ()


class TryReported(Struct, frozen=True):
    """The executor reports that a try began, ended, or was lost."""

    event: Started | Ended


# Triggers and callbacks


class TriggerWanted(Struct, frozen=True):
    """A task instance is stored as deferred: run its trigger, of this code."""

    trigger: TriggerSpec
    code: CodeVersion


class TriggerUnwanted(Struct, frozen=True):
    """No task instance waits for a trigger any more, and that change is stored.

    `is_killed`: Somebody has ended or cleared the task instance before the trigger had an outcome.
    """

    trigger_id: str
    is_killed: bool = False


class TriggerFired(Struct, frozen=True):
    """A trigger has fired or failed."""

    outcome: TriggerOutcome


class OutcomeStored(Struct, frozen=True):
    """The outcome of a watcher's trigger is durable: its host may forget it, and the trigger may go on."""

    trigger_id: str
    event_id: str


class CallbackRequested(Struct, frozen=True):
    """The database has callbacks that wait to be run."""


# Events, for those that read them


class ChangesStored(Struct, frozen=True):
    """Another process has stored changes of runs or task instances."""


class ChangesWatched(Struct, frozen=True):
    """Another process reads events, and wants to be notified of changes for a while."""


# Other schedulers


class SchedulersChanged(Struct, frozen=True):
    """Another scheduler of this database has come or gone."""


class Channel(asyncio.Queue[T]):
    """A queue between services that wakes its one reader, which takes everything. When it is full, senders wait."""

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self._wake: Callable[[], None] | None = None

    def wakes(self, wake: Callable[[], None]) -> None:
        """Call this function after each message: the reader's `wake`."""
        self._wake = wake
        if not self.empty():
            wake()

    def put_nowait(self, item: T) -> None:
        super().put_nowait(item)
        if self._wake is not None:
            self._wake()

    def offer(self, item: T) -> None:
        """Put a message, or drop it if the queue is full: for senders that must never wait."""
        if not self.full():
            self.put_nowait(item)

    def take(self, at_most: int = 10_000) -> list[T]:
        """Return the messages that are there, oldest first, without waiting."""
        return [self.get_nowait() for _ in range(min(self.qsize(), at_most))]


@dataclass(frozen=True, slots=True)
class Channels:
    """All queues, in flow order.

    Evaluator and executor heartbeat form a circle, in which two waiting senders would wait for ever. So their queues
    have no bound of their own: the parallelism bounds granted launches, and so also their ends.
    """

    file_changes: Channel[FileChanged | FolderScanned | NameChanged | InstallationChanged] = field(
        default_factory=lambda: Channel(10_000)
    )
    """watcher, command line, tasks, other schedulers -> parse dispatcher"""
    dag_changes: Channel[DagChanged | AssetsUpdated | RunEnded] = field(default_factory=lambda: Channel(10_000))
    """parse dispatcher, command line, evaluator, asset watchers -> dagrun creator"""
    runs: Channel[RunNews] = field(default_factory=lambda: Channel(10_000))
    """dagrun creator, manual runs, command line, peer watch -> evaluator"""
    limits: Channel[LimitNews] = field(default_factory=lambda: Channel(10_000))
    """dagrun creator, command line, other schedulers, evaluator -> evaluator"""
    ready: Channel[TaskReady | TriesStored | TryUnwanted | TriesReported] = field(default_factory=Channel)
    """evaluator, callback runner, triggerer, requests of workers, other schedulers -> executor heartbeat"""
    reports: Channel[TryReported | TriggerFired] = field(default_factory=Channel)
    """executor heartbeat, triggerer -> evaluator"""
    triggers: Channel[TriggerWanted | TriggerUnwanted | OutcomeStored | TryReported] = field(default_factory=Channel)
    """evaluator, asset watchers, executor heartbeat -> triggerer"""
    asset_watchers: Channel[DagChanged | SchedulersChanged | TriggerFired] = field(default_factory=Channel)
    """dagrun creator, peer watch, triggerer -> asset watchers"""
    callbacks: Channel[CallbackRequested | TryReported] = field(default_factory=Channel)
    """parse dispatcher, evaluator, executor heartbeat -> callback runner"""
    deadlines: Channel[RunCreated] = field(default_factory=lambda: Channel(1))
    """evaluator -> deadline watcher: runs that have deadlines"""
    changes: Channel[ChangesStored | ChangesWatched] = field(default_factory=lambda: Channel(100))
    """command line, other schedulers -> event feed"""
    peers: Channel[SchedulersChanged] = field(default_factory=lambda: Channel(1))
    """other schedulers -> peer watch"""
    run_ends: Channel[RunEnded] = field(default_factory=Channel)
    """evaluator, other schedulers -> run waiters"""
