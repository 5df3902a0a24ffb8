"""`/runs` and `/tasks`: runs and task instances of all DAGs, with their filters in the address."""

from datetime import datetime
from zoneinfo import ZoneInfo

from starlette.responses import Response

from asynsched.queries.paging import BadRequest, Paging, Pattern, Range
from asynsched.queries.runs import RunFilter, count_progress, list_runs
from asynsched.queries.task_instances import TaskInstanceFilter, list_task_instances
from asynsched.states import DagRunState, DagRunType, TaskInstanceState
from asynsched.web.endpoint import Call
from asynsched.web.pages.page import PAGE, preferences_of, show

PAGE_ROWS = 100
NEWEST_FIRST = ("-id",)


@PAGE.endpoint("GET", "/runs")
async def runs(
    call: Call, dag: str = "", run: str = "", state: str = "", kind: str = "", since: str = "", until: str = "",
    after: str = "",
) -> Response:  # fmt: skip
    """List runs, the newest first."""
    zone = preferences_of(call.request).zone
    wanted = RunFilter(
        allowed=call.who.dag_ids, dag_id=_part(dag), run_id=_part(run), states=(state,) if state else None,
        run_types=(kind,) if kind else None, run_after=Range(gte=_instant(since, zone), lt=_instant(until, zone)),
    )  # fmt: skip
    paging = Paging(limit=PAGE_ROWS, after=after or None, order_by=NEWEST_FIRST)
    page = await call.context.ask(list_runs, wanted, paging)
    progress = await call.context.ask(count_progress, [one.id for one in page.items])
    query = {"dag": dag, "run": run, "state": state, "kind": kind, "since": since, "until": until}
    return await show(
        call, "runs.html", page=page, progress_of=progress, query=query, states=tuple(DagRunState),
        kinds=tuple(DagRunType),
    )  # fmt: skip


@PAGE.endpoint("GET", "/tasks")
async def tasks(
    call: Call, dag: str = "", task: str = "", state: str = "", pool: str = "", since: str = "", after: str = ""
) -> Response:
    """List task instances, the newest first."""
    zone = preferences_of(call.request).zone
    wanted = TaskInstanceFilter(
        RunFilter(allowed=call.who.dag_ids, dag_id=_part(dag)), task_id=_part(task), pools=(pool,) if pool else None,
        states=(None if state == "none" else state,) if state else None, started_at=Range(gte=_instant(since, zone)),
    )  # fmt: skip
    paging = Paging(limit=PAGE_ROWS, after=after or None, order_by=NEWEST_FIRST)
    page = await call.context.ask(list_task_instances, wanted, paging)
    query = {"dag": dag, "task": task, "state": state, "pool": pool, "since": since}
    return await show(call, "tasks.html", page=page, query=query, states=("none", *TaskInstanceState))


def _part(text: str) -> Pattern:
    return Pattern(contains=text.strip() or None)


def _instant(text: str, zone: ZoneInfo) -> datetime | None:
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as exc:
        raise BadRequest(f"{text[:60]!r} is not a date, such as 2026-01-31 or 2026-01-31T06:00.") from exc
    return found.replace(tzinfo=zone) if found.tzinfo is None else found
