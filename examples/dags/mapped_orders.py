"""A mapped task: one instance for each file, and a task that gathers their results.

Needs:   nothing.
Runs:    once.
Prints:  `3 files, 60 orders` in the log of `gather`.
"""

from datetime import datetime

from asynsched import dag, get_current_context, task


@dag(schedule="@once", start_date=datetime(2026, 1, 1), tags=["example"])
def mapped_orders():
    @task
    def find_files():
        return [{"name": "north", "orders": 10}, {"name": "south", "orders": 20}, {"name": "west", "orders": 30}]

    @task(map_index_template="{{ name }}")
    def count(file):
        get_current_context()["name"] = file["name"]
        return file["orders"]

    @task
    def gather(counts):
        print(f"{len(counts)} files, {sum(counts)} orders")

    gather(count.expand(file=find_files()))


mapped_orders_dag = mapped_orders()

if __name__ == "__main__":
    mapped_orders_dag.test()
