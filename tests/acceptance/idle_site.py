"""A site with a few DAGs that no scheduler serves."""

from tests.support.up import Site

DAGS = """
    from datetime import datetime
    from asynsched import DAG, EmptyOperator, Label, TaskGroup, task

    with DAG("etl", schedule="30 6 * * *", start_date=datetime(2026, 1, 1), tags=["b", "a"]):

        @task
        def extract():
            print("from the task \\x1b[31mred")
            return [1, 2]

        with TaskGroup("inner"):
            EmptyOperator(task_id="load")

        extract() >> Label("all of it") >> EmptyOperator(task_id="transform")

    with DAG("broken"):

        @task(retries=0)
        def fails():
            raise ValueError("as it must")

        fails()
"""


def make_idle_site(new_site) -> Site:
    site = new_site()
    site.write("some.py", DAGS)
    site.write("wrong.py", "import asynsched\nfrom asynsched import DAG\nimport no_such_module\n")
    site.run("dags", "reparse", "some.py")
    return site
