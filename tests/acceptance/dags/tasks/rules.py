"""Every trigger rule below the same three upstreams: one that succeeds, one that fails, one that is skipped."""

from asynsched import DAG, AsynschedSkipException, EmptyOperator, task

RULES = ("all_success", "all_done", "all_failed", "one_success", "one_failed", "none_failed", "always")


@task
def good():
    return 1


@task
def bad():
    raise RuntimeError("bad")


@task(trigger_rule="all_done")
def skipped():
    raise AsynschedSkipException


with DAG("rules", schedule="@once"):
    ends = {"good": good(), "bad": bad(), "skipped": skipped()}
    ends["bad"] >> ends["skipped"]  # a rule decides from the ends so far: of a failure and a skip, the first counts
    for rule in RULES:
        [*ends.values()] >> EmptyOperator(task_id=f"{rule}_of_all", trigger_rule=rule)
        for name, end in ends.items():
            end >> EmptyOperator(task_id=f"{rule}_of_{name}", trigger_rule=rule)
