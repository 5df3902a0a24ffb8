"""Each try of these tasks is a pod."""

from datetime import timedelta

from asynsched import dag, task

LARGE = {"spec": {"containers": [{"name": "base", "resources": {"requests": {"memory": "1Gi", "cpu": "1"}}}]}}


@dag(schedule=timedelta(hours=1))
def hello():
    @task
    def parts():
        return [1, 2, 3]

    @task(executor_config={"pod_override": LARGE}, retries=2)
    def square(part):
        return part**2

    square.expand(part=parts())


hello()
