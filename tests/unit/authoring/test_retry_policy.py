"""The decisions of retry policies, and errors in policies."""

from datetime import timedelta

import pytest

from asynsched import (
    BashOperator,
    Context,
    DagError,
    ExceptionRetryPolicy,
    RetryAction,
    RetryDecision,
    RetryPolicy,
    RetryRule,
)
from asynsched.authoring.retry_policy import ask
from asynsched.authoring.running.task_instance import DagRun, TaskInstance
from asynsched.protocol.messages import RunContext, TaskInstanceFacts
from tests.support.runs import NOON

MINUTE = timedelta(minutes=1)
POLICY = ExceptionRetryPolicy(
    [
        RetryRule("builtins.BrokenPipeError", RetryAction.FAIL, reason="nobody listens"),
        RetryRule([TimeoutError, "no.such.Name", "builtins.ConnectionError"], retry_delay=MINUTE),
        RetryRule(LookupError, RetryAction.FAIL, match_subclasses=False),
    ]
)


def context(try_number: int = 1) -> Context:
    run = DagRun(RunContext(dag_id="d", run_id="r", run_type="manual", run_after=NOON))
    task = BashOperator(task_id="t", bash_command="true", retries=2)
    return Context(ti=TaskInstance(task, run, TaskInstanceFacts(try_number=try_number, max_tries=2)))


@pytest.mark.parametrize(
    ("exception", "expected"),
    [
        (BrokenPipeError(), RetryDecision.fail("nobody listens")),
        (ConnectionResetError(), RetryDecision.retry(MINUTE, "the retry rule for ConnectionResetError")),
        (TimeoutError(), RetryDecision.retry(MINUTE, "the retry rule for TimeoutError")),
        (LookupError(), RetryDecision.fail("the retry rule for LookupError")),
        (KeyError(), RetryDecision.default()),
    ],
)
def test_the_first_rule_that_matches_decides(exception, expected):
    assert ask(POLICY, exception, context()) == expected


def test_where_no_rule_matches_the_default_decides():
    assert ask(ExceptionRetryPolicy([], RetryAction.FAIL), ValueError(), context()).action == RetryAction.FAIL


class Patient(RetryPolicy):
    def evaluate(self, exception, try_number, max_tries, context=None):
        return RetryDecision.retry(try_number * MINUTE, f"{context['ti'].task_id} has {max_tries - try_number} left")


class Broken(RetryPolicy):
    def evaluate(self, exception, try_number, max_tries, context=None):
        raise RuntimeError("the policy is broken")


class Careless(RetryPolicy):
    def evaluate(self, exception, try_number, max_tries, context=None):
        return "retry"


def test_a_policy_of_ones_own_is_told_which_try_failed():
    assert ask(Patient(), ValueError(), context(2)) == RetryDecision.retry(2 * MINUTE, "t has 0 left")


@pytest.mark.parametrize(("policy", "words"), [(Broken(), "the policy is broken"), (Careless(), "not a RetryDecision")])
def test_a_policy_that_fails_leaves_the_decision_to_the_tasks_settings(policy, words, caplog):
    assert ask(policy, ValueError(), context()) == RetryDecision.default()
    assert words in caplog.text


@pytest.mark.parametrize(
    "make",
    [
        lambda: RetryRule("ValueError"),
        lambda: RetryRule(3),
        lambda: RetryRule([ValueError, int]),
        lambda: RetryRule(ValueError, "retries"),
        lambda: RetryRule(ValueError, retry_delay=5),
        lambda: ExceptionRetryPolicy([ValueError]),
        lambda: ExceptionRetryPolicy([], "fails"),
        lambda: BashOperator(task_id="t", bash_command="true", retry_policy=ExceptionRetryPolicy),
        lambda: BashOperator(task_id="t", bash_command="true", retry_policy="exponential"),
    ],
)
def test_a_mistake_is_told_where_the_file_is_parsed(make):
    with pytest.raises(DagError, match="must be"):
        make()
