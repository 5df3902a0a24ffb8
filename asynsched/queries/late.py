"""What is late or stuck, and why: DAGs without a run that was due, and runs that do not go on.

The reasons come from the same decisions as those of `why`, made once for all. That takes up every active run, so the
answer is computed once in a while, however many ask (`recent.py`).
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import AsynschedError, NotFound, StoreUnavailable
from asynsched.explaining.explain import explain_dag, explain_run
from asynsched.explaining.owners import answer_of
from asynsched.explaining.reason import Explanation
from asynsched.explaining.snapshot import take_snapshot
from asynsched.keys import DagRunKey
from asynsched.queries.context import QueryContext
from asynsched.queries.overview import LATE_AFTER, MOST_LISTED, next_runs
from asynsched.queries.serving import long_parses
from asynsched.queries.why import in_thread, look_for_schedulers
from asynsched.settings import Settings
from asynsched.states import PARKED_TASK_STATES, SLOT_TASK_STATES, TIMED_TASK_STATES, DagRunState
from asynsched.store.dags.dags import find_dag
from asynsched.store.database import Database
from asynsched.store.rows import as_struct, count
from asynsched.store.runs.dag_runs import UNFINISHED_RUN_STATES, ids_of_unfinished
from asynsched.store.schema import DagRunRow, dag_run, task_instance

LASTS = timedelta(seconds=10)
"""How long an answer counts."""
MOST_ACTIVE_RUNS = 2000
"""With more active runs no reason of a run is computed: that would take long."""
MOST_EXAMINED = 200
"""Running runs, the oldest, among which those that do not go on are looked for."""
MOST_CHARACTERS = 300
"""Of a reason."""
UNDER_WAY = (*SLOT_TASK_STATES, *TIMED_TASK_STATES, *PARKED_TASK_STATES)
"""A run with a task instance in one of these states goes on."""


class LateItem(Struct, frozen=True, kw_only=True):
    """A DAG whose run was due, or a run that does not start or go on.

    Attributes:
        run_id: None: the DAG has no such run yet.
        state: Of the run; `due` of a DAG.
        since: When the run was due, was queued or has started.
        reason: The first line of `why`; empty: it is not known.
    """

    dag_id: str
    run_id: str | None
    state: str
    since: datetime
    reason: str = ""


class Late(Struct, frozen=True):
    """What is late or stuck at a moment, the longest first.

    Attributes:
        problem: Why there are no reasons, as a sentence; empty: there are.
    """

    at: datetime
    rows: tuple[LateItem, ...]
    problem: str = ""

    def of_dags(self, dag_ids: frozenset[str] | None, own: Iterable[LateItem]) -> "Late":
        """Return what concerns some DAGs; None: all.

        Args:
            own: What is late of these DAGs, without reasons: the list of all has been cut.
        """
        if dag_ids is None:
            return self
        rows = [row for row in self.rows if row.dag_id in dag_ids]
        known = {(row.dag_id, row.run_id) for row in rows}
        rows += [row for row in own if (row.dag_id, row.run_id) not in known]
        return Late(self.at, tuple(sorted(rows, key=lambda row: row.since)), self.problem)


async def list_late(context: QueryContext, dag_ids: frozenset[str] | None = None) -> Late:
    """Return what is late or stuck of these DAGs (None: all), as it was some seconds ago. Raises StoreUnavailable."""
    found = await context.recent.get(explain_late, context, lasts=LASTS)
    if found is not None and dag_ids is None:
        return found
    now = context.clock.now()
    own, _ = await context.ask(_late_ones, now, dag_ids)
    # Whether a running run is stuck or between two tasks, only its explanation says.
    waiting = tuple(row for row in own if row.state != DagRunState.RUNNING)
    if found is None:
        return Late(now, waiting, "The last attempt to find the reasons has failed a moment ago. Try again soon.")
    return found.of_dags(dag_ids, waiting)


async def explain_late(context: QueryContext) -> Late:
    """Compute what is late or stuck. Raises StoreUnavailable."""
    settings, now = context.settings, context.clock.now()
    rows, runs = await context.ask(_late_ones, now)
    n_active = await context.ask(_count_active)
    if not rows:
        return Late(now, ())
    try:
        return await in_thread(context, lambda database: _explained(database, settings, now, rows, runs, n_active))
    except StoreUnavailable:
        raise
    except AsynschedError as exc:
        return Late(now, tuple(row for row in rows if row.state != DagRunState.RUNNING), str(exc))


async def _explained(
    database: Database, settings: Settings, now: datetime, rows: tuple[LateItem, ...],
    runs: dict[DagRunKey, DagRunRow], n_active: int,
) -> Late:  # fmt: skip
    unserved, owners = await look_for_schedulers(database, settings, now)
    if unserved is not None:
        return Late(now, rows, answer_of(unserved))
    problem, snapshot = "", None
    if n_active > MOST_ACTIVE_RUNS:
        problem = f"{n_active:,} runs are active, too many to say of each at once why it waits: ask for one."
    elif runs:
        snapshot = await take_snapshot(database, settings, now, owners=owners)
    parses = long_parses(settings.home_path)
    found = []
    for row in rows:
        if row.run_id is None:
            with suppress(NotFound):  # it has left
                dag = await database.read(find_dag, row.dag_id)
                found.append(_with(row, await explain_dag(database, dag, now=now, unserved=None, parses=parses)))
        elif snapshot is None:
            found.append(row)
        else:
            key = DagRunKey(row.dag_id, row.run_id)
            run = await snapshot.run(runs[key].id, key)
            found.append(_with(row, explain_run(snapshot, runs[key], run)))
    return Late(now, tuple(row for row in found if row is not None), problem)


def _with(row: LateItem, explanation: Explanation) -> LateItem | None:
    """Return a row with its reason; None for a run that was between two tasks."""
    if row.state == DagRunState.RUNNING and not explanation.reasons:
        return None
    reason = explanation.answer.splitlines()[0]
    shown = reason if len(reason) <= MOST_CHARACTERS else f"{reason[: MOST_CHARACTERS - 1]}…"
    return msgspec.structs.replace(row, reason=shown)


def _late_ones(
    conn: Connection, now: datetime, dag_ids: frozenset[str] | None = None
) -> tuple[tuple[LateItem, ...], dict[DagRunKey, DagRunRow]]:
    """Return the DAGs and the runs without their reasons, and the rows of the runs; of these DAGs, None: of all."""
    due = [
        LateItem(dag_id=one.dag_id, run_id=None, state="due", since=one.at)
        for one in next_runs(conn, dag_ids, now, late=True)
    ]
    runs = list(_late_runs(conn, now - LATE_AFTER, dag_ids))
    waiting = [
        LateItem(
            dag_id=row.dag_id, run_id=row.run_id, state=row.state,
            since=row.started_at or max(row.queued_at, row.run_after),
        )
        for row in runs
    ]  # fmt: skip
    rows = tuple(sorted((*due, *waiting), key=lambda row: row.since))
    return rows, {DagRunKey(row.dag_id, row.run_id): row for row in runs}


def _late_runs(conn: Connection, before: datetime, dag_ids: frozenset[str] | None) -> Iterator[DagRunRow]:
    """Yield the first queued run of each DAG if it has waited for long, and running ones without a task under way.

    Runs of backfills wait for each other, as they should.
    """
    seen = sa.true() if dag_ids is None else dag_run.c.dag_id.in_(dag_ids)
    # States are literal, as in the partial indexes.
    first = (
        sa.select(sa.func.min(dag_run.c.id))
        .where(sa.text("dag_run.state = 'queued' AND dag_run.backfill_id IS NULL"), seen)
        .where(dag_run.c.run_after <= before).group_by(dag_run.c.dag_id)  # not those triggered for a later time
    )  # fmt: skip
    queued = (
        sa.select(dag_run).where(dag_run.c.id.in_(first), dag_run.c.queued_at <= before)
        .order_by(dag_run.c.queued_at).limit(MOST_LISTED)
    )  # fmt: skip
    oldest = (
        sa.select(dag_run).where(sa.text("dag_run.state = 'running'"), dag_run.c.started_at <= before, seen)
        .order_by(dag_run.c.started_at).limit(MOST_EXAMINED).subquery()
    )  # fmt: skip
    goes_on = sa.exists().where(task_instance.c.dag_run_id == oldest.c.id, task_instance.c.state.in_(UNDER_WAY))
    stuck = sa.select(oldest).where(~goes_on).order_by(oldest.c.started_at).limit(MOST_LISTED)
    for query in (queued, stuck):
        for row in conn.execute(query):
            yield as_struct(DagRunRow, row)


def _count_active(conn: Connection) -> int:
    return count(conn, ids_of_unfinished(UNFINISHED_RUN_STATES))
