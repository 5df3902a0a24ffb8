"""A fan-out: one task group for each region, and a task that gathers their results.

Needs:   nothing.
Runs:    once.
Prints:  `north 30, south 60, west 90: 180 in all` in the log of `gather`.
"""

from datetime import datetime

from asynsched import dag, task, task_group

REGIONS = {"north": 10, "south": 20, "west": 30}


@dag(schedule="@once", start_date=datetime(2026, 1, 1), tags=["example"])
def fan_out():
    @task
    def count(orders):
        return orders

    @task
    def price(orders):
        return orders * 3

    @task
    def gather(totals):
        listed = ", ".join(f"{region} {total}" for region, total in totals.items())
        print(f"{listed}: {sum(totals.values())} in all")
        return sum(totals.values())

    totals = {}
    for region, orders in REGIONS.items():

        @task_group(group_id=region)
        def one_region(orders):
            return price(count(orders))

        totals[region] = one_region(orders)
    gather(totals)


fan_out_dag = fan_out()

if __name__ == "__main__":
    fan_out_dag.test()
