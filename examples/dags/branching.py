"""A branch and a join.

The branch picks one of two paths; the other one is skipped. The trigger rule of the join accepts a skipped upstream
task; with the default, `all_success`, the join would be skipped too.

Needs:   nothing.
Runs:    once; to run it with another amount: `asynsched dags trigger branching --conf '{"amount": 50}'`.
Prints:  `large order, checked by hand` in the log of `check_by_hand`, and `standard delivery, shipped` in the log of
         `ship`.
"""

from datetime import datetime

from asynsched import Param, dag, task


@dag(
    schedule="@once",
    start_date=datetime(2026, 1, 1),
    tags=["example"],
    params={
        "amount": Param(1500, type="integer", minimum=0, description="What the order costs, in euros."),
        "delivery": Param("standard", enum=["standard", "express"], description="How fast the order is sent."),
    },
)
def branching():
    @task.branch
    def how_large(params):
        return "check_by_hand" if params["amount"] > 1000 else "accept"

    @task
    def check_by_hand():
        print("large order, checked by hand")

    @task
    def accept():
        print("small order, accepted")

    @task(trigger_rule="none_failed_min_one_success")
    def ship(params):
        print(f"{params['delivery']} delivery, shipped")

    how_large() >> [check_by_hand(), accept()] >> ship()


branching_dag = branching()

if __name__ == "__main__":
    branching_dag.test()
