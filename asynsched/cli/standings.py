"""Which of the stored schedulers serve, as far as that can be known from here."""

import os
import socket
from datetime import datetime
from pathlib import Path

from asynsched.bell import is_abandoned, is_without_bell
from asynsched.explaining.owners import Standing
from asynsched.store.schedulers.schedulers import SchedulerRow


def standing(row: SchedulerRow, now: datetime) -> Standing:
    """Return how it stands with a scheduler that has not left; `stopping` and `gone` are known on its machine only."""
    if row.lease_until <= now:
        return "lapsed"
    if row.hostname != socket.gethostname():
        return "serving"
    if not _has_process(row.pid):
        return "gone" if is_abandoned(Path(row.home)) else "serving"
    # One that starts has no bell either, but has not said yet how many tasks it runs at once.
    has_started = row.parallelism > 0
    return "stopping" if has_started and is_without_bell(Path(row.home)) else "serving"


def _has_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is another user's
    return True
