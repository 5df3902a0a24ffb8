"""`/assets`: the assets, who updates them and who waits for them; `/backfills`: runs of the past."""

from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from anyio.to_thread import run_sync
from starlette.responses import Response

from asynsched.errors import AsynschedError, NotFound
from asynsched.queries import backfills as queries
from asynsched.queries.assets import (
    AssetFilter,
    EventFilter,
    all_queued,
    count_events_by_asset,
    list_assets,
    list_events,
)
from asynsched.queries.backfills import BackfillFilter
from asynsched.queries.paging import MOST_ROWS, BadRequest, Paging
from asynsched.scheduling.creation.backfills import BackfillPlan
from asynsched.web.access import Permission
from asynsched.web.endpoint import Call
from asynsched.web.pages.drawing.assets import asset_node, assets_and_dags, connected, dag_node
from asynsched.web.pages.drawing.graph import DrawnGraph, draw
from asynsched.web.pages.page import (
    NOTHING_TYPED,
    PAGE,
    RowId,
    Typed,
    address,
    form_of,
    one,
    preferences_of,
    redirect,
    refused,
    show,
    whole_number,
)

PAGE_ROWS = 100
MOST_EVENTS = 50
LATELY = timedelta(hours=24)


@PAGE.endpoint("GET", "/assets")
async def show_assets(call: Call, after: str = "") -> Response:
    """Show the assets, the tasks that update them, the DAGs that wait for them, and their last events."""
    seen = call.who.dag_ids
    page = await call.context.ask(
        list_assets, AssetFilter(seen_dags=seen), Paging(limit=PAGE_ROWS, after=after or None)
    )
    events = (await call.context.ask(list_events, EventFilter(seen_dags=seen), Paging(limit=MOST_EVENTS))).items
    return await show(
        call, "assets.html", rows=[one for one in page.items if seen is None or one.references], after=page.after,
        events=[event for event in events if seen is None or event.source_dag_id in seen],
    )  # fmt: skip


@PAGE.endpoint("GET", "/assets/graph")
async def asset_graph(call: Call, dag: str = "", asset: str = "") -> Response:
    """Show how assets connect DAGs, with the numbers of events of the last day.

    `dag` or `asset`: only the part that is connected with it.
    """
    context, seen, now = call.context, call.who.dag_ids, call.context.clock.now()
    page = await context.ask(list_assets, AssetFilter(seen_dags=seen), Paging(limit=MOST_ROWS))
    assets = tuple(one for one in page.items if seen is None or one.references)
    counts = await context.ask(count_events_by_asset, [one.id for one in assets], since=now - LATELY)
    waiting = await context.ask(all_queued, seen)

    def drawn() -> DrawnGraph:
        boxes, links = assets_and_dags(
            assets, counts, waiting,
            dag_at=lambda dag_id: address(call.request, "dags", dag_id),
            asset_at=lambda name: address(call.request, "assets", "graph", asset=name),
        )  # fmt: skip
        if dag or asset:
            boxes, links = connected(boxes, links, dag_node(dag) if dag else asset_node(asset))
        return draw(boxes, links)

    return await show(
        call, "asset_graph.html", drawn=await run_sync(drawn), dag=dag, asset=asset,
        names=[one.name for one in assets], is_cut=page.after is not None,
    )  # fmt: skip


@PAGE.endpoint("GET", "/backfills")
async def backfills(call: Call, dag_id: str = "", after: str = "") -> Response:
    """Show the backfills, the newest first, and the form of a new one."""
    return await _show_backfills(call, dag_id, after)


async def _show_backfills(call: Call, dag_id: str, after: str = "", typed: Typed = NOTHING_TYPED) -> Response:
    wanted, paging = BackfillFilter(dag_ids=call.who.dag_ids), Paging(limit=PAGE_ROWS, after=after or None)
    page = await call.context.ask(queries.list_backfills, wanted, paging)
    return await show(call, "backfills.html", page=page, dag_id=dag_id, typed=typed, status=typed.status)


@PAGE.endpoint("POST", "/dags/{dag_id}/backfills", permission=Permission.OPERATE)
async def create_backfill(call: Call, dag_id: str) -> Response:
    """Create a backfill, or show which dates it would have."""
    fields = await form_of(call)
    if one(fields, "do") == "edit":
        return await _show_backfills(call, dag_id, typed=Typed(fields))
    try:
        plan = _plan(dag_id, fields, preferences_of(call.request).zone)
        if one(fields, "do") != "create":
            dates = await queries.plan_backfill(call.context, plan)
            sent = {name: values[-1] for name, values in fields.items()}
            return await show(call, "backfill_plan.html", dag_id=dag_id, plan=plan, dates=dates, sent=sent)
        made = await queries.make_backfill(call.context, call.who.name, plan)
    except AsynschedError as exc:
        return await _show_backfills(call, dag_id, typed=refused(fields, exc))
    return redirect(call, "backfills", said=f"The backfill {made.id} of {dag_id} has {made.n_queued} queued runs.")


def _plan(dag_id: str, fields: dict[str, list[str]], zone: ZoneInfo) -> BackfillPlan:
    """Return the backfill that a form describes. Raises BadRequest."""
    reprocess, most = one(fields, "reprocess", "none"), 10
    if reprocess not in ("none", "failed", "completed"):
        raise BadRequest("Choose which runs to run again: none, failed or completed.")
    if "max_active_runs" in fields:
        most = whole_number(fields, "max_active_runs", least=1, most=10_000)
    try:
        first, last = (date.fromisoformat(one(fields, name)) for name in ("from", "to"))
    except ValueError as exc:
        raise BadRequest("Give the first and the last day, such as 2026-01-31.") from exc
    return BackfillPlan(
        dag_id, datetime.combine(first, time.min, zone), datetime.combine(last, time.max, zone),
        reprocess="failed" if reprocess == "failed" else "completed" if reprocess == "completed" else "none",
        is_reverse=one(fields, "reverse") == "yes", max_active_runs=most,
    )  # fmt: skip


@PAGE.endpoint("POST", "/dags/{dag_id}/backfills/{backfill_id:int}", permission=Permission.OPERATE)
async def change_backfill(call: Call, dag_id: str, backfill_id: RowId) -> Response:
    """Pause, resume or cancel a backfill."""
    do = one(await form_of(call), "do")
    if do not in ("pause", "unpause", "cancel"):
        raise BadRequest("A backfill can be paused, unpaused and cancelled.")
    context, actor = call.context, call.who.name
    if (await context.ask(queries.get_backfill, backfill_id)).dag_id != dag_id:
        raise NotFound("backfill", str(backfill_id))
    if do == "cancel":
        row = await context.act(actor, queries.cancel_backfill, backfill_id, actor=actor, now=context.clock.now())
    else:
        row = await context.act(actor, queries.pause_backfill, backfill_id, paused=do == "pause")
    return redirect(call, "backfills", said=f"The backfill {row.id} of {row.dag_id} is {row.state}.")
