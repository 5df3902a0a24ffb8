"""Loading of stored rows into the runs and task instances on which the evaluation works.

The code and structure of a DAG version are loaded once for all runs that are pinned to it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from asynsched.errors import DagError, NotFound
from asynsched.loggers import get_logger
from asynsched.protocol.home_files import lay_out_source
from asynsched.protocol.messages import CodeVersion, Route, SourceRef
from asynsched.protocol.plainness import looks_plain
from asynsched.scheduling.evaluation.changes import StoredDeferral
from asynsched.scheduling.evaluation.decisions import SKIPMIXIN_KEY
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.evaluation.structure import DagStructure, compile_structure
from asynsched.scheduling.rules.past_depends import GOOD_STATES, PastTask, is_too_early
from asynsched.scheduling.rules.run_end import RunStop
from asynsched.serialization.decode import decode_dag
from asynsched.slices import Slices
from asynsched.states import COUNTED_TASK_STATES, DagRunState, TaskInstanceState
from asynsched.store.dags.dags import get_sources, get_versions
from asynsched.store.database import Database
from asynsched.store.runs.queue import QueuedRun
from asynsched.store.runs.task_instances import StoredPast, load_task_instances, read_past
from asynsched.store.runs.xcoms import get_xcoms
from asynsched.store.schema import DagRunRow, DagVersionRow, TaskInstanceRow, XComRow

log = get_logger(__name__)

T = TypeVar("T")
MAX_LOADED = 1000
_OF_RUN = {found.name for found in fields(ActiveRun)} & {"key", *DagRunRow.__struct_fields__}
_OF_TASK = {found.name for found in fields(ActiveTask)} & {*TaskInstanceRow.__struct_fields__}
_OF_ROUTE = {*Route.__struct_fields__} & {*TaskInstanceRow.__struct_fields__}
"""The values that a row and its object in memory have under one name."""


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """One DAG version: its structure for decisions, its code for executors."""

    id: int
    structure: DagStructure
    code: CodeVersion


@dataclass(eq=False)
class VersionCache:
    """Loads versions, and writes their sources to the folder from which this machine's executors read them.

    Attributes:
        sources_folder: Folder with one file per source, named by content hash.
        dags_folder: Absolute path to which the sources' paths are relative.
        in_thread: Whether a version is prepared in a thread. A simulation prepares it in the event loop, because its
            order must not depend on when a thread is done.
    """

    database: Database
    sources_folder: Path
    dags_folder: Path
    in_thread: bool = field(default=True, kw_only=True)
    _loaded: OrderedDict[int, LoadedVersion] = field(default_factory=OrderedDict, init=False)

    async def get(self, version_id: int) -> LoadedVersion:
        """Return a version. Raises NotFound if the database has none with that id, DagError if it cannot be decoded."""
        if version_id in self._loaded:
            self._loaded.move_to_end(version_id)
            return self._loaded[version_id]
        for loaded in await self._load([version_id]):
            if isinstance(loaded, DagError):
                raise loaded
            return loaded
        raise NotFound("DAG version", str(version_id))

    async def prepare(self, version_ids: Iterable[int]) -> None:
        """Load versions together before `get` asks for each; `get` raises their errors."""
        missing = set(version_ids) - self._loaded.keys()
        if missing:
            await self._load(sorted(missing)[:MAX_LOADED])

    async def _load(self, version_ids: list[int]) -> list[LoadedVersion | DagError]:
        """Load those of some versions that exist, with one query and one call in a thread."""
        rows, texts = await self.database.read(read_versions, version_ids)
        if self.in_thread:
            # A large DAG takes a while: do not block the event loop.
            found = await anyio.to_thread.run_sync(self._compile, rows, texts)
        else:
            found = self._compile(rows, texts)
        self._loaded |= {loaded.id: loaded for loaded in found if isinstance(loaded, LoadedVersion)}
        while len(self._loaded) > MAX_LOADED:
            self._loaded.popitem(last=False)
        return found

    def _compile(self, rows: list[DagVersionRow], texts: dict[str, str]) -> list[LoadedVersion | DagError]:
        # The files are copies of the database's texts, so they need not be synced: the next scheduler finds and
        # replaces any that a power cut has damaged. A try that finds no intact file asks for the source.
        try:
            for content_hash, text in texts.items():
                lay_out_source(self.sources_folder, content_hash, text)
        except OSError as exc:
            log.warning("sources.not_written", folder=str(self.sources_folder), error=exc.strerror or str(exc))
        return [self._compiled(row, texts) for row in rows]

    def _compiled(self, row: DagVersionRow, texts: dict[str, str]) -> LoadedVersion | DagError:
        try:
            structure = compile_structure(decode_dag(row.serialized))
        except DagError as exc:
            return exc
        sources = tuple(SourceRef(ref.path, ref.module, ref.content_hash) for ref in row.sources)
        is_plain = looks_plain([texts.get(ref.content_hash, "") for ref in sources], [ref.module for ref in sources])
        code = CodeVersion(
            row.version_hash, str(self.dags_folder), sources, is_plain, structure.dag.installation
        )  # fmt: skip
        return LoadedVersion(row.id, structure, code)


@dataclass(eq=False)
class Loader:
    """Reads stored runs, each on the version that it is pinned to. It changes only the runs passed to it."""

    database: Database
    versions: VersionCache
    _slices: Slices = field(default_factory=Slices, init=False)

    async def run(self, row: QueuedRun) -> ActiveRun:
        """Return a stored run without its task instances. Raises NotFound or DagError if its version is not usable."""
        if row.version_id is None:
            raise NotFound("version of the DAG", row.dag_id)
        run = active_run(row, await self.versions.get(row.version_id))
        if run.structure.depend_on_past:
            await self.read_past(run)
        return run

    async def tasks(self, run: ActiveRun) -> list[ActiveTask]:
        """Return the stored task instances of a run, with the skips that branches and short circuits decided."""
        rows = await self.database.read(load_task_instances, run.id)
        decisions: list[XComRow] = []
        if any(run.structure.deciders.values()):
            decisions = await self.database.read(get_xcoms, run.id, key=SKIPMIXIN_KEY)
        tasks = await self._slices.take(active_tasks(run, rows))
        take_decisions(tasks, decisions)
        return tasks

    async def fill(self, run: ActiveRun, *, is_new: bool = False) -> list[ActiveTask]:
        """Add a run's stored task instances, and new ones of all other tasks. Returns the stored ones."""
        stored = [] if is_new else await self.tasks(run)
        known = {task.task_id for task in stored}
        await self._slices.take(run.adding_tasks(chain(run.first_instances(known), stored)))
        return stored

    async def read_past(self, run: ActiveRun) -> bool:
        """Read how the tasks of the run before went; return whether that has changed."""
        if run.logical_date is None:
            return False
        downstream = {task_id: run.structure.downstream[task_id] for task_id in run.structure.depend_on_past}
        catchup = bool(run.structure.dag.catchup)
        never_seen = frozenset(task_id for task_id, past in run.past.items() if not past.has_earlier)
        of_backfill = None if run.backfill_id is None else run.id
        read = partial(read_past, catchup=catchup, never_seen=never_seen, of_backfill=of_backfill)
        stored = await self.database.read(read, run.key.dag_id, run.logical_date, downstream)
        before = run.past
        run.key_before, run.past = (stored.key, past_of(run, stored)) if stored is not None else (None, {})
        return run.past != before


