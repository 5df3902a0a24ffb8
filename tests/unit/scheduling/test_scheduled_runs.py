"""Many DAGs are examined together, and an error of one does not affect the others."""

from datetime import UTC, datetime

import sqlalchemy as sa

from asynsched import DAG
from asynsched.scheduling.creation.scheduled_runs import examine_dags
from asynsched.store.engines.opening import bring_to_head, connect_direct
from asynsched.store.engines.urls import parse_url
from tests.support.stored import store_dag

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_version_deleted_during_an_examination_fails_its_dag_only():
    def check(conn):
        for dag_id in ("lost", "other"):
            store_dag(conn, DAG(dag_id, schedule="@once", start_date=START), START)

        def replace(_conn, cursor, statement, *_):
            if "dag_version.serialized" in statement:
                cursor.execute("UPDATE dag SET version_id = NULL WHERE dag_id = 'lost'")
                cursor.execute("DELETE FROM dag_version WHERE dag_id = 'lost'")

        sa.event.listen(conn, "before_cursor_execute", replace)
        return examine_dags(conn, ["lost", "other"], START)

    with connect_direct(parse_url("sqlite://")) as database:
        database.write(bring_to_head, "memory")
        found = database.write(check)
    assert "DAG version" in found["lost"].error
    assert found["other"].created is not None
