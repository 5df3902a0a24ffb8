"""Retry policies decide by a task's exception whether it is retried, and after how long.

A policy is evaluated in the process of the failed try, where the exception is. The scheduler gets only the decision.

Source: Apache Airflow 3.3's `airflow.sdk.definitions.retry_policy`.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod

from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable, Iterator

    from asynsched.authoring.running.context import Context


class RetryAction:
    """The actions after a failure: plain strings with Airflow's names.

    Attributes:
        RETRY: Retry if the task has a retry left; a policy never adds to `retries`.
        FAIL: Fail without a retry.
        DEFAULT: Follow the task's settings.
    """

    RETRY = "retry"
    FAIL = "fail"
    DEFAULT = "default"


RETRY_ACTIONS = (RetryAction.RETRY, RetryAction.FAIL, RetryAction.DEFAULT)


class RetryDecision:
    """The decision of a policy about a failure.

    Attributes:
        action: A RetryAction.
        retry_delay: The delay of the retry; None for the task's own delay. Used only with RETRY.
        reason: The reason for people, shown with the try.
    """

    __slots__ = ("action", "reason", "retry_delay")

    def __init__(
        self, action: str = RetryAction.DEFAULT, retry_delay: dt.timedelta | None = None, reason: str | None = None
    ) -> None:
        self.action = _checked_action("RetryDecision: action", action)
        self.retry_delay = _checked_delay("RetryDecision", retry_delay)
        self.reason = reason

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RetryDecision) and self._values == other._values

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        return f"RetryDecision({self.action!r}, retry_delay={self.retry_delay!r}, reason={self.reason!r})"

    @property
    def _values(self) -> tuple[object, ...]:
        return (self.action, self.retry_delay, self.reason)

    @classmethod
    def retry(cls, delay: dt.timedelta | None = None, reason: str | None = None) -> RetryDecision:
        """Decide for a retry, after `delay` if it is given."""
        return cls(RetryAction.RETRY, delay, reason)

    @classmethod
    def fail(cls, reason: str | None = None) -> RetryDecision:
        """Decide against a retry."""
        return cls(RetryAction.FAIL, reason=reason)

    @classmethod
    def default(cls) -> RetryDecision:
        """Decide to follow the task's settings."""
        return cls()


class RetryPolicy(ABC):
    """Decides about retries. Subclasses implement `evaluate`; tasks take a policy as `retry_policy=`."""

    @abstractmethod
    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide about a failed try. Not called if the task asked to fail without a retry.

        Args:
            try_number: The number of the failed try, from 1.
            max_tries: The number of retries of the task instance.
        """


class RetryRule:
    """The action after certain exceptions.

    Args:
        exception: An exception class, its dotted name (`"requests.exceptions.HTTPError"`), or a list of these. A name
            is imported only when a failure is compared with it.
        action: A RetryAction.
        retry_delay: The delay of the retry; None for the task's own delay.
    """

    def __init__(
        self,
        exception: type[BaseException] | str | list[type[BaseException] | str],
        action: str = RetryAction.RETRY,
        retry_delay: dt.timedelta | None = None,
        reason: str | None = None,
        match_subclasses: bool = True,
    ) -> None:
        self.exception = exception
        self.action = _checked_action("RetryRule: action", action)
        self.retry_delay = _checked_delay("RetryRule", retry_delay)
        self.reason = reason
        self.match_subclasses = match_subclasses
        for named in self._named():
            is_class = isinstance(named, type) and issubclass(named, BaseException)
            if not is_class and not (isinstance(named, str) and "." in named.strip(".")):
                raise DagError(
                    "RetryRule: exception must be an exception class, a dotted name such as 'builtins.ValueError', or a"
                    f" list of these, not {named!r}"
                )

    def matches(self, exception: BaseException) -> bool:
        """Return whether the rule applies to an exception."""
        classes = tuple(self._classes())
        return isinstance(exception, classes) if self.match_subclasses else type(exception) in classes

    def _named(self) -> list[type[BaseException] | str]:
        return self.exception if isinstance(self.exception, list) else [self.exception]

    def _classes(self) -> Iterator[type[BaseException]]:
        for named in self._named():
            found = _imported(named) if isinstance(named, str) else named
            if isinstance(found, type):
                yield found
            else:
                _log().warning("RetryRule: the exception %r does not exist here, so nothing matches it", named)


class ExceptionRetryPolicy(RetryPolicy):
    """A policy of rules, in order: the first that matches the exception decides.

    Args:
        default: The RetryAction if no rule matches.
    """

    def __init__(self, rules: Iterable[RetryRule], default: str = RetryAction.DEFAULT) -> None:
        self.rules = list(rules)
        self.default = _checked_action("ExceptionRetryPolicy: default", default)
        wrong = [rule for rule in self.rules if not isinstance(rule, RetryRule)]
        if wrong:
            raise DagError(f"ExceptionRetryPolicy: rules must be RetryRules, not {wrong[0]!r}")

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        for rule in self.rules:
            if rule.matches(exception):
                reason = rule.reason or f"the retry rule for {type(exception).__name__}"
                return RetryDecision(rule.action, rule.retry_delay, reason)
        return RetryDecision(self.default)


def ask(policy: RetryPolicy, exception: BaseException, context: Context) -> RetryDecision:
    """Return a policy's decision about the try of this context. A policy that fails is logged, and decides nothing.

    BaseExceptions pass, such as the caller's timeout.
    """
    ti, log = context["ti"], _log()
    try:
        decision = policy.evaluate(exception, ti.try_number, ti.max_tries, context)
    except Exception:
        log.exception("The retry policy failed; the task's settings decide")
        return RetryDecision()
    if not isinstance(decision, RetryDecision):
        log.error("The retry policy returned %r, not a RetryDecision; the task's settings decide", decision)
        return RetryDecision()
    return decision


def _checked_action(what: str, value: str) -> str:
    if value not in RETRY_ACTIONS:
        raise DagError(f"{what} must be RetryAction.RETRY, .FAIL or .DEFAULT, not {value!r}")
    return value


def _checked_delay(what: str, value: dt.timedelta | None) -> dt.timedelta | None:
    if not isinstance(value, (dt.timedelta, type(None))):
        raise DagError(f"{what}: retry_delay must be a timedelta, not {value!r}")
    return value


def _imported(name: str) -> object:
    from importlib import import_module

    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute, None)
    except ImportError:
        return None


def _log() -> logging.Logger:
    import logging

    return logging.getLogger("asynsched.task.retry_policy")
