"""Events that wait for a DAG while one of its assets is updated again and again: counted in rows read and kept."""

import sqlalchemy as sa

from asynsched import Asset
from asynsched.scheduling.creation.scheduled_runs import foresee_dag
from asynsched.store import assets as asset_queue
from asynsched.store.assets import consumed_events, record_events
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.schema import asset_dag_run_queue
from tests.integration.size.counted import Cost, counting
from tests.store.test_assets import NOW, dag_of, event
from tests.support.stored import examine_dag, store_dag

N_CONSUMED, N_WAITING, N_EVENTS = 100, 110, 250


def update_and_examine(conn, rows_read):
    """Update one asset of three again and again, and have the DAG examined that waits for all of them."""
    store_dag(conn, dag_of("d", [Asset("often"), Asset("once"), Asset("never")]))
    record_events(conn, [event(Asset("once"))])
    for number in range(N_EVENTS):
        record_events(conn, [event(Asset("often"), number, token=f"t{number}")])
        cost = Cost()
        with counting(conn, cost):
            assert examine_dag(conn, "d", NOW).waits_for == "it waits for events of never"
            assert foresee_dag(conn, "d", NOW).waits_for == "it waits for events of never"
        rows_read.append(cost.n_rows)
    return conn.scalar(sa.select(sa.func.count()).select_from(asset_dag_run_queue))


async def test_an_event_costs_the_same_however_many_wait_that_are_not_enough(database, monkeypatch):
    monkeypatch.setattr(asset_queue, "MAX_CONSUMED", N_CONSUMED)
    monkeypatch.setattr(asset_queue, "MAX_WAITING", N_WAITING)
    rows_read: list[int] = []
    n_waiting = await database.write(update_and_examine, rows_read)
    assert n_waiting <= N_WAITING + 1
    usual = sorted(rows_read)[N_EVENTS // 2]
    assert rows_read[0] <= usual <= 30
    # Now and then, those are dropped that no run would consume.
    assert max(rows_read) <= usual + N_WAITING - N_CONSUMED + 1

    def complete(conn):
        record_events(conn, [event(Asset("never"), N_EVENTS, token="last")])
        return consumed_events(conn, get_run(conn, "d", examine_dag(conn, "d", NOW).triggered).id)

    consumed = await database.write(complete)
    assert len(consumed) == N_CONSUMED
    assert [found.name for found in consumed[-2:]] == ["often", "never"]
