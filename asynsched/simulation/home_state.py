"""What a simulation takes from a home: its pools, which DAGs are paused, and how long tasks have taken."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median, median_low

from sqlalchemy import Connection

from asynsched.simulation.expectations import Expectation
from asynsched.states import TaskInstanceState
from asynsched.store.dags import list_dags
from asynsched.store.engines.direct_database import connect_direct
from asynsched.store.engines.upgrade import schema_state
from asynsched.store.engines.urls import parse_url
from asynsched.store.pools import PoolRow, list_pools
from asynsched.store.whole_runs import PastTry, past_tries

N_RUNS = 20
"""Newest runs of a DAG whose tasks are looked at."""


@dataclass(frozen=True, slots=True)
class HomeState:
    """What a home's database says.

    Attributes:
        pools: Its pools.
        paused: Whether each of its DAGs is paused.
        history: What was seen of tasks, by `DAG.TASK`: the median length of tries that succeeded, the share of those
            that failed.
    """

    pools: tuple[PoolRow, ...] = ()
    paused: dict[str, bool] = field(default_factory=dict)
    history: dict[str, Expectation] = field(default_factory=dict)


def read_home_state(database_url: str) -> HomeState:
    """Read a home's database as it is, without making or changing anything; nothing where there is none.

    Raises:
        SettingsError: The URL names no database.
        StoreUnavailable: The database cannot be reached.
    """
    state = schema_state(database_url)
    if state.current != state.head:
        return HomeState()
    with connect_direct(parse_url(database_url)) as database:
        return database.read(_read)


def _read(conn: Connection) -> HomeState:
    dags = list_dags(conn)
    tries = [one for dag in dags for one in past_tries(conn, dag.dag_id, n_runs=N_RUNS)]
    return HomeState(tuple(list_pools(conn)), {dag.dag_id: dag.is_paused for dag in dags}, history_of(tries))


def history_of(tries: Iterable[PastTry]) -> dict[str, Expectation]:
    """Return what is to be expected of tasks after what was seen of them, by `DAG.TASK`."""
    lasted: dict[str, list[float]] = defaultdict(list)
    lengths: dict[str, list[int]] = defaultdict(list)
    n_failed: dict[str, int] = defaultdict(int)
    for seen in tries:
        name = f"{seen.dag_id}.{seen.task_id}"
        if seen.state == TaskInstanceState.FAILED:
            n_failed[name] += 1
        elif seen.started_at is not None and seen.ended_at is not None:
            lasted[name].append((seen.ended_at - seen.started_at).total_seconds())
            lengths[name] += [seen.result_length] if seen.result_length is not None and seen.result_length >= 0 else []
    return {
        name: Expectation(
            duration=round(median(lasted[name]), 3) if lasted[name] else None,
            length=median_low(lengths[name]) if lengths[name] else None,
            failure_rate=round(n_failed[name] / (n_failed[name] + len(lasted[name])), 4),
        )
        for name in lasted.keys() | n_failed.keys()
    }
