"""One run of a DAG in this process, task after task: `DAG.test()`.

The scheduler's own evaluation decides. There is no database, no process and no limit, and retries start immediately.
"""

import datetime as dt
import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from asynsched.authoring.dag import DAG
from asynsched.authoring.own_sandbox import own_sandbox
from asynsched.authoring.params import ParamsDict, resolve_params
from asynsched.authoring.supervisor import Supervisor, current_supervisor, set_supervisor
from asynsched.authoring.timezone import convert_to_utc, utcnow
from asynsched.foreground.driver import ForegroundDriver
from asynsched.foreground.interruption import Interruption
from asynsched.foreground.supervisor import MemorySupervisor
from asynsched.protocol.messages import RunContext
from asynsched.states import DagRunState, DagRunType

log = logging.getLogger("asynsched.test")


@dataclass(slots=True)
class ForegroundTask:
    """A task instance of a foreground run, with its result or the exception that made it fail."""

    task_id: str
    map_index: int = -1
    state: str | None = None
    reason: str = ""
    try_number: int = 0
    result: Any = None
    exception: BaseException | None = None
    rendered_map_index: str | None = None


@dataclass(slots=True)
class ForegroundRun:
    """A run in the foreground. `tasks` are in topological order, the instances of a mapped task by their index."""

    dag_id: str
    run_id: str
    state: str = DagRunState.RUNNING
    reason: str = ""
    tasks: tuple[ForegroundTask, ...] = ()

    def task(self, task_id: str, map_index: int = -1) -> ForegroundTask:
        """Return a task instance. Raises KeyError."""
        return {(task.task_id, task.map_index): task for task in self.tasks}[task_id, map_index]


def run_in_foreground(
    dag: DAG,
    *,
    run_after: dt.datetime | None = None,
    logical_date: dt.datetime | None = None,
    conf: Mapping[str, Any] | None = None,
    mark_success_pattern: str | None = None,
    variables: Mapping[str, str] | None = None,
    connections: Mapping[str, Mapping[str, Any]] | None = None,
    interruption: Interruption | None = None,
) -> ForegroundRun:
    """Run all tasks of a DAG once, in this process, with logs on the terminal.

    Args:
        dag: The DAG.
        run_after: The run's `run_after`; now, unless given.
        logical_date: The run's logical date, None for a run without one.
        conf: The run's conf.
        mark_success_pattern: Tasks whose whole task_id matches this regular expression succeed without running.
        variables: Variables that tasks may read; they hide those of the home that `ASYNSCHED_HOME` names.
        connections: The fields of connections, by conn_id; they hide those of the home.
        interruption: Another way to end the run, besides Ctrl-C.

    Raises:
        DagError: The DAG is not coherent, or the conf does not fit its params. Nothing has run then.
    """
    for task_params in (ParamsDict(), *(task.params for task in dag.tasks)):
        resolve_params(dag.params, task_params, conf, owner=f"the conf of DAG {dag.dag_id!r}")
    facts = _run_facts(dag, convert_to_utc(run_after) or utcnow(), convert_to_utc(logical_date, dag.timezone), conf)
    earlier = current_supervisor()
    with ExitStack() as stack:
        stack.callback(set_supervisor, earlier)
        names = _names_of_home(stack) if earlier is None else earlier
        supervisor = MemorySupervisor(variables or {}, connections or {}, names)
        set_supervisor(supervisor)
        stack.enter_context(LogsOnTerminal())
        return _result(_driven(ForegroundDriver(dag, facts, supervisor, mark_success_pattern, interruption)))


def _names_of_home(stack: ExitStack) -> Supervisor | None:
    if not os.environ.get("ASYNSCHED_HOME"):
        return None
    with own_sandbox():
        from asynsched.foreground.stored_names import names_of_home  # it loads the database

    names = names_of_home(os.environ)
    if names is not None:
        stack.callback(names.close)
    return names


def _run_facts(
    dag: DAG, run_after: dt.datetime, logical_date: dt.datetime | None, conf: Mapping[str, Any] | None
) -> RunContext:
    interval = None
    if logical_date is not None:
        interval = dag.timetable.infer_manual_data_interval(run_after=logical_date)
    return RunContext(
        dag_id=dag.dag_id,
        run_id=f"{DagRunType.MANUAL}__{(logical_date or run_after).isoformat()}",
        run_type=DagRunType.MANUAL,
        run_after=run_after,
        logical_date=logical_date,
        data_interval_start=None if interval is None else interval.start,
        data_interval_end=None if interval is None else interval.end,
        started_at=utcnow(),
        conf=dict(conf or {}),
    )


def _driven(driver: ForegroundDriver) -> ForegroundDriver:
    run = driver.run
    log.info("run %s of DAG %s", run.key.run_id, run.key.dag_id)
    driver.drive()
    log.info("run %s: %s (%s)", run.key.run_id, run.state, run.reason)
    return driver


def _result(driver: ForegroundDriver) -> ForegroundRun:
    tasks = []
    for task in driver.run.all_instances():
        key = task.task_id, task.map_index
        end = driver.ends.get(key)
        tasks.append(
            ForegroundTask(
                *key,
                state=task.state,
                reason=task.reason,
                try_number=task.try_number,
                result=driver.results.get(key),
                exception=None if end is None else end.exception,
                rendered_map_index=task.rendered_map_index,
            )
        )
    run = driver.run
    return ForegroundRun(run.key.dag_id, run.key.run_id, run.state, run.reason, tuple(tasks))


class LogsOnTerminal:
    """Shows the logs of tasks on standard error, unless the calling program has set up logging."""

    def __enter__(self) -> None:
        self._handler: logging.Handler | None = None
        self._logger = logging.getLogger("asynsched")
        self._level = self._logger.level
        if not self._logger.hasHandlers():
            self._handler = logging.StreamHandler()
            self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
            self._logger.addHandler(self._handler)
            self._logger.setLevel(logging.INFO)

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            self._logger.removeHandler(self._handler)
            self._logger.setLevel(self._level)
