"""A DAG whose names are as long as they may be, or run from right to left."""

from asynsched import DAG, Asset, task

LONG_NAME = "very_long_name_" * 16

with DAG(LONG_NAME, schedule=None, dag_display_name="مرحبا بالعالم 😀 " * 8, tags=["t" * 100, "مرحبا", "😀 tag"]):

    @task(task_id="t" * 250, outlets=[Asset("n" * 200, uri="s3://" + "u" * 300)])
    def long():
        print("מ" * 400)

    @task(task_id="short")
    def short():
        pass

    long() >> short()
