"""`/dags/{dag_id}/…`: one DAG: its grid, graph, gantt chart, calendar, upcoming runs, details, and code by version."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, NamedTuple

from anyio.to_thread import run_sync
from msgspec import Meta
from starlette.responses import Response

from asynsched.errors import AsynschedError, DagError, NotFound, StoreUnavailable
from asynsched.keys import DagRunKey
from asynsched.queries.dag_versions import VersionFilter, VersionInfo, list_versions, read_sources, read_structure
from asynsched.queries.dags import DagInfo, get_dag
from asynsched.queries.grid import GridCell, read_grid
from asynsched.queries.import_errors import ImportErrorFilter, ImportErrorInfo, list_import_errors
from asynsched.queries.paging import MOST_ROWS, BadRequest, Paging
from asynsched.queries.runs import RunFilter, count_runs_by_day, get_run, list_runs
from asynsched.queries.simulate import simulate
from asynsched.queries.task_instances import list_spans
from asynsched.queries.upcoming import UpcomingRun
from asynsched.queries.upcoming import upcoming as next_runs
from asynsched.serialization.schema import SerializedDag
from asynsched.web.endpoint import Call
from asynsched.web.pages.drawing import calendar as drawn_calendar
from asynsched.web.pages.drawing.differences import compare
from asynsched.web.pages.drawing.folding import Folding, State
from asynsched.web.pages.drawing.gantt import draw_gantt
from asynsched.web.pages.drawing.graph import DrawnGraph, draw
from asynsched.web.pages.drawing.grid import GridRows, grid_rows
from asynsched.web.pages.drawing.tasks import TaskGraph, task_graph
from asynsched.web.pages.page import PAGE, RowId, address, show

GRID_RUNS = (10, 25, 50, 100)
GANTT_RUNS = 25
"""Runs to choose from in the gantt chart."""
N_UPCOMING = 25
USUAL_HOURS, LONGEST_HOURS = 24, 31 * 24
Hours = Annotated[int, Meta(ge=1, le=LONGEST_HOURS)]
SIMULATION_SECONDS = 20.0
"""Of work on a simulation for a view, which ends where it is then."""
MOST_VERSIONS = 200
COMPARISON_SECONDS = 1.0
"""Of work on the differences of a version; files for which no time is left are shown as they are."""


class Known(NamedTuple):
    """A DAG with its newest version; a DAG whose file is gone keeps its runs."""

    info: DagInfo
    dag: SerializedDag
    version: int
    errors: Sequence[ImportErrorInfo]


async def read_known(call: Call, dag_id: str) -> Known:
    """Return a DAG, active or not, with the errors that its user may see. Raises NotFound with the nearest names."""
    context = call.context
    info = await context.ask(get_dag, dag_id, active=False)
    structure = await read_structure(context, dag_id)
    errors = await context.ask(list_import_errors, ImportErrorFilter(dag_ids=call.who.dag_ids, file=info.file))
    return Known(info, structure.dag, structure.version.number, errors.items)


@PAGE.endpoint("GET", "/dags/{dag_id}")
async def grid(
    call: Call, dag_id: str, runs: int = 25, before: datetime | None = None, before_id: RowId | None = None,
    groups: State = "", but: tuple[str, ...] = (),
) -> Response:  # fmt: skip
    """Show the grid: runs side by side, tasks below each other; those before a run, by its time and its row id.

    `groups`: whether its task groups are open or folded, all but those that `but` names. By default those of a large
    DAG are folded.
    """
    if not 1 <= runs <= GRID_RUNS[-1]:
        raise BadRequest(f"A grid has 1 to {GRID_RUNS[-1]} runs, not {runs}.")
    known = await read_known(call, dag_id)
    if before is not None and before.tzinfo is None:
        before = before.replace(tzinfo=UTC)
    found = await call.context.ask(read_grid, dag_id, n_runs=runs, before=before, before_id=before_id)
    folding = Folding.of(known.dag, groups, but)
    which = {"runs": runs, "before": before and before.isoformat(), "before_id": before_id}

    def turned(group_id: str) -> str:
        return address(call.request, "dags", dag_id, **which, **folding.turned(group_id))

    rows: GridRows = await run_sync(grid_rows, known.dag, found, folding, partial(address, call.request), turned)
    return await show(
        call, "dag_grid.html", known=known, view="grid", rows=rows, runs=found.runs, n_runs=runs, which=which,
        choices=GRID_RUNS, folding=folding,
    )  # fmt: skip


@PAGE.endpoint("GET", "/dags/{dag_id}/graph")
async def graph(call: Call, dag_id: str, run_id: str = "", groups: State = "", but: tuple[str, ...] = ()) -> Response:
    """Show the graph, in the colours of a run if one is named.

    `groups`: whether its task groups are open or folded, all but those that `but` names. By default those of a large
    DAG are folded.
    """
    known = await read_known(call, dag_id)
    found = await call.context.ask(read_grid, dag_id, n_runs=25, run_id=run_id)
    chosen = next((run for run in found.runs if run.run_id == run_id), None)
    cells = found.cells[chosen.id] if chosen is not None else {}

    folding = Folding.of(known.dag, groups, but)

    def task_at(task_id: str) -> str | None:
        return None if chosen is None else task_address(call, dag_id, chosen.run_id, task_id, cells)

    def turned(group_id: str) -> str:
        return address(call.request, "dags", dag_id, "graph", run_id=run_id, **folding.turned(group_id))

    def drawn() -> tuple[TaskGraph, DrawnGraph]:
        made = task_graph(known.dag, folding.is_folded, cells, task_at=task_at, group_at=turned)
        return made, draw(made.boxes, made.links)

    made, picture = await run_sync(drawn)
    return await show(
        call, "dag_graph.html", known=known, view="graph", drawn=picture, groups=made.groups, turned=turned,
        folding=folding, runs=found.runs[::-1], chosen=chosen,
    )  # fmt: skip


def task_address(call: Call, dag_id: str, run_id: str, task_id: str, cells: Mapping[str, GridCell]) -> str | None:
    """Return the address of a task within a run, or of its instances; None if the run has no such task."""
    if task_id not in cells:
        return None
    if cells[task_id].is_mapped:
        return address(call.request, "dags", dag_id, "runs", run_id, task_id=task_id)
    return address(call.request, "dags", dag_id, "runs", run_id, "tasks", task_id)


@PAGE.endpoint("GET", "/dags/{dag_id}/gantt")
async def gantt(call: Call, dag_id: str, run_id: str = "") -> Response:
    """Show when the task instances of a run waited and ran: of the newest run, unless another one is named."""
    known, context = await read_known(call, dag_id), call.context
    newest_first = Paging(limit=GANTT_RUNS, order_by=("-run_after",))
    runs = (await context.ask(list_runs, RunFilter(dag_ids=(dag_id,)), newest_first)).items
    run = await context.ask(get_run, dag_id, run_id) if run_id else next(iter(runs), None)
    if run is not None and all(one.run_id != run.run_id for one in runs):
        runs = (*runs, run)
    spans = () if run is None else await context.ask(list_spans, DagRunKey(dag_id, run.run_id), at_most=MOST_ROWS)
    return await show(
        call, "dag_gantt.html", known=known, view="gantt", run=run, runs=runs, chosen=run_id,
        drawn=draw_gantt(spans, context.clock.now()),
    )  # fmt: skip


@PAGE.endpoint("GET", "/dags/{dag_id}/details")
async def details(call: Call, dag_id: str) -> Response:
    """Show the settings of the DAG and of its tasks, and its documentation."""
    known = await read_known(call, dag_id)
    return await show(call, "dag_details.html", known=known, view="details")


@PAGE.endpoint("GET", "/dags/{dag_id}/upcoming")
async def upcoming(call: Call, dag_id: str, hours: Hours | None = None) -> Response:
    """Show the next runs of the schedule, and on request the place in which simulated runs appear.

    `hours`: of the simulation.
    """
    known = await read_known(call, dag_id)
    problem, found = "", tuple[UpcomingRun, ...]()
    try:
        found = await next_runs(call.context, dag_id, N_UPCOMING)
    except (DagError, NotFound) as exc:
        problem = str(exc)
    return await show(
        call, "dag_upcoming.html", known=known, view="upcoming", found=found, problem=problem, hours=hours,
        usual_hours=USUAL_HOURS, longest_hours=LONGEST_HOURS,
    )  # fmt: skip


@PAGE.endpoint("GET", "/dags/{dag_id}/upcoming/simulated")
async def simulated(call: Call, dag_id: str, hours: Hours = USUAL_HOURS) -> Response:
    """Simulate all DAGs for some hours, and show the runs of this one, also those that assets trigger."""
    info = await call.context.ask(get_dag, dag_id, active=False)
    start, problem, found = call.context.clock.now(), "", None
    end = start + timedelta(hours=hours)
    try:
        found = await simulate(
            call.context, start, end, dag_id=dag_id, seconds=SIMULATION_SECONDS, seen_dags=call.who.dag_ids
        )
    except StoreUnavailable:
        raise
    except AsynschedError as exc:
        problem = str(exc)  # in the place of the runs, so that scripts show it there, too
    return await show(call, "dag_simulated.html", info=info, found=found, problem=problem, hours=hours, end=end)


@PAGE.endpoint("GET", "/dags/{dag_id}/calendar")
async def calendar(call: Call, dag_id: str) -> Response:
    """Show the runs of a year, day by day."""
    known = await read_known(call, dag_id)
    now = call.context.clock.now()
    days = await call.context.ask(count_runs_by_day, dag_id, since=now - timedelta(days=371))
    drawn = drawn_calendar.draw_calendar(days, now.date())
    return await show(call, "dag_calendar.html", known=known, view="calendar", drawn=drawn)


@PAGE.endpoint("GET", "/dags/{dag_id}/code")
async def code(call: Call, dag_id: str, version: int | None = None, against: int | None = None) -> Response:
    """Show the code of a version, or how it differs from another one."""
    known = await read_known(call, dag_id)
    of_dag = VersionFilter(frozenset({dag_id}))
    newest_first = Paging(limit=MOST_VERSIONS, order_by=("-number",))
    versions = (await call.context.ask(list_versions, of_dag, newest_first)).items
    chosen = _version(versions, version or known.version)
    other = None if against is None else _version(versions, against)
    sources = await call.context.ask(read_sources, dag_id, chosen.number, call.who.dag_ids)
    differences = None
    if other is not None:
        before = await call.context.ask(read_sources, dag_id, other.number, call.who.dag_ids)
        clock, last = call.context.clock, call.context.clock.monotonic() + COMPARISON_SECONDS
        differences = await run_sync(compare, dict(before), dict(sources), lambda: clock.monotonic() < last)
    return await show(
        call, "dag_code.html", known=known, view="code", versions=versions, chosen=chosen, other=other,
        sources=sources, differences=differences,
    )  # fmt: skip


def _version(versions: tuple[VersionInfo, ...], number: int) -> VersionInfo:
    for found in versions:
        if found.number == number:
            return found
    raise NotFound("DAG version", str(number))
