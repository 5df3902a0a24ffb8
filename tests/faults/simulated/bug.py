"""The type of a bug that is planted on purpose."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.faults.simulated.conditions import AS_THE_SEED_SAYS, Conditions

Change = tuple[Any, str, Any]
"""The object, the name of its attribute, and the replacement."""


class Bug(NamedTuple):
    """One bug.

    Attributes:
        conditions: The conditions that bring it to light.
    """

    what: str
    changes: Callable[[], list[Change]]
    conditions: Conditions = AS_THE_SEED_SAYS

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant it for a while."""
        with ExitStack() as stack:
            for owner, name, replacement in self.changes():
                stack.enter_context(patch.object(owner, name, replacement))
            yield
