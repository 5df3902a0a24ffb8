"""Compares two states of the DAG folder: the changes that a new one would make before it is live.

The states come from parses or from the database; `asynsched.previewing` reads them.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from msgspec import Struct

from asynsched.errors import DagError, PlanNeeded
from asynsched.protocol.messages import SourceRef
from asynsched.queries.version_changes import OF_SCHEDULE, DagChange, DagState, dag_change
from asynsched.scheduling.creation.scheduled_runs import runs_after
from asynsched.serialization.schema import FileError, ParseReport, SerializedDag, definitions
from asynsched.store.dags.parse_results import REFUSED, defined_elsewhere
from asynsched.timetables import CustomTimetable, DataInterval, decode
from asynsched.timetables.asset_condition import AssetNames

# The states


class FolderState(Struct, frozen=True):
    """A state of the DAG folder.

    Attributes:
        name: For people, such as the folder or the commit.
        dags: By dag_id.
        errors: Of files and of single DAGs, by file.
        texts: The texts of sources, by content hash; those of DAGs that did not change may be missing.
    """

    name: str
    dags: Mapping[str, DagState] = {}
    errors: Mapping[str, tuple[FileError, ...]] = {}
    texts: Mapping[str, str] = {}


class ActiveRun(Struct, frozen=True):
    """A run that has not ended. `version`: the number of the DAG's version that it began with; None before it began."""

    dag_id: str
    run_id: str
    state: str
    version: int | None


class LiveState(Struct, frozen=True):
    """The present state, as the database has it.

    Attributes:
        active_runs: The runs that have not ended, up to a limit of the reader's.
        paused: Whether each known DAG is paused.
        last: The data interval of each DAG's newest scheduled run.
        pools: The names of the pools; None if they are not known.
    """

    active_runs: tuple[ActiveRun, ...] = ()
    paused: Mapping[str, bool] = {}
    last: Mapping[str, DataInterval] = {}
    pools: frozenset[str] | None = None


# The answer


class FailingFile(Struct, frozen=True):
    """A file of the new state, or a DAG of it, that cannot be used.

    Attributes:
        is_new: Whether it has no such error before the change.
        keeps: The DAGs that stay as they are because of it.
    """

    file: str
    kind: str
    message: str
    line: int | None
    dag_id: str | None
    is_new: bool
    keeps: tuple[str, ...] = ()


class DagSummary(Struct, frozen=True):
    """A DAG that only one of the states has. `is_paused`: whether it begins paused, or is paused now."""

    dag_id: str
    file: str
    schedule: str | None
    n_tasks: int
    is_paused: bool


class NextRuns(Struct, frozen=True):
    """The runs that a schedule makes.

    Attributes:
        schedule: For people; None if the DAG runs only on demand.
        n_due: How many runs are due already and would be created if the DAG is not paused; MOST_DUE means: or more.
        run_after: When the next ones are due.
        error: Why they are not known; empty if they are.
    """

    schedule: str | None
    n_due: int = 0
    run_after: tuple[datetime, ...] = ()
    error: str = ""


class ScheduleChange(Struct, frozen=True):
    """A schedule that is new, gone or changed; None where the state has no such DAG."""

    dag_id: str
    is_paused: bool
    before: NextRuns | None
    after: NextRuns | None


class RunVersion(Struct, frozen=True):
    """A run that is active while its DAG changes or is removed.

    `version`: the number of the version on which it stays; None: it has not begun, and begins with the newest version.
    """

    dag_id: str
    run_id: str
    state: str
    version: int | None
    is_removed: bool


class LostAsset(Struct, frozen=True):
    """An asset that nothing updates any more. `consumers`: the DAGs of the new state whose schedules wait for it."""

    name: str
    uri: str
    producers: tuple[str, ...]
    consumers: tuple[str, ...]


class MissingPool(Struct, frozen=True):
    """A pool that does not exist, and the tasks of the new state that need it, as `DAG.TASK`."""

    pool: str
    tasks: tuple[str, ...]


