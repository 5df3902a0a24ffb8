"""HITLOperator and its kin: what their constructors refuse, and what they do without a scheduler."""

from datetime import timedelta

import pytest

from asynsched import DAG, ApprovalOperator, HITLBranchOperator, HITLEntryOperator, HITLOperator, Param
from asynsched.states import DagRunState


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (HITLOperator, {"options": []}, "options must not be empty"),
        (HITLOperator, {"options": ["a"], "params": {"_options": 1}}, "no param may have the name '_options'"),
        (HITLOperator, {"options": ["a"], "defaults": "b"}, "are not among the options"),
        (HITLOperator, {"options": ["a", "b"], "defaults": ["a", "b"]}, "several defaults need multiple=True"),
        (ApprovalOperator, {"options": ["a"]}, "an ApprovalOperator takes no options"),
        (HITLBranchOperator, {"options": ["a"], "options_mapping": {"b": "t"}}, "has keys that are no options"),
        (HITLBranchOperator, {"options": ["a"], "options_mapping": {"a": 1}}, "must be a task_id, not 1"),
    ],
)
def test_a_question_that_nobody_could_answer_is_refused(kind, arguments, message):
    with DAG("d"), pytest.raises(ValueError, match=message):
        kind(task_id="t", subject="?", **arguments)


def test_the_time_for_an_answer_may_be_given_as_airflow_3_1_does():
    with DAG("d"), pytest.warns(DeprecationWarning, match="pass response_timeout"):
        asks = HITLOperator(task_id="t", subject="?", options=["a"], execution_timeout=timedelta(hours=1))
    assert (asks.response_timeout, asks.execution_timeout) == (timedelta(hours=1), None)


def test_without_a_scheduler_the_defaults_answer():
    with DAG("d") as dag:
        HITLEntryOperator(task_id="enters", subject="?", params={"n": Param(3, type="integer")})
        refuses = ApprovalOperator(task_id="refuses", subject="?", defaults="Reject")
        fails = ApprovalOperator(task_id="fails", subject="?", defaults="Reject", fail_on_reject=True)
        nobody = HITLOperator(task_id="nobody", subject="?", options=["a"], trigger_rule="all_done")
        refuses >> HITLOperator(task_id="after", subject="?", options=["a"])
        fails >> nobody
    run = dag.test()
    states = {task.task_id: str(task.state) for task in run.tasks}
    assert states == {
        "enters": "success", "refuses": "success", "after": "skipped", "fails": "failed", "nobody": "failed",
    }  # fmt: skip
    results = {task.task_id: task.result for task in run.tasks}
    assert results["enters"]["params_input"] == {"n": 3}
    assert results["refuses"]["chosen_options"] == ["Reject"]
    assert run.state == DagRunState.FAILED
