"""`/`: what runs now, what failed lately, what is late and why, what comes next."""

import socket
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from starlette.responses import Response

from asynsched.queries.hitl import count_questions, list_questions
from asynsched.queries.import_errors import ImportErrorFilter, count_import_errors, list_import_errors
from asynsched.queries.late import LASTS, Late, LateItem, explain_late, list_late
from asynsched.queries.overview import read_overview
from asynsched.queries.paging import Paging
from asynsched.store.schedulers import last_served_at, list_schedulers
from asynsched.store.schema import SchedulerRow
from asynsched.web.endpoint import Call
from asynsched.web.pages.answers import open_to
from asynsched.web.pages.operation import Heard, ask_health, known_health
from asynsched.web.pages.page import PAGE, show

LATELY = timedelta(hours=24)
SHOWN = timedelta(seconds=60)
"""How old reasons may be that Home shows until it has newer ones."""


@PAGE.endpoint("GET", "/")
async def home(call: Call) -> Response:
    """Show the overview. It waits for no scheduler and no reason: scripts fetch them if what is known is old."""
    context, now, dag_ids = call.context, call.context.clock.now(), call.who.dag_ids
    overview = await context.ask(read_overview, dag_ids, now=now, since=now - LATELY)
    first = await context.ask(list_questions, open_to(dag_ids), Paging(limit=1, order_by=("created_at",)))
    of_dags = ImportErrorFilter(dag_ids=dag_ids)
    errors = await context.ask(list_import_errors, of_dags, Paging(limit=1, order_by=("file",)))
    schedulers = await context.ask(list_schedulers, now)
    due = tuple(LateItem(dag_id=one.dag_id, run_id=None, state="due", since=one.at) for one in overview.late)
    known = context.recent.last(explain_late, context, within=SHOWN)
    heard = context.recent.last(ask_health, context, within=SHOWN)
    return await show(
        call, "home.html", overview=overview, lately=LATELY, n_errors=await context.ask(count_import_errors, of_dags),
        first_error=next(iter(errors.items), None), n_questions=await context.ask(count_questions, open_to(dag_ids)),
        first_question=next(iter(first.items), None), schedulers=schedulers,
        last_served_at=await context.ask(last_served_at), health=None if heard is None else heard.health,
        is_silent=heard is not None and _is_silent(heard, schedulers, context.home),
        late=Late(now, due) if known is None else known.of_dags(dag_ids, due),
        is_old=known is None or known.at < now - LASTS,
    )  # fmt: skip


@PAGE.endpoint("GET", "/late")
async def late(call: Call) -> Response:
    """Show what is late or stuck, with the reasons, and whether the scheduler itself is."""
    context = call.context
    schedulers = await context.ask(list_schedulers, context.clock.now())
    heard = await known_health(context)
    found = await list_late(context, call.who.dag_ids)
    return await show(
        call, "late.html", late=found, is_old=False, health=heard.health,
        is_silent=_is_silent(heard, schedulers, context.home),
    )  # fmt: skip


def _is_silent(heard: Heard, schedulers: Sequence[SchedulerRow], home: Path) -> bool:
    """Return whether the scheduler of this home does not answer although it is registered on this machine."""
    return heard.health is None and any(
        (row.home, row.hostname) == (str(home), socket.gethostname()) for row in schedulers
    )
