"""`/jobs`, `/monitor/health` and `/version`: the schedulers. Each also parses files and runs triggers."""

from datetime import datetime

from msgspec import Struct

from asynsched._version import __version__
from asynsched.airflow.version import version as airflow_version
from asynsched.errors import StoreUnavailable
from asynsched.queries.paging import FIRST_PAGE
from asynsched.queries.schedulers import SchedulerFilter, count_schedulers, list_schedulers
from asynsched.store.schema import SchedulerRow
from asynsched.web.access import Permission
from asynsched.web.airflow_api.api import AIRFLOW_API, OrderBy, PageQuery, listed, paging
from asynsched.web.airflow_api.filters import bounds_or_coming
from asynsched.web.endpoint import Call

JOB_TYPE = "SchedulerJob"
SORT_NAMES = {
    "id": "lease_epoch", "start_date": "started_at", "end_date": "ended_at", "latest_heartbeat": "heartbeat_at",
    "state": "has_ended", "executor_class": "executors",
    **dict.fromkeys(("dag_id", "job_type", "unixname"), "lease_epoch"),  # all jobs have the same
}  # fmt: skip


class JobResponse(Struct, frozen=True, kw_only=True):
    """A scheduler; `id` is the epoch of its lease."""

    id: int
    dag_id: str | None = None
    state: str | None
    job_type: str | None
    start_date: datetime | None
    end_date: datetime | None
    latest_heartbeat: datetime | None
    executor_class: str | None
    hostname: str | None
    unixname: str | None = None
    dag_display_name: str | None = None


class JobCollectionResponse(Struct, frozen=True):
    """A page of schedulers."""

    jobs: tuple[JobResponse, ...]
    total_entries: int


class JobQuery(Struct, frozen=True, kw_only=True):
    """Which schedulers are wanted."""

    is_alive: bool | None = None
    job_state: str | None = None
    job_type: str | None = None
    hostname: str | None = None
    executor_class: str | None = None
    start_date_gte: datetime | None = None
    start_date_gt: datetime | None = None
    start_date_lte: datetime | None = None
    start_date_lt: datetime | None = None
    end_date_gte: datetime | None = None
    end_date_gt: datetime | None = None
    end_date_lte: datetime | None = None
    end_date_lt: datetime | None = None

    def filter(self, now: datetime) -> SchedulerFilter | None:
        """Return the filter of these values; None if no scheduler can match."""
        if self.job_type not in (None, JOB_TYPE) or self.job_state not in (None, "running", "success"):
            return None
        return SchedulerFilter(
            now=now, serving=self.is_alive, hostname=self.hostname, executor=self.executor_class,
            ended=None if self.job_state is None else self.job_state == "success",
            started_at=bounds_or_coming(self, "start_date", now),
            ended_at=bounds_or_coming(self, "end_date", now),
        )  # fmt: skip


@AIRFLOW_API.endpoint("GET", "/jobs")
async def get_jobs(call: Call, query: JobQuery, page: PageQuery, order_by: OrderBy = ("id",)) -> JobCollectionResponse:
    """List the schedulers, also ended ones."""
    wanted = query.filter(call.context.clock.now())
    if wanted is None:
        return JobCollectionResponse((), 0)
    questions, asked = (list_schedulers, count_schedulers), paging(page, order_by, SORT_NAMES)
    return JobCollectionResponse(*await listed(call, questions, wanted, page=asked, shown=_job))


def _job(row: SchedulerRow) -> JobResponse:
    return JobResponse(
        id=row.lease_epoch, state="running" if row.ended_at is None else "success", job_type=JOB_TYPE,
        start_date=row.started_at, end_date=row.ended_at, latest_heartbeat=row.heartbeat_at,
        executor_class=next(iter(row.executors), None), hostname=row.hostname,
    )  # fmt: skip


class BaseInfoResponse(Struct, frozen=True):
    """Whether a part is `healthy` or `unhealthy`."""

    status: str | None


class SchedulerInfoResponse(Struct, frozen=True):
    """The health of the schedulers."""

    status: str | None
    latest_scheduler_heartbeat: str | None


class TriggererInfoResponse(Struct, frozen=True):
    """The health of the triggerer."""

    status: str | None
    latest_triggerer_heartbeat: str | None


class DagProcessorInfoResponse(Struct, frozen=True):
    """The health of the parse of DAG files."""

    status: str | None
    latest_dag_processor_heartbeat: str | None


class HealthInfoResponse(Struct, frozen=True, kw_only=True):
    """The health of the database and of the schedulers."""

    metadatabase: BaseInfoResponse
    scheduler: SchedulerInfoResponse
    triggerer: TriggererInfoResponse
    dag_processor: DagProcessorInfoResponse


@AIRFLOW_API.endpoint("GET", "/monitor/health", permission=Permission.NOTHING)
async def get_health(call: Call) -> HealthInfoResponse:
    """Tell whether the database answers, and whether a scheduler serves."""
    database, status, heartbeat = "healthy", "unhealthy", None
    try:
        wanted = SchedulerFilter(now=call.context.clock.now(), serving=True)
        for row in (await call.context.ask(list_schedulers, wanted, FIRST_PAGE)).items:
            status, heartbeat = "healthy", max(heartbeat or row.heartbeat_at, row.heartbeat_at)
    except StoreUnavailable:
        database = "unhealthy"
    at = None if heartbeat is None else heartbeat.isoformat()
    return HealthInfoResponse(
        metadatabase=BaseInfoResponse(database), scheduler=SchedulerInfoResponse(status, at),
        triggerer=TriggererInfoResponse(status, at), dag_processor=DagProcessorInfoResponse(status, at),
    )  # fmt: skip


class VersionInfo(Struct, frozen=True):
    """The version of Airflow whose API this is, and of asynsched."""

    version: str
    git_version: str | None


@AIRFLOW_API.endpoint("GET", "/version", permission=Permission.NOTHING)
async def get_version() -> VersionInfo:
    """Tell the version of Airflow whose API this is, and that of asynsched."""
    return VersionInfo(airflow_version, f"asynsched {__version__}")
