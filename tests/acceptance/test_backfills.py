"""Backfills: runs for a span of the past, beside the schedule."""

DATABASES = ("postgresql",)

DAGS = """
    from datetime import datetime, timedelta
    from asynsched import DAG, task

    with DAG("daily", schedule="0 0 * * *", start_date=datetime(2026, 1, 1), catchup=False, params={"n": 1},
             max_active_runs=1, is_paused_upon_creation=True) as daily:

        @task
        def says(ds=None, dag_run=None, params=None):
            if ds == "2026-01-04" and params["n"] == 1:
                raise ValueError("not that day")
            print(dag_run.run_type, ds)

        says()

    with DAG("by_hand"):

        @task
        def nothing():
            pass

        nothing()

    with DAG("chained", schedule="@daily", start_date=datetime(2026, 1, 1), is_paused_upon_creation=True):

        @task(depends_on_past=True)
        def follows():
            pass

        follows()
"""
SPAN = ("--from", "2026-01-02T00:00:00Z", "--to", "2026-01-05T00:00:00Z")


def states(site, dag_id):
    return {run["logical_date"][:10]: run["state"] for run in site.runs(dag_id)}


def test_a_backfill_repeats_only_failed_dates_and_spares_the_schedule(new_site):
    site = new_site()
    site.write("backfilled.py", DAGS)
    with site.up():
        site.wait_for_dag("chained")
        would = site.json("backfill", "create", "daily", *SPAN, "--dry-run")
        assert [row["logical_date"][:10] for row in would] == [f"2026-01-0{day}" for day in (2, 3, 4, 5)]
        made = site.json("backfill", "create", "daily", *SPAN, "--reverse", "--max-active-runs", "2")
        another = site.run("backfill", "create", "daily", *SPAN, code=1)
        assert f"asynsched backfill cancel {made['id']}" in another.stderr
        site.run("backfill", "pause", str(made["id"]))
        assert set(states(site, "daily").values()) == {"queued"}, "its DAG is paused"
        site.run("dags", "unpause", "daily")
        site.run("backfill", "unpause", str(made["id"]))
        shown = ["backfill", "show", str(made["id"])]
        site.until(lambda: site.json(*shown)["state"] == "completed", "the backfill has ended")
        done = site.json(*shown)
        assert [date["logical_date"][:10] for date in done["dates"]] == [f"2026-01-0{day}" for day in (5, 4, 3, 2)]
        assert (done["n_success"], done["n_failed"]) == (3, 1)
        assert {run["run_type"] for run in site.runs("daily") if run["logical_date"] < "2026-01-06"} == {"backfill"}
        conf = ("--conf", '{"n": 2}')
        again = site.json("backfill", "create", "daily", *SPAN, "--reprocess", "failed", *conf)
        site.until(lambda: site.json("backfill", "show", str(again["id"]))["state"] == "completed", "it has ended")
        reasons = [date["exception_reason"] for date in site.json("backfill", "show", str(again["id"]))["dates"]]
        assert reasons == ["already exists", "already exists", None, "already exists"]
        log = site.run("tasks", "logs", "daily", "backfill__2026-01-04T00:00:00+00:00", "says")
        assert "backfill 2026-01-04" in log.stdout
        for arguments, words in (
            (("by_hand", *SPAN), "nothing to backfill"),
            (("daily", "--from", SPAN[3], "--to", SPAN[1]), "after its end"),
            (("daily", "--from", "2199-01-01", "--to", "2199-02-01"), "future"),
            (("chained", *SPAN, "--reverse", "--reprocess", "failed"), "depend on the past"),
            (("chained", *SPAN), "reprocess"),
        ):
            assert words in site.run("backfill", "create", *arguments, code=1).stderr
