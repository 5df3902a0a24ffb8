"""A task that fails the run if any task has failed, which a teardown would hide."""

from airflow.sdk import TriggerRule, task


@task(trigger_rule=TriggerRule.ONE_FAILED, retries=0)
def watcher() -> None:
    """Fail."""
    raise RuntimeError("a task of this DAG has failed")
