"""Tasks on queues of Celery: two are prepared anywhere, and the training waits for a worker with a GPU.

Needs:   the services of ../compose.yaml, or any executor: queues have no meaning for the local one.
Runs:    once.
Prints:  `trained on 30 rows` in the log of `train`.
"""

from datetime import datetime

from asynsched import dag, task


@dag(schedule="@once", start_date=datetime(2026, 1, 1), tags=["example"])
def training():
    @task
    def prepare(rows):
        return rows

    @task(queue="gpu", priority_weight=100)
    def train(parts):
        print(f"trained on {sum(parts)} rows")

    train(prepare.expand(rows=[10, 20]))


training_dag = training()

if __name__ == "__main__":
    training_dag.test()
