"""`/dags/{dag_id}/runs/{run_id}`: a run: its task instances, its gantt chart, its conf, and why it waits."""

from typing import Any

from sqlalchemy import Connection
from starlette.responses import Response

from asynsched.keys import DagRunKey
from asynsched.queries.paging import MOST_ROWS, Paging
from asynsched.queries.runs import RunFilter, get_run
from asynsched.queries.task_instances import TaskInstanceFilter, count_states, list_spans, list_task_instances
from asynsched.queries.why import why
from asynsched.store.assets import consumed_events
from asynsched.store.runs.deadlines import list_deadlines
from asynsched.store.runs.requests import waiting_requests
from asynsched.web.endpoint import Call
from asynsched.web.pages.drawing.gantt import draw_gantt
from asynsched.web.pages.page import PAGE, MapIndex, show

PAGE_ROWS = 200


@PAGE.endpoint("GET", "/dags/{dag_id}/runs/{run_id}")
async def run(call: Call, dag_id: str, run_id: str, state: str = "", task_id: str = "", after: str = "") -> Response:
    """Show the task instances of a run, in the order of their starts."""
    context, key = call.context, DagRunKey(dag_id, run_id)
    row = await context.ask(get_run, *key)
    wanted = TaskInstanceFilter(
        RunFilter(dag_ids=(dag_id,), run_ids=(run_id,)), task_ids=(task_id,) if task_id else None,
        states=(None if state == "none" else state,) if state else None,
    )  # fmt: skip
    paging = Paging(limit=PAGE_ROWS, after=after or None, order_by=("started_at",))
    page = await context.ask(list_task_instances, wanted, paging)
    return await show(
        call, "run.html", view="tasks", run=row, key=key, page=page, states=await context.ask(count_states, key),
        state=state, task_id=task_id, requests=await context.ask(waiting_requests, row.id),
    )  # fmt: skip


@PAGE.endpoint("GET", "/dags/{dag_id}/runs/{run_id}/gantt")
async def gantt(call: Call, dag_id: str, run_id: str) -> Response:
    """Show when the task instances of a run waited and ran."""
    key = DagRunKey(dag_id, run_id)
    row = await call.context.ask(get_run, *key)
    spans = await call.context.ask(list_spans, key, at_most=MOST_ROWS)
    drawn = draw_gantt(spans, call.context.clock.now())
    states = await call.context.ask(count_states, key)
    return await show(call, "run_gantt.html", view="gantt", run=row, key=key, drawn=drawn, states=states)


@PAGE.endpoint("GET", "/dags/{dag_id}/runs/{run_id}/details")
async def details(call: Call, dag_id: str, run_id: str) -> Response:
    """Show a run's dates, its conf, its deadlines, and the asset events that triggered it."""
    key = DagRunKey(dag_id, run_id)
    row = await call.context.ask(get_run, *key)
    more = await call.context.ask(_more, row.id, call.who.dag_ids)
    states = await call.context.ask(count_states, key)
    return await show(call, "run_details.html", view="details", run=row, key=key, states=states, **more)


def _more(conn: Connection, dag_run_id: int, seen: frozenset[str] | None) -> dict[str, Any]:
    events = consumed_events(conn, dag_run_id)
    if seen is not None:
        events = [event for event in events if event.source_dag_id is None or event.source_dag_id in seen]
    return {"events": events, "deadlines": list_deadlines(conn, dag_run_id)}


@PAGE.endpoint("GET", "/dags/{dag_id}/why")
async def why_dag(call: Call, dag_id: str) -> Response:
    """Explain why a DAG has no run now."""
    explanation = await why(call.context, dag_id, seen_dags=call.who.dag_ids)
    return await show(call, "why.html", explanation=explanation, dag_id=dag_id, run_id="", task_id="", map_index=-1)


@PAGE.endpoint("GET", "/dags/{dag_id}/runs/{run_id}/why")
async def why_run(call: Call, dag_id: str, run_id: str) -> Response:
    """Explain why a run waits, or why it ended as it did."""
    explanation = await why(call.context, dag_id, run_id, seen_dags=call.who.dag_ids)
    return await show(call, "why.html", explanation=explanation, dag_id=dag_id, run_id=run_id, task_id="", map_index=-1)


@PAGE.endpoint("GET", "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/why")
async def why_task(call: Call, dag_id: str, run_id: str, task_id: str, map_index: MapIndex = -1) -> Response:
    """Explain why a task instance waits, or why it ended as it did."""
    explanation = await why(call.context, dag_id, run_id, task_id, map_index, call.who.dag_ids)
    return await show(
        call, "why.html", explanation=explanation, dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index
    )
