"""Instants that tasks are given as pendulum's, each made when it is first looked at.

Most tasks look at none. To make one runs code that lies on many pages of memory, and a try, which is a fork, copies
each page that it is the first to use.
"""

from __future__ import annotations

from asynsched.authoring.timezone import coerce_datetime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Instant:
    """An attribute that shows a field of `self._facts`, a datetime or None, as pendulum's DateTime.

    Args:
        fact: The name of that field.
    """

    def __init__(self, fact: str) -> None:
        self._fact = fact

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        # Next time it is found there, without being asked for here.
        made = instance.__dict__[self._name] = coerce_datetime(getattr(instance._facts, self._fact))  # noqa: SLF001 - a part of it
        return made
