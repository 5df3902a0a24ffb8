"""The effect of a retry policy on the end of a try."""

import pytest

from asynsched import Context, RetryDecision, RetryPolicy
from asynsched.protocol.messages import Ended
from sandbox import run as try_outcome
from sandbox.run import TaskTerminated, decided_by_policy
from tests.support.runs import NOON
from tests.unit.authoring.test_retry_policy import MINUTE, context

FAILED = Ended("token", "failed", NOON, NOON, "ValueError: no")


class Says(RetryPolicy):
    def __init__(self, decision: RetryDecision) -> None:
        self.decision = decision

    def evaluate(self, exception, try_number, max_tries, context=None):
        return self.decision


def decided(policy) -> tuple[bool, float | None, str]:
    end = decided_by_policy(FAILED, policy, ValueError("no"), context())
    return end.retry, end.retry_delay, end.reason


def test_a_policy_says_whether_and_when_and_why_a_try_is_retried():
    assert decided(None) == (True, None, "ValueError: no")
    assert decided(Says(RetryDecision.default())) == (True, None, "ValueError: no")
    assert decided(Says(RetryDecision.retry())) == (True, None, "ValueError: no")
    assert decided(Says(RetryDecision.retry(MINUTE, "a\npause"))) == (True, 60.0, "ValueError: no (a pause)")
    assert decided(Says(RetryDecision.fail("x" * 10_000))) == (False, None, f"ValueError: no ({'x' * 500}…)")


@pytest.mark.parametrize(
    ("ended", "exc"),
    [
        (Ended("token", "skipped", NOON), ValueError()),
        (Ended("token", "failed", NOON, retry=False), ValueError()),
        (FAILED, TaskTerminated("killed")),
    ],
)
def test_what_is_no_failure_of_the_tasks_own_is_not_brought_before_a_policy(ended, exc):
    assert decided_by_policy(ended, Says(RetryDecision.retry(MINUTE)), exc, Context()) is ended


def test_a_policy_that_thinks_for_ever_is_interrupted(monkeypatch, caplog):
    class Thinks(RetryPolicy):
        def evaluate(self, exception, try_number, max_tries, context=None):
            while True:
                pass

    monkeypatch.setattr(try_outcome, "LIMIT_SECONDS", 0.01)
    assert decided(Thinks()) == (True, None, "ValueError: no")
    assert "took longer" in caplog.text
