"""Which scheduler owns a run, and whether it works: a dead one owns its runs until another one takes them over."""

import os
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from asynsched.bell import is_abandoned, is_without_bell
from asynsched.explaining.reason import Reason, moment
from asynsched.store.schema import SchedulerRow

Standing = Literal["serving", "stopping", "lapsed", "gone"]
"""The condition of a scheduler that has not left: it works; it only lets running tasks end; it has not renewed its
lease for too long; it was killed."""
RULE = "scheduler"
START = "`asynsched up`"
AFTER_STOP = f"it has ended, and another one is started: {START}"


class Owners:
    """Knows the schedulers of a database by their lease epochs, under which they own runs.

    Args:
        schedulers: All known schedulers, also those that have ended.
        standings: The condition of each that has not left, by its epoch.
        is_shared: Several schedulers may serve the database.
    """

    def __init__(
        self, schedulers: Sequence[SchedulerRow], standings: Mapping[int, Standing], *, now: datetime, is_shared: bool
    ) -> None:
        self._by_epoch = {row.lease_epoch: row for row in schedulers}
        self._standings = standings
        self._now = now
        self._is_shared = is_shared

    @property
    def are_serving(self) -> bool:
        """Whether any scheduler serves."""
        return "serving" in self._standings.values()

    @property
    def stopping(self) -> tuple[str, ...]:
        """The ids of the schedulers that are stopping."""
        return tuple(self._by_epoch[epoch].id for epoch, found in self._standings.items() if found == "stopping")

    def lack(self, epoch: int) -> Reason | None:
        """Return why no scheduler works on a running run that is owned under this epoch; None if its scheduler does.

        The reason names the run's scheduler, and says how long it has been silent, and who will take over the run when.
        """
        owner = self._by_epoch.get(epoch)
        if self._by_epoch and epoch > max(self._by_epoch):
            # Epochs only grow: this scheduler has registered, and taken over the run, after `schedulers` was read.
            return None
        if owner is None:
            return Reason("owner", "no scheduler owns this run", self._next())
        if owner.ended_at is not None:
            text = f"no scheduler has owned this run since {owner.id} ended at {moment(owner.ended_at)}"
            return Reason("owner", text, self._next())
        if self._standings.get(epoch) in ("serving", "stopping"):
            return None
        # The clock of another machine may differ: this is only shown, and decides nothing.
        whose = ", by the clock of this machine" if self._is_shared else ""
        text = f"scheduler {owner.id} owns this run, and has been silent since {moment(owner.heartbeat_at)}{whose}"
        return self._takeover(owner, text)

    def _next(self) -> str:
        return "another scheduler takes it over" if self.are_serving else f"the next one takes it over: {START}"

    def _takeover(self, owner: SchedulerRow, text: str) -> Reason:
        own = f"the next scheduler of its home, {owner.home}, takes it over at its start"
        if not self._is_shared:
            return Reason("owner", text, own)
        free_at = owner.heartbeat_at + timedelta(seconds=owner.takeover_seconds)
        if not self.are_serving:
            return Reason("owner", text, f"{own}, or one of another home, {owner.takeover_seconds:g} s after its own")
        if free_at <= self._now:
            return Reason("owner", text, f"{own}, or another one does, in a moment")
        return Reason("owner", text, f"{own}, or another one does", free_at)


def standing(row: SchedulerRow, now: datetime) -> Standing:
    """Return the condition of a scheduler that has not left; only its machine knows `stopping` and `gone`."""
    if row.lease_until <= now:
        return "lapsed"
    if row.hostname != socket.gethostname():
        return "serving"
    if not _has_process(row.pid):
        return "gone" if is_abandoned(Path(row.home)) else "serving"
    # A starting scheduler has no bell either, but has not stored its parallelism yet.
    has_started = row.parallelism > 0
    return "stopping" if has_started and is_without_bell(Path(row.home)) else "serving"


def _has_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it belongs to another user
    return True


def no_scheduler(last_served_at: datetime | None, stopping: Sequence[str] = ()) -> Reason:
    """Return the reason that comes before all others if no scheduler serves.

    Args:
        last_served_at: When the last scheduler stopped, or was last alive; None: there never was one.
        stopping: The ids of stopping schedulers, which begin nothing.
    """
    if stopping:
        told = f"scheduler {stopping[0]} is stopping: it lets running tasks end, and starts nothing more"
        return Reason(RULE, told, AFTER_STOP)
    past = "none has yet" if last_served_at is None else f"the last one served until {moment(last_served_at)}"
    return Reason(RULE, f"no scheduler is serving; {past}", f"one is started: {START}")


def answer_of(unserved: Reason) -> str:
    """Return `no_scheduler`'s reason and advice, in one or two sentences."""
    text = unserved.text[:1].upper() + unserved.text[1:]
    if unserved.release == AFTER_STOP:
        return f"{text}. Once it has ended, start another one: {START}."
    return f"{text}: start one with {START}."


def with_service(reasons: Sequence[Reason], *lacks: Reason | None) -> tuple[Reason, ...]:
    """Return reasons, after the reasons why no scheduler works, if there are any."""
    return (*(lack for lack in lacks if lack is not None), *reasons)