class PoolLoad(Struct, frozen=True):
    """The simulated use of a pool. `full_seconds`: how long no slot was free."""

    pool: str
    peak_before: int
    peak_after: int
    full_seconds_before: float
    full_seconds_after: float
    longest_wait_seconds_before: float
    longest_wait_seconds_after: float


class Load(Struct, frozen=True):
    """The simulated work of both states in the same span of time.

    `deadlines_missed`: by the new state alone, as `DAG.RUN`.
    """

    start: datetime
    end: datetime
    runs_before: int
    runs_after: int
    task_starts_before: int
    task_starts_after: int
    failed_before: int
    failed_after: int
    deadlines_missed: tuple[str, ...]
    pools: tuple[PoolLoad, ...]


class Preview(Struct, frozen=True):
    """All that a new state of the DAG folder would change. `load` is None without a simulation."""

    at: datetime
    before: str
    after: str
    failing: tuple[FailingFile, ...]
    mended: tuple[str, ...]
    """Files that fail before the change and not after it."""
    added: tuple[DagSummary, ...]
    removed: tuple[DagSummary, ...]
    changed: tuple[DagChange, ...]
    n_unchanged: int
    schedules: tuple[ScheduleChange, ...]
    active_runs: tuple[RunVersion, ...]
    lost_assets: tuple[LostAsset, ...]
    missing_pools: tuple[MissingPool, ...]
    load: Load | None = None


# The states from parses


def state_of(name: str, reports: Iterable[ParseReport], before: FolderState | None = None) -> FolderState:
    """Return the state that a scheduler would store after these parses of all files of a folder.

    As in `parse_results`, a file that fails keeps the DAGs that it has in the state before, and of two files that
    define the same DAG the one that has it keeps it, or else the first by path; a scheduler gives a new DAG to the one
    that it parses first.
    """
    found = sorted(reports, key=lambda report: report.path)
    errors = {report.path: list(report.errors) for report in found}
    dags = {} if before is None else _kept(before, errors)
    owners = {} if before is None else {dag_id: state.file for dag_id, state in before.dags.items()}
    states = {(state.file, state.dag.dag_id): state for report in found for state in _dag_states(report)}
    for dag_id, by_path in definitions(found).items():
        kept_by = dags[dag_id].file if dag_id in dags else None
        keeper = owners[dag_id] if owners.get(dag_id) in by_path else kept_by or min(by_path)
        for path in by_path:
            if path == keeper:
                dags[dag_id] = states[path, dag_id]
            else:
                errors[path].append(FileError(REFUSED, defined_elsewhere(dag_id, keeper, path), dag_id=dag_id))
    texts = {source.content_hash: source.text for report in found for source in report.sources}
    told = {path: tuple(of_file) for path, of_file in errors.items() if of_file}
    return FolderState(name, dags, told, texts if before is None else {**before.texts, **texts})


def _kept(before: FolderState, errors: Mapping[str, list[FileError]]) -> dict[str, DagState]:
    """Return the DAGs that stay because of errors: all of a file, or those that an error names."""
    return {
        dag_id: state
        for dag_id, state in before.dags.items()
        if any(error.dag_id in (None, dag_id) for error in errors.get(state.file, ()))
    }


def _dag_states(report: ParseReport) -> Iterator[DagState]:
    sources = tuple(SourceRef(source.path, source.module, source.content_hash) for source in report.sources)
    for parsed in report.dags:
        yield DagState(report.path, parsed.dag, parsed.version_hash, sources, parsed.plan)


# The comparison


