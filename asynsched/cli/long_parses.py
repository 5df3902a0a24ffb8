"""Which parses take long in the scheduler of a home, as it says itself."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from asynsched.bell import ask_health

if TYPE_CHECKING:
    from asynsched.health import LongParse


def long_parses(home: Path) -> "tuple[LongParse, ...]":
    """Return the parses that take long now; none where no scheduler answers, or one of another version does."""
    answer = ask_health(home)
    if answer is None:
        return ()
    from asynsched.health import Health  # it loads anyio, which reading commands do without

    with suppress(msgspec.ValidationError):
        return msgspec.json.decode(answer, type=Health).parses
    return ()
