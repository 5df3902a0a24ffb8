"""What a bug is that is planted on purpose."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

Change = tuple[Any, str, Any]
"""Whose attribute, its name, and what takes its place."""


class Bug(NamedTuple):
    """One bug.

    Attributes:
        stress: The fault that brings it to light; empty: it needs none.
        n_sites: How many schedulers it takes; 0: as many as the seed says.
        first: The seed to begin with: one not far from those that find it.
    """

    what: str
    changes: Callable[[], list[Change]]
    stress: str = ""
    n_sites: int = 0
    first: int = 0

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant it for a while."""
        with ExitStack() as stack:
            for owner, name, replacement in self.changes():
                stack.enter_context(patch.object(owner, name, replacement))
            yield