def read_versions(conn: Connection, version_ids: list[int]) -> tuple[list[DagVersionRow], dict[str, str]]:
    """Return those of some versions that exist, and the texts of their sources by content hash."""
    rows = get_versions(conn, version_ids)
    hashes = {ref.content_hash for row in rows for ref in row.sources}
    return rows, get_sources(conn, sorted(hashes))


def active_run(row: QueuedRun, version: LoadedVersion) -> ActiveRun:
    """Return a stored run, without its task instances, on the version that it is pinned to."""
    return ActiveRun(
        **{name: getattr(row, name) for name in _OF_RUN}
        | {"version_id": version.id, "state": DagRunState(row.state), "stop": _decoded(row.stop, RunStop)},
        structure=version.structure,
        code=version.code,
        stored_state=DagRunState(row.state),
        stored_epoch=row.lease_epoch,
    )


def active_tasks(run: ActiveRun, rows: Iterable[TaskInstanceRow]) -> Iterator[ActiveTask]:
    """Yield a run's stored task instances that its version has."""
    return (_active_task(run, row) for row in rows if run.structure.fits(row.task_id, row.map_index))


def take_decisions(tasks: Iterable[ActiveTask], decisions: Iterable[XComRow]) -> None:
    """Note in stored task instances which tasks branches and the like decided to skip."""
    by_key = {(task.task_id, task.map_index): task for task in tasks} if decisions else {}
    for found in decisions:
        if (task := by_key.get((found.task_id, found.map_index))) is not None:
            task.skips = frozenset(msgspec.json.decode(found.value)["skipped"])


def _active_task(run: ActiveRun, row: TaskInstanceRow) -> ActiveTask:
    state = None if row.state is None else TaskInstanceState(row.state)
    task = ActiveTask(
        **{name: getattr(row, name) for name in _OF_TASK}
        | {"state": state, "deferral": _decoded(row.deferral, StoredDeferral)},
        run=run,
        task=run.structure.tasks[row.task_id],
        ignored=frozenset((row.ignored_dependencies or "").split()),
        stored_state=state,
        stored_try=row.try_number,
        is_stored=True,
    )
    if state in COUNTED_TASK_STATES:
        # Where the try has its slots. Its version may say something else: that of the run may be a later one by now.
        task.route = replace(task.route, **{name: getattr(row, name) for name in _OF_ROUTE})
    return task


def _decoded(text: str | None, kind: type[T]) -> T | None:
    return None if text is None else msgspec.json.decode(text, type=kind)


def past_of(run: ActiveRun, stored: StoredPast) -> dict[str, PastTask]:
    """Return the past of each task of a run that depends on the run before."""
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
        is_too_early=is_too_early(structure.tasks[task_id], stored.logical_date, catchup=bool(structure.dag.catchup)),
    )
