"""Retry policies: which failures of a task are worth a retry, and after how long, by the exception that it raised.

A policy is asked in the process of the try that failed, where the exception is. The scheduler hears only what it chose.

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
    """What follows a failure: plain strings under Airflow's names.

    Attributes:
        RETRY: A retry, if the task has one left: a policy never adds to `retries`.
        FAIL: None: the task has failed.
        DEFAULT: What the task's settings say.
    """

    RETRY = "retry"
    FAIL = "fail"
    DEFAULT = "default"


RETRY_ACTIONS = (RetryAction.RETRY, RetryAction.FAIL, RetryAction.DEFAULT)


class RetryDecision:
    """What a policy decided about one failure.

    Attributes:
        action: What follows.
        retry_delay: How long a retry waits; None: as the task's settings say. Looked at with RETRY only.
        reason: Why, for a person; it is shown with the try.
    """

    __slots__ = ("action", "reason", "retry_delay")

    def __init__(
        self,
        action: str = RetryAction.DEFAULT,
        retry_delay: dt.timedelta | None = None,
        reason: str | None = None,
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
        """Return the decision for a retry, after `delay` if one is given."""
        return cls(RetryAction.RETRY, delay, reason)

    @classmethod
    def fail(cls, reason: str | None = None) -> RetryDecision:
        """Return the decision against a retry."""
        return cls(RetryAction.FAIL, reason=reason)

    @classmethod
    def default(cls) -> RetryDecision:
        """Return the decision to follow the task's settings."""
        return cls()


class RetryPolicy(ABC):
    """Decides about retries. Subclasses write `evaluate`; a task takes one as `retry_policy=`."""

    @abstractmethod
    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide about a try that failed. One that asked to fail without a retry is not brought before a policy.

        Args:
            exception: What it raised.
            try_number: Of the try that failed; the first is 1.
            max_tries: How many retries the task instance has.
            context: The context of the try.
        """


class RetryRule:
    """What follows failures of some kinds.

    Args:
        exception: An exception class, its dotted name (`"requests.exceptions.HTTPError"`), or a list of such. A name is
            imported only when a failure is compared with it.
        action: What follows a failure that is one of them.
        retry_delay: How long the retry waits then; None: as the task's settings say.
        reason: Why, for a person.
        match_subclasses: Whether subclasses are meant as well.

    Raises:
        DagError: One of them is wrong.
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
                    "RetryRule: exception must be an exception class or its dotted name, such as"
                    f" 'builtins.ValueError', or a list of these, not {named!r}"
                )

    def matches(self, exception: BaseException) -> bool:
        """Return whether a failure is of a kind that the rule is about."""
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
                _log().warning("RetryRule: there is no exception %r here, so nothing matches it", named)


class ExceptionRetryPolicy(RetryPolicy):
    """Rules in order: the first that matches the exception decides.

    Args:
        rules: RetryRules.
        default: The RetryAction where no rule matches.

    Raises:
        DagError: One of them is wrong.
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
    """Return what a policy decides about the try of this context; one that fails itself is logged, and decides nothing.

    Raises what is no Exception, such as a limit of time that the caller has set.
    """
    ti, log = context["ti"], _log()
    try:
        decision = policy.evaluate(exception, ti.try_number, ti.max_tries, context)
    except Exception:
        log.exception("The retry policy failed; the task's own settings decide")
        return RetryDecision()
    if not isinstance(decision, RetryDecision):
        log.error("The retry policy returned %r, no RetryDecision; the task's own settings decide", decision)
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