def preview(
    before: FolderState,
    after: FolderState,
    live: LiveState,
    *,
    now: datetime,
    are_paused_at_creation: bool = False,
    load: Load | None = None,
) -> Preview:
    """Return the changes that the state `after` makes.

    Args:
        before: The present state.
        after: Made by `state_of` with the present state.
        live: The present state.
        now: Aware UTC.
        are_paused_at_creation: Whether new DAGs that do not say it themselves begin paused.
        load: The simulated work of both states, which this function does not compute.
    """
    paused = {
        dag_id: live.paused.get(dag_id, _begins_paused(state.dag, are_paused_at_creation))
        for state_of_folder in (before, after)
        for dag_id, state in state_of_folder.dags.items()
    }
    old, new, texts = before.dags, after.dags, {**before.texts, **after.texts}
    changed = tuple(
        dag_change(old[dag_id], state, texts)
        for dag_id, state in sorted(new.items())
        if dag_id in old and (old[dag_id].version_hash, old[dag_id].file) != (state.version_hash, state.file)
    )
    gone = {dag_id for dag_id in old if dag_id not in new}
    touched = gone | {change.dag_id for change in changed}
    return Preview(
        at=now,
        before=before.name,
        after=after.name,
        failing=tuple(_failing(before, after)),
        mended=tuple(sorted(before.errors.keys() - after.errors.keys())),
        added=tuple(_summary(state, paused) for dag_id, state in sorted(new.items()) if dag_id not in old),
        removed=tuple(_summary(old[dag_id], paused) for dag_id in sorted(gone)),
        changed=changed,
        n_unchanged=len(old.keys() & new.keys()) - len(changed),
        schedules=tuple(_schedules(before, after, live, paused, now)),
        active_runs=tuple(
            RunVersion(run.dag_id, run.run_id, run.state, run.version, run.dag_id in gone)
            for run in live.active_runs
            if run.dag_id in touched
        ),
        lost_assets=tuple(_lost_assets(before, after)),
        missing_pools=tuple(_missing_pools(after, live.pools)),
        load=load,
    )


def _begins_paused(dag: SerializedDag, default: bool) -> bool:
    return default if dag.is_paused_upon_creation is None else dag.is_paused_upon_creation


def _failing(before: FolderState, after: FolderState) -> Iterator[FailingFile]:
    kept: dict[str, list[str]] = defaultdict(list)
    for dag_id, state in sorted(after.dags.items()):
        if state is before.dags.get(dag_id):  # not parsed again, but kept
            kept[state.file].append(dag_id)
    for path, errors in sorted(after.errors.items()):
        known = {(error.kind, error.message) for error in before.errors.get(path, ())}
        for error in errors:
            keeps = [dag_id for dag_id in kept[path] if error.dag_id in (None, dag_id)]
            is_new = (error.kind, error.message) not in known
            yield FailingFile(path, error.kind, error.message, error.line, error.dag_id, is_new, tuple(keeps))


def _summary(state: DagState, paused: Mapping[str, bool]) -> DagSummary:
    dag = state.dag
    return DagSummary(dag.dag_id, state.file, dag.schedule_summary or None, len(dag.tasks), paused[dag.dag_id])


# Schedules

MOST_DUE = 1000
"""Due runs are counted up to this number."""
N_NEXT = 3
"""Next runs that are shown of a schedule."""


def _schedules(
    before: FolderState, after: FolderState, live: LiveState, paused: Mapping[str, bool], now: datetime
) -> Iterator[ScheduleChange]:
    for dag_id in sorted(before.dags.keys() | after.dags.keys()):
        old, new = before.dags.get(dag_id), after.dags.get(dag_id)
        if old is not None and new is not None and _schedule_parts(old.dag) == _schedule_parts(new.dag):
            continue
        pair = [None if state is None else next_runs(state, live.last.get(dag_id), now) for state in (old, new)]
        if any(side is not None and side.schedule is not None for side in pair):
            yield ScheduleChange(dag_id, paused[dag_id], *pair)


def _schedule_parts(dag: SerializedDag) -> tuple[Any, ...]:
    dates = (dag.start_date, dag.end_date, dag.catchup)
    of_tasks = tuple((task.start_date, task.end_date) for task in dag.tasks if task.start_date or task.end_date)
    return (*(getattr(dag, name) for name in OF_SCHEDULE), *dates, of_tasks)


