"""Where a run may go next in a scheduler."""

import sqlalchemy as sa

from asynsched.keys import DagRunKey
from asynsched.scheduling.places import Place, Places
from asynsched.store.runs.dag_runs import insert_run
from asynsched.store.runs.queue import first_queued, queued_groups, runs_of
from asynsched.store.schema import DagRunRow, dag, dag_run, metadata
from tests.support.runs import NOON

KEY = DagRunKey("d", "r")


def test_a_run_that_was_left_to_others_starts_here_once_it_is_queued_again():
    """As when another scheduler has ended it, and a backfill repeats it."""
    with sa.create_engine("sqlite://", poolclass=sa.NullPool).begin() as conn:
        metadata.create_all(conn)
        conn.execute(
            dag.insert(), {"dag_id": "d", "file_path": "f", "version_id": 1, "max_active_runs": 1, "updated_at": NOON}
        )
        times = {"run_after": NOON, "queued_at": NOON, "logical_date": NOON}
        insert_run(conn, DagRunRow(dag_id="d", run_id="r", run_type="backfill", state="running", **times))
        places = Places(10)
        places.take_over(runs_of(conn, [KEY])[0])
        places.give_back(runs_of(conn, [KEY])[0])
        conn.execute(sa.update(dag_run).values(state="queued"))
        list(places.queue.read_anew(queued_groups(conn)))
        wanted = places.queue.to_read()
        for (group, _), rows in zip(wanted, first_queued(conn, wanted), strict=True):
            places.queue.take_first(group, [row for row in rows if places.may_wait(row.key)], is_all=True)
        places.admit()
    assert places.of(KEY) is Place.STARTING
