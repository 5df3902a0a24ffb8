"""`asynsched up --until-idle` where runs are left that cannot go on: it ends, and says which and why."""

from tests.support.up import Site

STANDING = """
    from datetime import datetime, timedelta
    from asynsched import DAG, task

    with DAG("past", schedule="@daily", start_date=datetime(2026, 1, 1), end_date=datetime(2026, 1, 2), catchup=True):
        @task(depends_on_past=True)
        def loads():
            raise ValueError("no luck")
        loads()

    with DAG("wide", schedule="@once", start_date=datetime(2026, 1, 1), dagrun_timeout=timedelta(days=1)):
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
    assert "of wide: task spreads: it needs 500 slots, and its pool 'default_pool' has 128; its dagrun_timeout" in told
    assert [run["state"] for run in site.runs("wide")] == ["running"]


POOLLESS = """
    from asynsched import DAG, EmptyOperator, task

    with DAG("moved", schedule="@once", start_date="2026-01-01"):
        for number in range(12):
            @task(task_id=f"t{number:02}", pool="big data")
            def loads():
                pass
            loads()
"""


def test_a_missing_pool_is_told_in_one_line_with_the_command_that_makes_it(tmp_path):
    site = Site(tmp_path)
    site.write("moved.py", POOLLESS)
    ended = site.run("up", str(site.dags), "--until-idle", code=1)
    make = "`asynsched pools set 'big data' SLOTS`"
    [warned] = [line for line in ended.stderr.splitlines() if "task.cannot_start" in line]
    assert make in warned
    assert "n_tasks=12" in warned
    [told] = [line for line in ended.stderr.splitlines() if line.startswith("Error")]
    assert told.count("pool") == 2
    assert f"tasks t00, t01, t02, t03, t04 and 7 more: there is no pool 'big data': {make}" in told
    shown = site.run("dags", "show", "moved")
    assert shown.stderr == f"There is no pool 'big data', so t00, t01, t02 and 9 more cannot start: {make}\n"
    assert site.json("dags", "show", "moved")["missing_pools"] == ["big data"]
    site.run("pools", "set", "big data", "2")
    assert site.json("dags", "show", "moved")["missing_pools"] == []
