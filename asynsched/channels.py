"""Every message and every queue, in flow order: the map of the scheduler.

Messages are past facts, and carry keys and frozen values only. They are hints: the database is the truth, so a lost
message costs latency, never correctness.
"""

import asyncio
from dataclasses import dataclass, field

from asynsched.keys import DagRunKey
from sandbox.protocol import Ended, Launch, Started


@dataclass(frozen=True, slots=True)
class FileChanged:
    """A DAG file, or a file that one may have imported, was made, edited or removed.

    `path` is relative to the DAG folder, with forward slashes. `forced` parses it even if its content is known.
    """

    path: str
    removed: bool = False
    forced: bool = False


@dataclass(frozen=True, slots=True)
class DagChanged:
    """What is stored of a DAG has changed: a new version, its pause, its removal."""

    dag_id: str


@dataclass(frozen=True, slots=True)
class RunCreated:
    """A DagRun is in the database, and waits to be started."""

    run: DagRunKey


@dataclass(frozen=True, slots=True)
class TaskReady:
    """A task instance was granted its slots and is stored as queued: launch it."""

    launch: Launch


@dataclass(frozen=True, slots=True)
class TaskFinished:
    """A try began or ended; also the news that a try was lost."""

    event: Started | Ended


@dataclass(frozen=True, slots=True)
class Channels:
    """All queues, bounded, in flow order. Full means: the sender waits."""

    file_changes: asyncio.Queue[FileChanged] = field(default_factory=lambda: asyncio.Queue(10_000))
    """watcher -> parse dispatcher"""
    dag_changes: asyncio.Queue[DagChanged] = field(default_factory=lambda: asyncio.Queue(10_000))
    """parse dispatcher, command line -> dagrun creator"""
    active_runs: asyncio.Queue[RunCreated] = field(default_factory=lambda: asyncio.Queue(10_000))
    """dagrun creator, trigger -> evaluator"""
    ready: asyncio.Queue[TaskReady] = field(default_factory=asyncio.Queue)
    """evaluator -> executor heartbeat: granted launches, so never more than the parallelism"""
    finished: asyncio.Queue[TaskFinished] = field(default_factory=asyncio.Queue)
    """executor heartbeat -> evaluator: two for each granted launch at most"""
