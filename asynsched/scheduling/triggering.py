"""Runs that somebody asks for: from the command line, or from an embedding program."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from asynsched.errors import AlreadyExists, DagError, NotFound
from asynsched.keys import DagRunKey
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import MAX_ID_LENGTH, SerializedDag
from asynsched.states import DagRunState, DagRunType
from asynsched.store.audit import record_audit
from asynsched.store.dag_runs import NewRun, get_run, insert_run, logical_date_is_taken
from asynsched.store.dag_versions import get_version
from asynsched.store.dags import get_dag, near_dag_ids
from asynsched.timetables import decode

RUN_ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.~:+-")


def create_manual_run(
    conn: Connection,
    dag_id: str,
    *,
    now: datetime,
    conf: Mapping[str, Any] | None = None,
    run_id: str | None = None,
    logical_date: datetime | None = None,
) -> DagRunKey:
    """Store a queued run of a DAG, to be started at once.

    Args:
        conf: Overrides the DAG's params; validated against their schemas.
        run_id: By default `manual__` and the logical date.
        logical_date: By default the current instant.

    Raises:
        NotFound: There is no such DAG, or its file is gone.
        DagError: A param has no value, or one that its schema forbids; the run_id has odd characters.
        AlreadyExists: There is a run with this run_id or logical date.
    """
    dag = get_dag(conn, dag_id)
    if dag is None or not dag.is_active or dag.version_id is None:
        raise NotFound("DAG", dag_id, near_dag_ids(conn, dag_id))
    serialized = decode_dag(get_version(conn, dag.version_id).serialized)
    validate_conf(serialized, conf or {})
    date = logical_date or _free_date(conn, dag_id, now)
    key = DagRunKey(dag_id, _checked_run_id(run_id or f"{DagRunType.MANUAL}__{date.isoformat()}"))
    if get_run(conn, *key) is not None:
        raise AlreadyExists(f"The DAG {dag_id!r} has a run {key.run_id!r} already; choose another run id.")
    if logical_date_is_taken(conn, dag_id, date):
        raise AlreadyExists(f"The DAG {dag_id!r} has a run of the logical date {date.isoformat()} already.")
    interval = decode(serialized.timetable).infer_manual_data_interval(run_after=date)
    insert_run(
        conn,
        NewRun(
            dag_id=dag_id,
            run_id=key.run_id,
            run_type=DagRunType.MANUAL,
            state=DagRunState.QUEUED,
            logical_date=date,
            data_interval_start=interval.start,
            data_interval_end=interval.end,
            run_after=now,
            queued_at=now,
            conf=dict(conf or {}),
            reason="somebody triggered it",
        ),
    )
    return key


def trigger_by_program(conn: Connection, /, dag_id: str, *, now: datetime, **options: Any) -> DagRunKey:
    """Do what `create_manual_run` does, for an embedding program, and note in the audit that it did."""
    key = create_manual_run(conn, dag_id, now=now, **options)
    record_audit(conn, at=now, actor="program", action="trigger", dag_id=dag_id, run_id=key.run_id)
    return key


def _free_date(conn: Connection, dag_id: str, now: datetime) -> datetime:
    """Return the first instant from now on that is no run's logical date: two triggers may share a moment."""
    while logical_date_is_taken(conn, dag_id, now):
        now += timedelta(microseconds=1)
    return now


def validate_conf(dag: SerializedDag, conf: Mapping[str, Any]) -> None:
    """Check a run's conf, over the defaults of the DAG's params, against their schemas.

    Raises:
        DagError: Names the DAG, the param and what is wrong.
    """
    for name, param in dag.params.items():
        if name not in conf and not param.has_default:
            raise DagError(f"The DAG {dag.dag_id!r} needs a value for its param {name!r}: give it in the conf.")
        if param.schema:
            from jsonschema import Draft202012Validator  # 80 ms, and few DAGs have schemas

            value = conf.get(name, param.value)
            error = next(Draft202012Validator(param.schema).iter_errors(value), None)
            if error is not None:
                raise DagError(f"The DAG {dag.dag_id!r}, param {name!r}: {error.message}")


def _checked_run_id(run_id: str) -> str:
    if len(run_id) > MAX_ID_LENGTH or not run_id or not RUN_ID_CHARACTERS.issuperset(run_id):
        raise DagError(
            f"The run id {run_id[:60]!r} is not one: 1 to {MAX_ID_LENGTH} letters, digits and the characters _.~:+-"
        )
    return run_id
