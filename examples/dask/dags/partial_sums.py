"""A fan-out whose parts run on the workers of a Dask cluster, before tasks of a lower priority.

Needs:   the settings of ../asynsched.toml, or any executor: priorities of Dask have no meaning for the local one.
Runs:    once.
Prints:  `the sum is 499500` in the log of `total`.
"""

from datetime import datetime

from asynsched import dag, task


@dag(schedule="@once", start_date=datetime(2026, 1, 1), tags=["example"])
def partial_sums():
    @task(executor_config={"priority": 1})
    def add(bounds):
        return sum(range(*bounds))

    @task
    def total(parts):
        print(f"the sum is {sum(parts)}")

    total(add.expand(bounds=[[0, 100], [100, 400], [400, 1000]]))


partial_sums_dag = partial_sums()

if __name__ == "__main__":
    partial_sums_dag.test()
