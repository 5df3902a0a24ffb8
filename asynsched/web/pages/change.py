"""`/preview`: what a commit of the DAG folder's Git repository would change, before it is live.

The address names the commit, so a pull request can link to it. The effect is computed each time that somebody looks,
against the DAGs of that moment: nothing is kept.
"""

from typing import Annotated, Any

from anyio.to_thread import run_sync
from msgspec import Meta
from starlette.responses import Response

from asynsched.errors import AsynschedError
from asynsched.previewing.asking import LONGEST_HOURS, preview_commit
from asynsched.queries.preview import MOST_DUE, Preview
from asynsched.web.access import Permission
from asynsched.web.endpoint import Call
from asynsched.web.errors import status_of
from asynsched.web.pages.drawing.graph import DrawnGraph, draw
from asynsched.web.pages.drawing.tasks import changed_task_graph
from asynsched.web.pages.page import PAGE, show

Hours = Annotated[float, Meta(ge=0, le=LONGEST_HOURS)]
MOST_ROWS = 200
"""Of each table."""
MOST_PICTURES = 20


@PAGE.endpoint("GET", "/preview", permission=Permission.OPERATE)
async def preview(call: Call, where: str = "", against: str = "", hours: Hours = 24) -> Response:
    """Show the form, and for a commit the place in which its effect appears once it is known."""
    return await show(
        call, "preview.html", where=where.strip(), against=against.strip(), hours=hours, found=None, problem=""
    )


@PAGE.endpoint("GET", "/preview/effect", permission=Permission.OPERATE)
async def effect(call: Call, where: str, against: str = "", hours: Hours = 24) -> Response:
    """Compute the effect of a commit, and show it. This takes seconds: it parses and simulates."""
    asked: dict[str, Any] = {"where": where.strip(), "against": against.strip(), "hours": hours}
    try:
        found = await preview_commit(call.context, asked["where"], asked["against"] or None, hours=hours)
    except AsynschedError as exc:
        # In the place of the effect, so that scripts show it there, too.
        return await show(call, "preview.html", status=status_of(exc), problem=str(exc), found=None, **asked)
    return await show(
        call, "preview.html", problem="", found=found, most=MOST_ROWS, most_due=MOST_DUE,
        pictures=await run_sync(_pictures, found), **asked,
    )  # fmt: skip


def _pictures(found: Preview) -> list[tuple[str, DrawnGraph, int]]:
    """Return the DAGs whose tasks or edges change, with their pictures and the number of tasks left out."""
    changed = [(one.dag_id, one.graph) for one in found.changed if one.graph is not None][:MOST_PICTURES]
    return [(dag_id, draw(*changed_task_graph(graph)), graph.n_left_out) for dag_id, graph in changed]
