"""What a simulation takes from a home: its pools, which DAGs are paused, and how long tasks have taken."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median, median_low

from sqlalchemy import Connection

from asynsched.simulation.expectations import Expectation
from asynsched.states import TaskInstanceState
from asynsched.store.dags.dags import list_dags
from asynsched.store.engines.direct_database import connect_direct
from asynsched.store.engines.upgrade import schema_state
from asynsched.store.engines.urls import parse_url
from asynsched.store.runs.dag_runs import last_scheduled_intervals
from asynsched.store.runs.pools import PoolRow, list_pools
from asynsched.store.runs.task_instances import PastTry, past_tries
from asynsched.timetables import DataInterval

N_RUNS = 20
"""Newest runs of a DAG whose tasks are looked at."""
RARELY_GOOD = 0.9999
"""The largest share of failures of a task that has succeeded at least once."""


@dataclass(frozen=True, slots=True)
class HomeState:
    """What a home's database says.

    Attributes:
        pools: Its pools.
        paused: Whether each of its DAGs is paused.
        last: The data interval of the last run that each DAG's schedule has made.
        history: What was seen of tasks, by `DAG.TASK`: the median length of tries that succeeded, or of all where
            none has, and the share of those that failed, which is 1 only where none has succeeded.
    """

    pools: tuple[PoolRow, ...] = ()
    paused: dict[str, bool] = field(default_factory=dict)
    last: dict[str, DataInterval] = field(default_factory=dict)
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
    paused = {dag.dag_id: dag.is_paused for dag in dags}
    last = last_scheduled_intervals(conn, list(paused))
    return HomeState(tuple(list_pools(conn)), paused, last, history_of(tries))


def history_of(tries: Iterable[PastTry]) -> dict[str, Expectation]:
    """Return what is to be expected of tasks after what was seen of them, by `DAG.TASK`."""
    good: dict[str, list[PastTry]] = defaultdict(list)
    bad: dict[str, list[PastTry]] = defaultdict(list)
    for seen in tries:
        is_bad = seen.state == TaskInstanceState.FAILED
        (bad if is_bad else good)[f"{seen.dag_id}.{seen.task_id}"].append(seen)
    return {name: _expected(good[name], bad[name]) for name in good.keys() | bad.keys()}


def _expected(good: list[PastTry], bad: list[PastTry]) -> Expectation:
    """Return what is to be expected of a task some of whose tries succeeded, and some failed."""
    lasted = [
        (seen.ended_at - seen.started_at).total_seconds() for seen in good or bad if seen.started_at and seen.ended_at
    ]
    lengths = [seen.result_length for seen in good if seen.result_length is not None and seen.result_length >= 0]
    return Expectation(
        duration=round(median(lasted), 3) if lasted else None,
        length=median_low(lengths) if lengths else None,
        failure_rate=min(round(len(bad) / (len(bad) + len(good)), 4), RARELY_GOOD) if good else 1.0,
    )
