"""DateTimeTrigger and TimeDeltaTrigger: fire at an instant."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.timezone import parsed, utc, utcnow
from asynsched.authoring.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

LONGEST_SLEEP = 60.0
"""Seconds between two looks at the clock, which may be set."""


class DateTimeTrigger(BaseTrigger):
    """Fires at an instant, which is the payload.

    Args:
        moment: The instant, aware.
        target_time: The instant as a string, instead of `moment`.
        end_from_trigger: End the task as successful instead of continuing it.

    Raises:
        TypeError: Neither or both are given, or one has the wrong type.
        ValueError: The moment is naive.
    """

    def __init__(
        self,
        moment: dt.datetime | None = None,
        *,
        target_time: dt.datetime | str | None = None,
        end_from_trigger: bool = False,
    ) -> None:
        super().__init__()
        if (moment is None) == (target_time is None):
            raise TypeError("DateTimeTrigger takes either moment or target_time")
        given = moment if target_time is None else target_time
        if isinstance(given, str) and moment is None:
            given = parsed(given)
        if not isinstance(given, dt.datetime):
            raise TypeError(f"DateTimeTrigger: the moment must be a datetime, not {type(given).__name__}")
        if given.utcoffset() is None:
            raise ValueError("DateTimeTrigger: the moment must be aware: give it a timezone")
        self.moment = given.astimezone(utc)
        self.end_from_trigger = end_from_trigger

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path = f"{DateTimeTrigger.__module__}.{DateTimeTrigger.__qualname__}"
        return path, {"moment": self.moment, "end_from_trigger": self.end_from_trigger}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        import asyncio

        self.log.info("Waiting until %s", self.moment)
        while (left := (self.moment - utcnow()).total_seconds()) > 0:  # noqa: ASYNC110 - a clock announces nothing
            await asyncio.sleep(min(left, LONGEST_SLEEP))
        yield TaskSuccessEvent() if self.end_from_trigger else TriggerEvent(self.moment)


class TimeDeltaTrigger(DateTimeTrigger):
    """Fires `delta` from now.

    Args:
        end_from_trigger: End the task as successful instead of continuing it.
    """

    def __init__(self, delta: dt.timedelta, *, end_from_trigger: bool = False) -> None:
        super().__init__(moment=utcnow() + delta, end_from_trigger=end_from_trigger)
