"""`/`: what runs now, what failed lately, what is late and why, what comes next."""

from datetime import timedelta

from starlette.responses import Response

from asynsched.queries.hitl import count_questions, list_questions
from asynsched.queries.import_errors import ImportErrorFilter, count_import_errors, list_import_errors
from asynsched.queries.overview import read_overview
from asynsched.queries.paging import Paging
from asynsched.store.schedulers import last_served_at, list_schedulers
from asynsched.web.endpoint import Call
from asynsched.web.pages.answers import open_to
from asynsched.web.pages.operation import known_health
from asynsched.web.pages.page import PAGE, show

LATELY = timedelta(hours=24)


@PAGE.endpoint("GET", "/")
async def home(call: Call) -> Response:
    """Show the overview."""
    place, now, dag_ids = call.place, call.place.clock.now(), call.who.dag_ids
    overview = await place.ask(read_overview, dag_ids, now=now, since=now - LATELY)
    first = await place.ask(list_questions, open_to(dag_ids), Paging(limit=1, order_by=("created_at",)))
    of_dags = ImportErrorFilter(dag_ids=dag_ids)
    errors = await place.ask(list_import_errors, of_dags, Paging(limit=1, order_by=("file",)))
    return await show(
        call, "home.html", overview=overview, lately=LATELY, n_errors=await place.ask(count_import_errors, of_dags),
        first_error=next(iter(errors.items), None), n_questions=await place.ask(count_questions, open_to(dag_ids)),
        first_question=next(iter(first.items), None), schedulers=await place.ask(list_schedulers, now),
        last_served_at=await place.ask(last_served_at), health=await known_health(call),
    )  # fmt: skip
