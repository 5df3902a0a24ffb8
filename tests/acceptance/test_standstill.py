"""`asynsched up --until-idle` where runs are left that cannot go on: it ends, and says which and why."""

from tests.support.up import Site

STANDING = """
    from datetime import datetime
    from asynsched import DAG, task

    with DAG("past", schedule="@daily", start_date=datetime(2026, 1, 1), end_date=datetime(2026, 1, 2), catchup=True):
        @task(depends_on_past=True)
        def loads():
            raise ValueError("no luck")
        loads()

    with DAG("wide", schedule="@once", start_date=datetime(2026, 1, 1)):
        @task(pool_slots=500)
        def spreads():
            pass
        spreads()
"""


def test_up_until_idle_ends_with_what_cannot_go_on(tmp_path):
    site = Site(tmp_path)
    site.write("standing.py", STANDING)
    ended = site.run("up", str(site.dags), "--until-idle", code=1)
    site.assert_nothing_left()
    assert "1 run has ended: 1 failed." in ended.stderr
    [told] = [line for line in ended.stderr.splitlines() if line.startswith("Error")]
    assert "No active run can continue" in told
    assert "of past: task loads: " in told
    assert "of wide: task spreads: it needs 500 slots, and its pool 'default_pool' has 128" in told
    assert [run["state"] for run in site.runs("wide")] == ["running"]
