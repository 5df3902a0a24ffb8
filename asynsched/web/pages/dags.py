"""`/dags`: the DAGs, searched and filtered, with the states of their last runs; `/palette`: some of them by name."""

from typing import Literal

from starlette.responses import Response

from asynsched.queries.dags import DagFilter, count_dags, list_dags, list_owners, list_tags, pause_dag
from asynsched.queries.overview import recent_states
from asynsched.queries.paging import ANY_TEXT, MOST_ROWS, BadRequest, Paging, Pattern
from asynsched.states import DagRunState
from asynsched.web.access import Permission
from asynsched.web.endpoint import Call
from asynsched.web.pages.page import PAGE, form_of, one, query_of, redirect, show

PAGE_ROWS = 50
N_RUNS = 10
"""Runs of each DAG whose states are shown."""
MOST_TAGS = 20
"""Tags of one filter."""
MOST_FOUND = 12
"""DAGs in the palette."""
Pausing = Literal["", "active", "paused", "errors"]


@PAGE.endpoint("GET", "/dags")
async def dags(
    call: Call, q: str = "", show_only: Pausing = "", tag: tuple[str, ...] = (), owner: str = "", state: str = "",
    after: str = "",
) -> Response:  # fmt: skip
    """List the DAGs; those with all of several tags."""
    seen, tags = call.who.dag_ids, tuple(dict.fromkeys(filter(None, tag)))[:MOST_TAGS]
    wanted = DagFilter(
        seen, Pattern(q.strip() or None), paused={"active": False, "paused": True}.get(show_only),
        has_errors=True if show_only == "errors" else None, tags=tags, tags_match="all",
        owners=(owner,) if owner else (), last_run_state=state or None,
    )  # fmt: skip
    page = await call.context.ask(list_dags, wanted, Paging(limit=PAGE_ROWS, after=after or None))
    total = await call.context.ask(count_dags, wanted)
    runs = await call.context.ask(recent_states, [dag.dag_id for dag in page.items], N_RUNS)
    every = Paging(limit=MOST_ROWS)
    return await show(
        call, "dags.html", page=page, total=total, runs=runs, states=tuple(DagRunState),
        tags=(await call.context.ask(list_tags, ANY_TEXT, seen, every)).items,
        owners=await call.context.ask(list_owners, seen, every),
        query={"q": q, "show_only": show_only, "tag": tags, "owner": owner, "state": state},
    )  # fmt: skip


@PAGE.endpoint("GET", "/palette")
async def palette(call: Call, q: str = "") -> Response:
    """Show links to DAGs and views, for the palette of commands."""
    wanted = DagFilter(call.who.dag_ids, Pattern(q.strip() or None))
    page = await call.context.ask(list_dags, wanted, Paging(limit=MOST_FOUND))
    return await show(call, "palette.html", dags=page.items, q=q.strip().lower())


@PAGE.endpoint("POST", "/dags/{dag_id}/pause", permission=Permission.OPERATE)
async def pause(call: Call, dag_id: str) -> Response:
    """Pause or unpause a DAG, and go back to where that was asked for."""
    fields = await form_of(call)
    paused = one(fields, "paused")
    if paused not in ("yes", "no"):
        raise BadRequest("The field paused must be yes or no.")
    now = call.context.clock.now()
    await call.context.act(call.who.name, pause_dag, dag_id, paused=paused == "yes", now=now)
    said = f"{dag_id} is {'paused' if paused == 'yes' else 'unpaused'}."
    if "back" in fields:
        return redirect(call, "dags", said=said, **query_of(one(fields, "back")))
    return redirect(call, "dags", dag_id, said=said)
