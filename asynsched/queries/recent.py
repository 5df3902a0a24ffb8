"""Answers that are computed once in a while, however many ask."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from anyio import Lock

    from asynsched.queries.context import QueryContext

T = TypeVar("T")
Question = Callable[["QueryContext"], Awaitable[T]]
SHARE = 0.05
"""The most of the time in which an answer is computed: one that takes long is computed again later."""


class Recent:
    """The last answers to some questions in one context, by the functions that compute them."""

    def __init__(self) -> None:
        self._answers: dict[Question[Any], _Answer] = {}

    def last(self, question: Question[T], context: "QueryContext", *, within: timedelta) -> T | None:
        """Return the last answer; None if there is none that was begun within a time."""
        known, since = self._answers.get(question), context.clock.monotonic() - within.total_seconds()
        if known is None or known.begun_at is None or known.begun_at < since:
            return None
        answer: T | None = known.value
        return answer

    async def get(
        self, question: Question[T], context: "QueryContext", *, lasts: timedelta, share: float = SHARE
    ) -> T | None:
        """Return the last answer, or compute it; those who ask meanwhile wait for the same one.

        Args:
            lasts: How long an answer counts, and how long after its beginning a computation that somebody has given up
                is not begun again.
            share: The most of the time in which it is computed.

        Returns:
            None: the last computation was given up, or has failed, a moment ago.
        """
        answer = self._answers.get(question)
        if answer is None:
            answer = self._answers[question] = _Answer()
        async with answer.lock:
            now = context.clock.monotonic()
            if answer.due_at is None or answer.due_at <= now:
                answer.due_at = now + lasts.total_seconds()
                try:
                    answer.value, answer.begun_at = await question(context), now
                except BaseException:
                    answer.value = answer.begun_at = None
                    raise
                answer.due_at = now + max(lasts.total_seconds(), (context.clock.monotonic() - now) / share)
            value: T | None = answer.value
            return value


class _Answer:
    """One answer, when its computation began, and when it is due again, by the monotonic clock."""

    def __init__(self) -> None:
        import anyio  # commands, which have no loop, import the module of a context, too

        self.lock: Lock = anyio.Lock()
        self.begun_at: float | None = None
        self.due_at: float | None = None
        self.value: Any = None
