"""Stored rows made into the runs and task instances that the evaluation works on.

The code and structure of a DAG version are loaded once for all runs that are pinned to it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import anyio.to_thread
import msgspec
from sqlalchemy import Connection

from asynsched.errors import DagError, NotFound
from asynsched.executors.base import Held
from asynsched.protocol.home_files import lay_out_source
from asynsched.protocol.messages import CodeVersion, Ended, SourceRef
from asynsched.protocol.plainness import looks_plain
from asynsched.scheduling.evaluation.deferral import decoded
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.evaluation.structure import DagStructure, compile_structure
from asynsched.scheduling.rules.clearing import fits
from asynsched.scheduling.rules.past_depends import GOOD_STATES, PastTask
from asynsched.scheduling.rules.run_stop import decoded as decoded_stop
from asynsched.serialization.decode import decode_dag
from asynsched.states import DagRunState, TaskInstanceState
from asynsched.store.dags.versions import DagVersionRow, get_sources, get_versions
from asynsched.store.database import Database
from asynsched.store.runs.queue import QueuedRun
from asynsched.store.runs.task_instances import StoredPast
from asynsched.store.schema import TaskInstanceRow, XComValue

MAX_LOADED = 1000


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """One DAG version: its structure for decisions, its code for executors."""

    id: int
    structure: DagStructure
    code: CodeVersion


class VersionCache:
    """Loads versions, and lays out their sources where executors of this machine read them.

    Args:
        database: Where versions and sources are stored.
        sources_folder: Folder of one file a source, named by content hash.
        dags_folder: Absolute path that the sources' paths are relative to.
        in_thread: Whether a version is prepared in a thread. A simulation, whose order must not depend on when a
            thread is done, has it done on the spot.
    """

    def __init__(self, database: Database, sources_folder: Path, dags_folder: Path, *, in_thread: bool = True) -> None:
        self._database = database
        self._sources_folder = sources_folder
        self._dags_folder = dags_folder
        self._in_thread = in_thread
        self._loaded: OrderedDict[int, LoadedVersion] = OrderedDict()

    async def get(self, version_id: int) -> LoadedVersion:
        """Return a version. Raises NotFound when the database has none with that id, DagError when it is no good."""
        if version_id in self._loaded:
            self._loaded.move_to_end(version_id)
            return self._loaded[version_id]
        for loaded in await self._load([version_id]):
            if isinstance(loaded, DagError):
                raise loaded
            return loaded
        raise NotFound("DAG version", str(version_id))

    async def prepare(self, version_ids: Iterable[int]) -> None:
        """Load versions together that are going to be asked for; what is wrong with one is said when it is."""
        missing = set(version_ids) - self._loaded.keys()
        if missing:
            await self._load(sorted(missing)[:MAX_LOADED])

    async def _load(self, version_ids: list[int]) -> list[LoadedVersion | DagError]:
        """Load those of some versions that there are, with one look at the database and one turn of a thread."""
        rows, texts = await self._database.read(read_versions, version_ids)
        if self._in_thread:
            # A large DAG takes a while, in which the event loop has other things to do.
            found = await anyio.to_thread.run_sync(self._compile, rows, texts)
        else:
            found = self._compile(rows, texts)
        self._loaded |= {loaded.id: loaded for loaded in found if isinstance(loaded, LoadedVersion)}
        while len(self._loaded) > MAX_LOADED:
            self._loaded.popitem(last=False)
        return found

    def _compile(self, rows: list[DagVersionRow], texts: dict[str, str]) -> list[LoadedVersion | DagError]:
        self._lay_out(texts)
        return [self._compiled(row, texts) for row in rows]

    def _compiled(self, row: DagVersionRow, texts: dict[str, str]) -> LoadedVersion | DagError:
        try:
            structure = compile_structure(decode_dag(row.serialized))
        except DagError as exc:
            return exc
        sources = tuple(SourceRef(ref.path, ref.module, ref.content_hash) for ref in row.sources)
        is_plain = looks_plain([texts.get(ref.content_hash, "") for ref in sources], [ref.module for ref in sources])
        code = CodeVersion(row.version_hash, str(self._dags_folder), sources, is_plain=is_plain)
        return LoadedVersion(row.id, structure, code)

    def _lay_out(self, texts: dict[str, str]) -> None:
        """Write the sources that are not there, or are not what the database has: it is the truth, these are copies.

        So they need not be synced. What a power cut has made of them is seen here, by the next scheduler.
        """
        for content_hash, text in texts.items():
            lay_out_source(self._sources_folder, content_hash, text)


def read_versions(conn: Connection, version_ids: list[int]) -> tuple[list[DagVersionRow], dict[str, str]]:
    """Return those of some versions that there are, and the texts of their sources by content hash."""
    rows = get_versions(conn, version_ids)
    hashes = {ref.content_hash for row in rows for ref in row.sources}
    return rows, get_sources(conn, sorted(hashes))


def active_run(row: QueuedRun, version: LoadedVersion) -> ActiveRun:
    """Return a stored run, without its task instances, on the version that it is pinned to."""
    return ActiveRun(
        id=row.id,
        key=row.key,
        structure=version.structure,
        code=version.code,
        version_id=version.id,
        run_type=row.run_type,
        run_after=row.run_after,
        queued_at=row.queued_at,
        logical_date=row.logical_date,
        data_interval_start=row.data_interval_start,
        data_interval_end=row.data_interval_end,
        conf=row.conf,
        state=DagRunState(row.state),
        started_at=row.started_at,
        stored_state=DagRunState(row.state),
        stored_epoch=row.lease_epoch,
        stop=decoded_stop(row.stop),
    )


def active_tasks(
    run: ActiveRun, rows: Iterable[TaskInstanceRow], decisions: Iterable[XComValue] = ()
) -> list[ActiveTask]:
    """Return a run's stored task instances, without those that its version has no place for.

    Args:
        run: The run that they belong to.
        rows: Their rows.
        decisions: What branches and short circuits have skipped.
    """
    tasks = [_active_task(run, row) for row in rows if _has_place(run.structure, row)]
    by_key = {(task.task_id, task.map_index): task for task in tasks}
    for found in decisions:
        if (task := by_key.get((found.task_id, found.map_index))) is not None:
            task.skips = frozenset(msgspec.json.decode(found.value)["skipped"])
    return tasks


def _has_place(structure: DagStructure, row: TaskInstanceRow) -> bool:
    task = structure.tasks.get(row.task_id)
    return fits(task, row.map_index, is_mapped=task is not None and structure.is_mapped(row.task_id))


def _active_task(run: ActiveRun, row: TaskInstanceRow) -> ActiveTask:
    state = None if row.state is None else TaskInstanceState(row.state)
    return ActiveTask(
        run=run,
        task=run.structure.tasks[row.task_id],
        map_index=row.map_index,
        state=state,
        reason=row.reason,
        try_number=row.try_number,
        max_tries=row.max_tries,
        machine_kills=row.machine_kills,
        token=row.token,
        scheduled_at=row.scheduled_at,
        queued_at=row.queued_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        next_try_at=row.next_try_at,
        rendered_map_index=row.rendered_map_index,
        result_length=row.result_length,
        deferral=decoded(row.deferral),
        ignored=frozenset((row.ignored_dependencies or "").split()),
        stored_state=state,
        stored_try=row.try_number,
        is_stored=True,
    )


_HAVE_PROCESSES = frozenset({TaskInstanceState.RUNNING, TaskInstanceState.RESTARTING})


def lost_tries(tasks: Iterable[ActiveTask], held: Held, boot_mark: str, now: datetime) -> Iterator[Ended]:
    """Yield the end of each try that the executor knows nothing of, and that began, or may have begun.

    A queued one may have begun if it was submitted before the machine was started: the record of that may be lost.

    Args:
        boot_mark: How the tokens begin that were given since then.
    """
    for task in tasks:
        if task.token is None or task.token in held.known:
            continue
        if task.state in _HAVE_PROCESSES:
            reason = "the try was lost: its keeper is gone, and left no record of its end"
        elif task.state is TaskInstanceState.QUEUED and not task.token.startswith(boot_mark):
            reason = "the try was not submitted since the machine was started: it may have begun before that"
        else:
            continue
        yield Ended(task.token, "failed", now, task.started_at, reason, cause="machine")


def past_of(run: ActiveRun, stored: StoredPast) -> dict[str, PastTask]:
    """Return what the run before means to a run's tasks that depend on it."""
    return {task_id: _past_task(stored, task_id, run.structure) for task_id in run.structure.depend_on_past}


def _past_task(stored: StoredPast, task_id: str, structure: DagStructure) -> PastTask:
    downstream = [state for other in structure.downstream[task_id] for state in stored.states.get(other, ())]
    own = stored.states.get(task_id, [])
    return PastTask(
        run_id=stored.key.run_id,
        n_instances=len(own),
        n_bad=sum(state not in GOOD_STATES for state in own),
        n_bad_downstream=sum(state not in GOOD_STATES for state in downstream),
        has_earlier=task_id not in stored.never_seen,
    )
