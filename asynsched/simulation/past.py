"""What is taken for done when a simulation starts: each scheduled DAG's last run before, with all its tasks.

So a span shows its own runs, and not those that a DAG with `catchup` would make up for.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import Connection

from asynsched.errors import TimetableError
from asynsched.keys import DagRunKey
from asynsched.protocol.messages import CodeVersion
from asynsched.scheduling.evaluation.active_run import ActiveRun
from asynsched.scheduling.evaluation.active_task import ActiveTask
from asynsched.scheduling.evaluation.pending import PendingBatch
from asynsched.scheduling.evaluation.structure import compile_structure
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schedule_bounds import restriction
from asynsched.serialization.schema import SerializedDag
from asynsched.states import DagRunState, DagRunType, TaskInstanceState
from asynsched.store.dags.dags import get_plan, list_dags
from asynsched.store.dags.versions import get_version
from asynsched.store.runs.dag_runs import NewRun, insert_run
from asynsched.store.runs.transitions import apply
from asynsched.timetables import (
    CustomTimetable,
    DagRunInfo,
    DataInterval,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    KnownTimetable,
    OnceTimetable,
    decode,
)

MOMENT = timedelta(microseconds=1)
MOST_RUNS = 100_000
"""Runs that are looked past for the last one."""


def store_last_runs(
    conn: Connection, start: datetime, lease_epoch: int, known: Mapping[str, DataInterval]
) -> frozenset[int]:
    """Store each active DAG's last run that was due before `start`, as done. Returns their row ids.

    Args:
        known: The data interval of the last run that each DAG's schedule has made in the home: a DAG that runs once, as
            soon as it may, has done so if it has one.
    """
    stored = []
    for row in list_dags(conn):
        if row.version_id is None:
            continue
        dag = decode_dag(get_version(conn, row.version_id).serialized)
        timetable = decode(dag.timetable)
        is_planned = isinstance(timetable, CustomTimetable)
        try:
            info = _last_planned(conn, dag) if is_planned else last_run_before(dag, timetable, start)
        except TimetableError:
            continue  # the scheduler says so when it looks at the DAG
        last = known.get(dag.dag_id)
        if info is None and isinstance(timetable, OnceTimetable) and last is not None and last.end < start:
            info = DagRunInfo.interval(last.start, last.end)
        if info is not None:
            stored.append(_store(conn, dag, row.version_id, info, lease_epoch))
    return frozenset(stored)


def _last_planned(conn: Connection, dag: SerializedDag) -> DagRunInfo | None:
    """Return the run after which the plan of an author's own timetable begins: it has the runs of the span."""
    plan = get_plan(conn, dag.dag_id)
    return None if plan is None or plan.after is None else DagRunInfo.interval(plan.after.start, plan.after.end)


def last_run_before(dag: SerializedDag, timetable: KnownTimetable, start: datetime) -> DagRunInfo | None:
    """Return the last run of a DAG's schedule that is due before an instant, None when there is none."""
    now = start - MOMENT
    # A schedule that is over has had its last run too.
    limits = restriction(dag)._replace(latest=None)
    if not (limits.catchup and _counts_from_its_start(timetable)):
        # The newest run is given without those before it.
        limits = limits._replace(catchup=False)
    last = timetable.next_run(None, limits, now)
    # What runs at once when it is first looked at has not run yet.
    if last is None or last.run_after >= now:
        return None
    for _ in range(MOST_RUNS):
        following = timetable.next_run(last.data_interval, limits, now)
        if following is None or not last.run_after < following.run_after < now:
            break
        last = following
    return last


def _counts_from_its_start(timetable: KnownTimetable) -> bool:
    """Whether a run can only be found by way of all those before it."""
    return isinstance(timetable, DeltaTriggerTimetable | DeltaDataIntervalTimetable)


def _store(conn: Connection, dag: SerializedDag, version_id: int, info: DagRunInfo, lease_epoch: int) -> int:
    at = info.run_after
    new = NewRun.of_schedule(dag.dag_id, DagRunType.SCHEDULED, info, queued_at=at)
    run = ActiveRun(
        id=insert_run(conn, new),
        key=DagRunKey(dag.dag_id, new.run_id),
        structure=compile_structure(dag),
        code=CodeVersion("", ""),
        version_id=version_id,
        run_type=new.run_type,
        run_after=at,
        queued_at=at,
        state=DagRunState.SUCCESS,
        reason="before the simulation",
        ended_at=at,  # not when it started: nobody knows how long it took, and averages are to leave it out
    )
    pending = PendingBatch("", lease_epoch)
    pending.touch_run(run)
    tasks = [
        ActiveTask(run, task, state=TaskInstanceState.SUCCESS, try_number=1, started_at=at, ended_at=at)
        for task in dag.tasks
    ]
    for task in tasks:
        pending.touch(task)
    apply(conn, pending.batch())
    return run.id
