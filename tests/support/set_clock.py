"""Clocks whose wall time a test sets, while their monotonic time goes on."""

from datetime import datetime, timedelta

from asynsched.clock import Clock, VirtualClock


class SetClock(Clock):
    """The clock of this machine, `off_by` off."""

    off_by = timedelta()

    def now(self) -> datetime:
        return super().now() + self.off_by


class SetVirtualClock(VirtualClock):
    """A clock of the simulation, `off_by` off."""

    off_by = timedelta()

    def now(self) -> datetime:
        return super().now() + self.off_by
