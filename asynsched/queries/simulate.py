"""Simulates a scheduler in a span of time: its own code in virtual time, in a process of its own."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from anyio.to_thread import run_sync

from asynsched.queries.context import QueryContext
from asynsched.queries.own_process import answer_of
from asynsched.queries.paging import BadRequest
from asynsched.simulation.wanted import SpanWanted

if TYPE_CHECKING:
    from asynsched.simulation.summary import Simulated

LONGEST_SPAN = timedelta(days=366)


async def simulate(
    context: QueryContext,
    start: datetime,
    end: datetime,
    *,
    duration: float | None = None,
    failure_rate: float | None = None,
    seed: int = 0,
    pools: Mapping[str, int] | None = None,
    unpause: bool = False,
    dag_id: str | None = None,
    seconds: float | None = None,
    seen_dags: frozenset[str] | None = None,
) -> "Simulated":
    """Simulate a scheduler in a span, as `asynsched simulate` does; one simulation after the other.

    No task is executed: DAG files are parsed as always, and nothing is changed.

    Args:
        start: Aware; the scheduler is up to date at that instant.
        end: Aware, after `start`, and not part of the span.
        duration: Seconds of each try; by default the median of its task's newest runs, or a minute.
        failure_rate: Share of the tries that fail; by default only tasks fail that have never succeeded.
        seed: A different one makes different tries fail.
        pools: Slots by name, instead of the present ones; -1 means no limit.
        unpause: As if no DAG were paused.
        dag_id: Answer with the runs of this DAG alone; all DAGs are simulated, as they share pools and assets.
        seconds: Of work, after which the simulation ends where it is.
        seen_dags: The DAGs that the answer may show; None: all. The pools are those of all DAGs anyway.

    Raises:
        BadRequest: The span is empty, or too long.
        AsynschedError: The DAG folder cannot be read, or the simulation takes too long.
    """
    if not start < end <= start + LONGEST_SPAN:
        raise BadRequest(f"The span must end after its start, and be of {LONGEST_SPAN.days} days at most.")
    wanted = SpanWanted(
        settings=context.settings_elsewhere, start=start, end=end, duration=duration, failure_rate=failure_rate,
        seed=seed, pools=dict(pools or {}), unpause=unpause, dag_id=dag_id, seconds=seconds,
    )  # fmt: skip
    content = await answer_of("asynsched.simulation", msgspec.json.encode(wanted), command="asynsched simulate")
    return await run_sync(_decoded, content, seen_dags)


def _decoded(content: bytes, seen_dags: frozenset[str] | None) -> "Simulated":
    from asynsched.simulation.summary import Simulated, of_dags  # loads all of the simulation

    found = msgspec.json.decode(content, type=Simulated)
    return found if seen_dags is None else of_dags(found, seen_dags)
