"""Runs and tasks in memory, made of a few words, for tests of the evaluation."""

import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from types import MappingProxyType

from asynsched.keys import DagRunKey
from asynsched.protocol.messages import CodeVersion
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.evaluation.ready import ReadyQueues
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.evaluation.structure import compile_structure
from asynsched.serialization.schema import SerializedDag, SerializedTask

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
_ids = count(1)


def task(task_id: str, *downstream: str, **options) -> SerializedTask:
    """Return a serialized task."""
    return SerializedTask(task_id=task_id, task_type="PythonOperator", downstream_task_ids=downstream, **options)


def run_of(tasks: Iterable[SerializedTask], dag_id: str = "dag", run_after: datetime = NOON, **options) -> ActiveRun:
    """Return a queued run of a DAG of these tasks."""
    number = next(_ids)
    dag = SerializedDag(dag_id=dag_id, timetable={"kind": "null"}, tasks=tuple(tasks), **options)
    return ActiveRun(
        id=number,
        key=DagRunKey(dag_id, f"run-{number:06}"),
        structure=compile_structure(dag),
        code=CodeVersion("0" * 64, "/dags"),
        version_id=1,
        run_type="manual",
        run_after=run_after,
        queued_at=run_after,
    )


def evaluation(
    *,
    parallelism: int = 1000,
    pools: Mapping[str, int | None] | None = None,
    max_active_tasks: int = 1000,
    keep_slots_after: timedelta | None = None,
    executors: Mapping[str, int] = MappingProxyType({}),
    at_once: int = sys.maxsize,
) -> Evaluation:
    """Return an evaluation without runs."""
    ready = ReadyQueues(parallelism, max_active_tasks, executors, keep_slots_after)
    ready.resize_pools(dict(pools or {"default_pool": None}))
    tokens = count()
    return Evaluation(
        ready=ready,
        pending=PendingBatch("scheduler", 1),
        new_token=lambda: f"token-{next(tokens)}",
        max_machine_kills=3,
        at_once=at_once,
    )


def started(*runs: ActiveRun, **options) -> Evaluation:
    """Return an evaluation that has started these runs."""
    engine = evaluation(**options)
    for run in runs:
        engine.start_run(run, NOON)
    return engine


def granted(engine: Evaluation, now: datetime = NOON) -> list[ActiveTask]:
    """Return the task instances that are granted now, once that is stored."""
    engine.grant(now)
    found = [*engine.pending.granted]
    engine.pending.mark_stored()
    engine.pending.clear()
    return found
