"""A scheduler that serves a DAG whose task runs until a file named like its run exists: the run's gate."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.up import Site, Up

SLOW = """
    import os, time
    from pathlib import Path
    from asynsched import DAG, task

    with DAG("slow"):

        @task
        def waits(dag_run=None):
            print("it waits")
            while not Path(os.environ["GATES"], dag_run.run_id).exists():
                time.sleep(0.02)
            print("it goes on")

        waits()
"""


@contextmanager
def serving_gated(site: Site) -> Iterator[Up]:
    """Serve the DAG `slow` within; a run's task ends once a file with the run's id exists in the site's root."""
    site.env["GATES"] = str(site.root)
    site.write("slow.py", SLOW)
    with site.up() as up:
        site.wait_for_dag("slow")
        yield up


def wait_running(site: Site, run_id: str) -> None:
    site.until(lambda: site.task_states("slow", run_id) == {"waits": "running"}, "the task is running")