def next_runs(state: DagState, last: DataInterval | None, now: datetime) -> NextRuns:
    """Return the runs that a DAG's schedule makes from now on, after the data interval of its last run."""
    dag = state.dag
    schedule = dag.schedule_summary or None
    try:
        timetable = decode(dag.timetable)
        if isinstance(timetable, CustomTimetable):
            # The plan is the answer of its author's code about this time.
            times = [run.run_after for run in state.plan.runs] if state.plan is not None else []
        else:
            times = []
            for info in islice(runs_after(dag, timetable, last, now), MOST_DUE + N_NEXT):
                times.append(info.run_after)
                if len(times) >= N_NEXT and times[-N_NEXT] > now:
                    break
    except PlanNeeded:
        return NextRuns(schedule, error="its own timetable has not been asked")
    except DagError as exc:
        return NextRuns(schedule, error=str(exc))
    coming = [at for at in times if at > now]
    return NextRuns(schedule, min(len(times) - len(coming), MOST_DUE), tuple(coming[:N_NEXT]))


# Assets and pools


def _lost_assets(before: FolderState, after: FolderState) -> Iterator[LostAsset]:
    assets = sorted({names for state in (before, after) for names in _assets(state)})
    old, new = (_producers(state, assets) for state in (before, after))
    for names in assets:
        if old.get(names) and not new.get(names):
            consumers = (dag_id for dag_id, state in sorted(after.dags.items()) if _waits_for(state.dag, names))
            yield LostAsset(names.name, names.uri, tuple(old[names]), tuple(consumers))


def _assets(state: FolderState) -> Iterator[AssetNames]:
    for one in state.dags.values():
        conditions = [] if one.dag.asset_condition is None else [one.dag.asset_condition]
        conditions += [condition for task in one.dag.tasks for condition in (*task.inlets, *task.outlets)]
        for leaf in (leaf for condition in conditions for leaf in condition.leaves()):
            if leaf.asset is not None:
                yield AssetNames(leaf.asset.name, leaf.asset.uri)


def _producers(state: FolderState, assets: Iterable[AssetNames]) -> dict[AssetNames, list[str]]:
    """Return the tasks and watchers that update each asset; the assets of aliases are not known before a task runs."""
    by_reference: dict[tuple[str, str], list[AssetNames]] = defaultdict(list)
    for names in assets:
        by_reference[names.name, ""].append(names)
        by_reference["", names.uri].append(names)
    found: dict[AssetNames, list[str]] = defaultdict(list)
    for dag_id, one in sorted(state.dags.items()):
        for task in one.dag.tasks:
            for outlet in task.outlets:
                asset, reference = outlet.asset, outlet.asset_ref
                named = [] if reference is None else by_reference[reference.name, reference.uri]
                for names in named if asset is None else [AssetNames(asset.name, asset.uri)]:
                    found[names].append(f"{dag_id}.{task.task_id}")
        for watcher in one.dag.watchers:
            found[AssetNames(watcher.asset_name, watcher.asset_uri)].append(f"{dag_id}, watcher {watcher.name}")
    return found


def _waits_for(dag: SerializedDag, names: AssetNames) -> bool:
    condition = dag.asset_condition
    return condition is not None and any(leaf.names(names) for leaf in condition.leaves())


def _missing_pools(after: FolderState, pools: Collection[str] | None) -> Iterator[MissingPool]:
    if pools is None:
        return
    needed: dict[str, list[str]] = defaultdict(list)
    for dag_id, state in sorted(after.dags.items()):
        for task in state.dag.tasks:
            for pool in task.pools.difference(pools):
                needed[pool].append(f"{dag_id}.{task.task_id}")
    yield from (MissingPool(pool, tuple(tasks)) for pool, tasks in sorted(needed.items()))
