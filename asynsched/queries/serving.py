"""Whether a scheduler serves a place, which one owns which run, and what takes it long now.

These ask the scheduler of the home through its socket, for a moment: call them in a thread, or outside of a scheduler.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.bell import ask_health
from asynsched.errors import NotServing
from asynsched.explaining.owners import Owners, standing
from asynsched.explaining.reason import Reason
from asynsched.store.schedulers import known_schedulers
from asynsched.store.schema import SchedulerRow, dag_run

if TYPE_CHECKING:
    from asynsched.health import Health, LongParse


def owners_of(schedulers: Sequence[SchedulerRow], now: datetime, *, is_shared: bool) -> Owners:
    """Return the scheduler that owns each running run, if this process can know it.

    Args:
        schedulers: All known ones, also those that have ended.
        is_shared: Whether several schedulers may serve the database.
    """
    standings = {row.lease_epoch: standing(row, now) for row in schedulers if row.ended_at is None}
    return Owners(schedulers, standings, now=now, is_shared=is_shared)


def lack_of(conn: Connection, run_row_id: int, now: datetime, *, is_shared: bool) -> Reason | None:
    """Return why no scheduler works on a running run; None if its scheduler does."""
    epoch = conn.scalar(sa.select(dag_run.c.lease_epoch).where(dag_run.c.id == run_row_id))
    return None if epoch is None else owners_of(known_schedulers(conn), now, is_shared=is_shared).lack(epoch)


def long_parses(home: Path) -> "tuple[LongParse, ...]":
    """Return the parses that take long now; none if no scheduler answers, or one of another version does."""
    answer = ask_health(home)
    if answer is None:
        return ()
    from asynsched.health import Health  # loads anyio, which reading commands do not need

    with suppress(msgspec.ValidationError):
        return msgspec.json.decode(answer, type=Health).parses
    return ()


def health_of_home(home: Path) -> "Health":
    """Return the health of the scheduler that serves a home. Raises NotServing if none answers."""
    from asynsched.health import Health  # as above

    answer = ask_health(home)
    if answer is None:
        raise NotServing("No scheduler of this home answers.")
    return msgspec.json.decode(answer, type=Health)
