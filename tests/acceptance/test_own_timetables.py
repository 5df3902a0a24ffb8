"""Timetables of authors' own under a real scheduler: their code runs where DAG files are parsed, and nowhere else."""

from contextlib import closing

import pytest

from asynsched.store.engines.opening import open_direct
from tests.support.stored import list_versions

DATABASES = ("sqlite",)

HEAD = """
    from datetime import datetime, timedelta
    from asynsched import DAG, EmptyOperator
    from asynsched.timetables import DagRunInfo, DataInterval, Timetable

"""
EVERY_OTHER_DAY = """
    class EveryOtherDay(Timetable):
        def next_dagrun_info(self, *, last_automated_data_interval, restriction):
            last = last_automated_data_interval
            start = restriction.earliest if last is None else last.start.add(days=2)
            return None if start > restriction.latest else DagRunInfo.interval(start, start.add(days=2))

        def infer_manual_data_interval(self, *, run_after):
            return DataInterval(run_after.subtract(days=2), run_after)

    with DAG("own", schedule=EveryOtherDay(), start_date=datetime(2025, 1, 1), end_date=datetime(2025, 6, 30),
             catchup=True):
        EmptyOperator(task_id="only")
"""


@pytest.fixture
def site(new_site):
    return new_site()


def test_more_runs_than_were_asked_for_at_once_are_all_made(site):
    site.write("own.py", HEAD + EVERY_OTHER_DAY)
    site.up_until_idle()
    made = sorted(run["logical_date"] for run in site.json("runs", "list", "own", "--limit", "1000"))
    assert len(made) == 91
    assert (made[0], made[1], made[-1]) == ("2025-01-01T00:00:00Z", "2025-01-03T00:00:00Z", "2025-06-30T00:00:00Z")
    assert site.json("dags", "next", "own") == []

    simulated = site.json("simulate", str(site.dags), "--from", "2025-02-01", "--to", "2025-02-08")
    assert [run["logical_date"][:10] for run in simulated] == ["2025-01-31", "2025-02-02", "2025-02-04"]

    asked = site.json("dags", "next", "own", "-n", "60", "--now", "2025-02-01", "--last-run", "2025-01-01/2025-01-03")
    assert len(asked) == 60
    assert asked[0] == {
        "logical_date": "2025-01-03T00:00:00Z",
        "data_interval_start": "2025-01-03T00:00:00Z",
        "data_interval_end": "2025-01-05T00:00:00Z",
        "run_after": "2025-01-05T00:00:00Z",
        "partition_date": None,
        "partition_key": None,
    }
    run = site.json("dags", "trigger", "own", "--logical-date", "2026-01-10")
    assert (run["data_interval_start"], run["data_interval_end"]) == ("2026-01-08T00:00:00Z", "2026-01-10T00:00:00Z")


def test_a_backfill_asks_one_for_the_runs_of_its_span(site):
    forever = EVERY_OTHER_DAY.replace(" if start > restriction.latest else", " if start is None else")
    site.write("own.py", HEAD + EVERY_OTHER_DAY.replace("start_date", "is_paused_upon_creation=True, start_date"))
    site.write("ever.py", HEAD + forever.replace('"own"', '"ever"').replace("catchup=True", "catchup=False"))
    span = ("--from", "2024-03-01", "--to", "2024-03-05")
    expected = ["2024-03-01", "2024-03-03", "2024-03-05"]
    for dag_id in ("own", "ever"):
        would = site.json("backfill", "create", dag_id, *span, "--dry-run")
        assert [date["logical_date"][:10] for date in would] == expected
    made = site.json("backfill", "create", "own", *span)
    site.run("dags", "unpause", "own")
    site.up_until_idle()
    assert site.json("backfill", "show", str(made["id"]))["n_success"] == 3
    too_long = site.run("backfill", "create", "own", "--from", "1900-01-01", "--to", "2025-01-01", code=1)
    assert "more than 10000 runs" in too_long.stderr
    never = site.run("backfill", "create", "own", "--from", "2026-01-01", "--to", "2025-01-01", code=1)
    assert "after its end" in never.stderr
    site.write("ever.py", HEAD + EVERY_OTHER_DAY.replace("Timetable):", "Timetable):\n        periodic = False\n"))
    site.write("own.py", "")
    site.up_until_idle()
    refused = site.run("backfill", "create", "own", *span, code=1)
    assert "has the schedule EveryOtherDay, which is not periodic" in refused.stderr


