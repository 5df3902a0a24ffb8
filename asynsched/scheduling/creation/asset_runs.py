"""Runs that assets trigger: made in the transaction that takes the events out of the DAG's queue.

Source: Apache Airflow's `_create_dag_runs_asset_triggered`. Such a run has no logical date and no data interval. It
consumes every event that waits for its DAG, also those that the condition did not need.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from asynsched.scheduling.rules.asset_condition import evaluate
from asynsched.states import DagRunState, DagRunType
from asynsched.store.assets.queue import (
    ArrivedAsset,
    PendingEvent,
    arrived_assets,
    consume,
    drop_surplus,
    mark_examined,
    pending_events,
)
from asynsched.store.dags.dags import DagRow
from asynsched.store.runs.dag_runs import NewRun, count_active_runs, get_run, insert_run
from asynsched.timetables.asset_condition import AssetCondition

_Waiting = Sequence[ArrivedAsset] | Sequence[PendingEvent]
MAX_NAMED = 5
"""Assets that a run's reason names."""


@dataclass(frozen=True, slots=True)
class Triggered:
    """What the events that wait for a DAG have come to.

    Attributes:
        created: run_id of the run that they have triggered.
        is_held_back: They are enough for a run, but `max_active_runs` are active.
        waits_for: What is missing for a run, for a person; empty if nothing is.
    """

    created: str | None = None
    is_held_back: bool = False
    waits_for: str = ""


def trigger_by_assets(conn: Connection, dag: DagRow, condition: AssetCondition | None, now: datetime) -> Triggered:
    """Create a run of a DAG if the events that it waits for have arrived.

    Args:
        condition: What it waits for; None when it waits for no asset.
    """
    if condition is None:
        return Triggered()
    # However many events there are, it is their assets that decide.
    arrived = arrived_assets(conn, dag.dag_id)
    found = _judged(conn, dag, condition, arrived)
    if found.created is not None:
        pending = pending_events(conn, dag.dag_id)
        # Others may have consumed some of them in the meantime.
        found = _judged(conn, dag, condition, pending)
    if found.created is None:
        drop_surplus(conn, dag.dag_id, arrived)
        if arrived and not found.is_held_back:
            mark_examined(conn, dag.dag_id)
        return found
    run_after = _newest(pending)
    row_id = insert_run(
        conn,
        NewRun(
            dag_id=dag.dag_id,
            run_id=found.created,
            run_type=DagRunType.ASSET_TRIGGERED,
            state=DagRunState.QUEUED,
            logical_date=None,
            data_interval_start=None,
            data_interval_end=None,
            run_after=run_after,
            queued_at=now,
            reason=_reason(pending),
        ),
    )
    consume(conn, row_id, dag.dag_id, pending)
    return found


def foresee_assets(conn: Connection, dag: DagRow, condition: AssetCondition | None) -> Triggered:
    """Return what `trigger_by_assets` would do now. Nothing is written."""
    return Triggered() if condition is None else _judged(conn, dag, condition, arrived_assets(conn, dag.dag_id))


def _judged(conn: Connection, dag: DagRow, condition: AssetCondition, waiting: _Waiting) -> Triggered:
    verdict = evaluate(condition, [item.asset for item in waiting])
    if dag.is_paused or not verdict.met:
        return Triggered(waits_for=verdict.reason)
    if count_active_runs(conn, [dag.dag_id], dag.max_active_runs)[dag.dag_id] >= dag.max_active_runs:
        return Triggered(is_held_back=True)
    return Triggered(created=_free_run_id(conn, dag.dag_id, _newest(waiting)))


def _newest(waiting: _Waiting) -> datetime:
    return max(item.created_at for item in waiting)


def _free_run_id(conn: Connection, dag_id: str, run_after: datetime) -> str:
    """Return a run_id after the time of the newest event; events of the same moment may have triggered a run before."""
    plain = run_id = f"{DagRunType.ASSET_TRIGGERED}__{run_after.isoformat()}"
    number = 1
    while get_run(conn, dag_id, run_id) is not None:
        number += 1
        run_id = f"{plain}_{number}"
    return run_id


def _reason(pending: list[PendingEvent]) -> str:
    names = list(dict.fromkeys(event.asset.name for event in pending))
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"assets were updated: {', '.join(names[:MAX_NAMED])}{more}"
