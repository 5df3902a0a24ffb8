"""A DAG in detail: its tasks, its edges and its params in the newest version, and how its tasks start."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import Connection

from asynsched.queries.context import QueryContext
from asynsched.queries.dag_versions import get_serialized
from asynsched.queries.dags import DagInfo, FileInfo, find_file, get_dag
from asynsched.queries.import_errors import ImportErrorFilter, all_import_errors
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import TEMPLATE, SerializedParam
from asynsched.store.rows import in_common
from asynsched.store.runs.pools import pool_capacities

READS = "each task imports the file again, because it reads a variable or a connection"
FORKED = "each task is a fork of a process that has loaded the file"


class RouteInfo(Struct, frozen=True, kw_only=True):
    """Where a try waits and runs, as a policy says.

    Attributes:
        priority_weight: The total; None: as without a policy.
    """

    pool: str
    pool_slots: int
    queue: str
    executor: str | None
    priority_weight: int | None


class TaskDetails(Struct, frozen=True, kw_only=True):
    """A task of a DAG.

    Attributes:
        task_type: The class of its operator.
        retry_delay: In seconds, as is `execution_timeout`.
        is_mapped: Whether it has an instance for each item of a list.
        routes: Where its tries wait and run, the first one's first, if a policy gives them routes; later tries have the
            last one.
    """

    task_id: str
    task_type: str
    group_id: str | None
    trigger_rule: str
    retries: int
    retry_delay: float
    execution_timeout: float | None
    pool: str
    pool_slots: int
    priority_weight: int
    weight_rule: str
    queue: str
    depends_on_past: bool
    is_mapped: bool
    routes: tuple[RouteInfo, ...]

    @property
    def pools(self) -> set[str]:
        """The pools in which its tries wait."""
        return {route.pool for route in self.routes} or {self.pool}


class Edge(Struct, frozen=True):
    """An edge from a task to one downstream, with its label."""

    source_id: str
    target_id: str
    label: str | None


class DagDetails(DagInfo, frozen=True, kw_only=True):
    """A DAG with its newest version.

    Attributes:
        description: Whole.
        version_number: That of the version.
        assets: The condition on assets that triggers it; None: none does.
        airflow: The setting `airflow` when its file was parsed; None: the file does not import airflow.
        reads: The variables and connections that its file reads when it is parsed, each as `variable NAME`. Empty for
            a user who may not see all DAGs of the file.
        task_start: How its tasks start, and why if that takes longer than necessary.
        missing_pools: The pools that its tasks name and that do not exist: these tasks do not start.
        tasks: In topological order.
    """

    version_number: int
    timezone: str
    start_date: datetime | None
    end_date: datetime | None
    catchup: bool | Literal["latest"]
    doc_md: str | None
    assets: str | None
    params: dict[str, SerializedParam]
    airflow: str | None
    reads: tuple[str, ...]
    task_start: str
    missing_pools: tuple[str, ...]
    tasks: tuple[TaskDetails, ...]
    edges: tuple[Edge, ...]


class _Found(NamedTuple):
    info: DagInfo
    file: FileInfo
    version_number: int
    serialized: bytes
    obstacles: Sequence[str]
    pools: frozenset[str]


async def read_details(context: QueryContext, dag_id: str, seen_dags: frozenset[str] | None = None) -> DagDetails:
    """Return an active DAG with its newest version. Raises NotFound.

    Args:
        seen_dags: The DAGs that may be seen; None: all.
    """
    from anyio.to_thread import run_sync  # commands, which have no loop, import this module too

    return await run_sync(_composed, await context.ask(_find, dag_id), seen_dags)


def get_details(conn: Connection, dag_id: str) -> DagDetails:
    """Return an active DAG with its newest version, decoded here. Raises NotFound."""
    return _composed(_find(conn, dag_id), None)


def _find(conn: Connection, dag_id: str) -> _Found:
    info = get_dag(conn, dag_id)
    version, serialized = get_serialized(conn, dag_id)
    errors = all_import_errors(conn, ImportErrorFilter(warnings=None, file=info.file))
    obstacles = [error.message for error in errors if error.kind == TEMPLATE]
    pools = frozenset(pool_capacities(conn))
    return _Found(info, find_file(conn, info.file), version.number, serialized, obstacles, pools)


def _composed(found: _Found, seen_dags: frozenset[str] | None) -> DagDetails:
    dag, info, file = decode_dag(found.serialized), found.info, found.file
    obstacles = [*found.obstacles, *([READS] if file.reads else [])]
    return DagDetails(
        **asdict(info) | {"description": dag.description}, version_number=found.version_number,
        timezone=dag.timezone, start_date=dag.start_date, end_date=dag.end_date, catchup=dag.catchup,
        doc_md=dag.doc_md, assets=None if dag.asset_condition is None else dag.asset_condition.text,
        params=dag.params, airflow=file.airflow or None,
        reads=file.reads if seen_dags is None or seen_dags.issuperset(file.dag_ids) else (),
        task_start=obstacles[0] if obstacles else FORKED,
        missing_pools=tuple(sorted({pool for task in dag.tasks for pool in task.pools} - found.pools)),
        tasks=tuple(
            TaskDetails(
                **in_common(TaskDetails, task)
                | {"routes": tuple(RouteInfo(**in_common(RouteInfo, route)) for route in task.routes)},
                is_mapped=task.map_length is not None,
            )
            for task in dag.tasks
        ),
        edges=tuple(
            Edge(task.task_id, target, task.edge_labels.get(target))  # as in Airflow's graph
            for task in dag.tasks
            for target in task.downstream_task_ids
        ),
    )  # fmt: skip