NAMES = """
    class Named(EveryOtherDay):
        def generate_run_id(self, *, run_type, run_after, data_interval, **extra):
            return f"{run_type}.{data_interval.start:%d-%B}" if data_interval else f"{run_type}.undated"

    with DAG("named", schedule=Named(), start_date=datetime(2025, 1, 1), end_date=datetime(2025, 1, 3), catchup=True):
        EmptyOperator(task_id="only")
"""


def test_runs_have_the_names_that_one_gives_them(site):
    site.write("named.py", HEAD + EVERY_OTHER_DAY.replace('"own"', '"own", is_paused_upon_creation=True') + NAMES)
    site.up_until_idle()
    for options in (
        ("--logical-date", "2025-03-03"),
        ("--logical-date", "2026-03-03"),
        ("--logical-date", "2025-05-01", "--run-id", "mine"),
        ("--no-logical-date",),
    ):
        site.run("dags", "trigger", "named", *options)
    site.run("backfill", "create", "named", "--from", "2024-01-01", "--to", "2024-01-01")
    site.up_until_idle()
    assert sorted(run["run_id"] for run in site.runs("named")) == [
        "backfill__2024-01-03T00:00:00+00:00", "manual.01-March", "manual.01-March_2", "manual.undated", "mine",
        "scheduled.01-January", "scheduled.03-January",
    ]  # fmt: skip


def test_one_that_fails_later_keeps_its_dag_and_says_what_is_wrong(site):
    good = HEAD + EVERY_OTHER_DAY.replace("datetime(2025, 6, 30)", "datetime(2025, 1, 4)")
    site.write("own.py", good)
    site.up_until_idle()
    site.write("own.py", good.replace("return None if", "raise LookupError('no calendar')\n            return None if"))
    site.up_until_idle()
    [error] = site.json("dags", "errors")
    assert error["dag_id"] == "own"
    assert "DAG 'own': its timetable EveryOtherDay raised LookupError: no calendar" in error["message"]
    assert len(site.runs("own")) == 2
    refused = site.run("dags", "next", "own", code=1)
    assert "no calendar" in refused.stderr
    assert "Traceback" not in refused.stderr


def version_numbers(site, dag_id):
    with closing(open_direct(site.database or f"sqlite:///{site.home / 'asynsched.db'}")) as database:
        return [version.number for version in database.read(list_versions, dag_id)]


def test_a_field_that_no_two_parses_agree_on_makes_no_versions_and_is_named(site):
    text = """
        import uuid
        from asynsched import DAG, EmptyOperator

        with DAG("shaky", schedule=None, doc_md=str(uuid.uuid4())):
            EmptyOperator(task_id="only", doc_md="as it was")
    """
    site.write("shaky.py", text)
    site.up_until_idle()
    site.run("dags", "reparse", "shaky")
    site.write("shaky.py", text + "    # what a comment says is no part of a version\n")
    site.run("dags", "reparse", "shaky")
    assert version_numbers(site, "shaky") == [1]
    [warning] = site.json("dags", "errors")
    assert "'shaky': two parses of the same file differ in doc_md;" in warning["message"]
    assert warning["is_warning"] is True

    site.write("shaky.py", text.replace("as it was", "as it is now"))
    site.run("dags", "reparse", "shaky")
    assert version_numbers(site, "shaky") == [2, 1]
