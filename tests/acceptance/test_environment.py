"""Which variables of the scheduler's environment user code sees, wherever it runs."""

import pytest

from tests.support.up import Site

COLD = True

DAG_FILE = """
    import os
    from pathlib import Path
    from asynsched import DAG, task

    def seen():
        return sorted(name for name in os.environ if name.startswith("PG"))

    def called_back(context):
        Path(os.environ["MARK"]).write_text(" ".join(seen()))

    with DAG("looks", tags=seen(), on_success_callback=called_back):

        @task
        def around():
            print("SEEN", *seen(), "END")
            return seen()

        around()
"""
VARIABLES = {"PGPASSWORD": "hunter22", "PGPASSFILE": "/nowhere", "PGSERVICEFILE": "/nowhere", "PGUSER": "nobody"}


@pytest.fixture
def site(new_site) -> Site:
    site = new_site()
    site.env |= {"MARK": str(site.root / "mark"), "ASYNSCHED_PARSE__ENVIRONMENT": "PG*", **VARIABLES}
    site.write("looks.py", DAG_FILE)
    return site


def test_tasks_keep_postgresql_variables_unless_the_scheduler_uses_them(site, backend):
    expected = [] if backend == "postgresql" else sorted(VARIABLES)
    with site.up():
        site.wait_for_dag("looks")
        assert sorted(site.json("dags", "show", "looks")["tags"]) == expected
        site.run("dags", "trigger", "looks", "--run-id", "r", "--wait")
        [found] = site.json("tasks", "xcom", "looks", "r", "around")
        assert found["value"] == expected
        site.until((site.root / "mark").exists, "the callback was run")
        assert (site.root / "mark").read_text().split() == expected
    tested = site.run("dags", "test", "looks")
    assert " ".join(["SEEN", *expected, "END"]) in tested.stderr
