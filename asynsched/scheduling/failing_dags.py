"""Pauses DAGs whose last runs have all failed: Airflow's `max_consecutive_failed_dag_runs`."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import structlog
from sqlalchemy import Connection

from asynsched.channels import Channels, DagChanged
from asynsched.scheduling.evaluation.run import ActiveRun
from asynsched.states import DagRunState
from asynsched.store.audit import record_audit
from asynsched.store.dags.dags import pause_active
from asynsched.store.runs.dag_runs import last_run_states
from asynsched.store.runs.transitions import Batch, Stale, apply

log = structlog.get_logger(__name__)


class FailedRun(NamedTuple):
    """A failed run of a DAG that is paused after `limit` failed runs in a row."""

    run_row_id: int
    dag_id: str
    limit: int
    ended_at: datetime


def failed_runs(runs: Iterable[ActiveRun], default_limit: int) -> list[FailedRun]:
    """Return the runs whose failure may pause their DAG. A limit of 0 means no limit."""
    found = []
    for run in runs:
        own = run.structure.dag.max_consecutive_failed_dag_runs
        limit = default_limit if own is None else own
        if limit and run.state is DagRunState.FAILED and run.ended_at is not None:
            found.append(FailedRun(run.id, run.key.dag_id, limit, run.ended_at))
    return found


def apply_and_pause(conn: Connection, batch: Batch, failed: Sequence[FailedRun]) -> tuple[Stale, list[FailedRun]]:
    """Write a batch, and pause the DAGs that have now failed too often. Returns the stale rows, and the pausing runs.

    Source:
        Airflow's `DagRun._check_last_n_dagruns_failed`: the newest runs count, ended or not.
    """
    stale = apply(conn, batch)
    return stale, [run for run in failed if run.run_row_id not in stale.runs and _pause(conn, run)]


def _pause(conn: Connection, run: FailedRun) -> bool:
    states = last_run_states(conn, run.dag_id, run.limit)
    if len(states) < run.limit or set(states) != {DagRunState.FAILED}:
        return False
    if not pause_active(conn, run.dag_id, run.ended_at):
        return False
    detail = {"consecutive_failed_dag_runs": run.limit}
    record_audit(conn, at=run.ended_at, actor="scheduler", action="dag.pause", dag_id=run.dag_id, detail=detail)
    return True


def announce_paused(channels: Channels, paused: Iterable[FailedRun]) -> None:
    """Log which DAGs were paused, and notify the services."""
    for run in paused:
        log.warning("dag.paused", dag_id=run.dag_id, reason=f"its last {run.limit} runs have failed")
        channels.dag_changes.offer(DagChanged(run.dag_id))
        channels.limits.offer(DagChanged(run.dag_id))
