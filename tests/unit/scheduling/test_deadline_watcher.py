"""The deadline watcher waits for the reports that a due deadline depends on, and does not seem stuck meanwhile."""

from datetime import timedelta

import anyio
from msgspec.structs import replace

from asynsched.channels import Channels
from asynsched.clock import VirtualClock
from asynsched.health import Vitals
from asynsched.scheduling.deadline_watcher import DeadlineWatcher
from asynsched.settings import MonitorSettings, Settings
from asynsched.simulation.simulation import run_virtual
from asynsched.store.runs.deadlines import decide_due_deadlines, next_deadline_at
from tests.support.passing_database import PassingDatabase
from tests.support.runs import NOON

LONGEST_STEP = 60.0


class OneDeadline(PassingDatabase):
    """Has one deadline, which is due, until it is decided."""

    def __init__(self) -> None:
        super().__init__(self)
        self.is_decided = False

    async def pass_on(self, call, query, args, kwargs):
        if query is next_deadline_at:
            return None if self.is_decided else NOON
        assert query is decide_due_deadlines
        self.is_decided = True
        return 1, []


def test_a_watcher_that_waits_long_for_reports_is_not_stuck():
    clock, database, stored = VirtualClock(NOON), OneDeadline(), anyio.Event()
    settings = replace(Settings(), monitor=MonitorSettings(longest_step=LONGEST_STEP))
    watcher = DeadlineWatcher(settings, Channels(), database, clock, lease_epoch=1, reports_stored=stored.wait)
    vitals = Vitals(clock, "me", LONGEST_STEP)
    vitals.watch(watcher.name, watcher.pulse, lambda: watcher.interval)

    async def watch():
        async with anyio.create_task_group() as group:
            group.start_soon(watcher.run)
            for _ in range(10 * int(LONGEST_STEP)):
                await clock.sleep(timedelta(seconds=1))
                assert (vitals.health().stuck_loops, watcher.is_idle, database.is_decided) == ((), False, False)
            stored.set()
            await clock.sleep(timedelta(seconds=1))
            assert (watcher.is_idle, database.is_decided) == (True, True)
            group.cancel_scope.cancel()

    run_virtual(watch, clock)
