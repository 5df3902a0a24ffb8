"""Bugs that are planted on purpose where runs go from one scheduler to another, and limits are shared."""

from typing import Any

import sqlalchemy as sa

from asynsched.assembly import Services
from asynsched.scheduling import announcements
from asynsched.store.runs import pools, transitions
from asynsched.store.runs import queue as run_queue
from tests.faults.simulated.bug import Bug, Change
from tests.faults.simulated.conditions import STORES, Conditions


def _unguarded_write() -> list[Change]:
    statements = {name: statement.text for name, statement in transitions.STATEMENTS["sqlite"].items()}
    for name, guard in (("update_tasks", "t.lease_epoch = :epoch"), ("update_runs", _RUN_GUARD)):
        assert guard in statements[name]
        statements[name] = statements[name].replace(guard, "true")
    made = {name: sa.text(statement) for name, statement in statements.items()}
    return [(transitions, "STATEMENTS", {"sqlite": made})]


_RUN_GUARD = "t.lease_epoch = v.before_epoch"


def _uncounted_others() -> list[Change]:
    return [(pools, "pool_use_elsewhere", lambda *_: {})]


def _begun_elsewhere() -> list[Change]:
    return [(run_queue, "take_for_begun", lambda *_: None)]


def _another_boot() -> list[Change]:
    return [(announcements, "boot_mark", lambda _: "")]


def _unguarded_insert() -> list[Change]:
    return [(transitions, "_lock_runs", lambda *_: set())]


def _early_release() -> list[Change]:
    async def store_nothing(*_: Any) -> None:
        """Leave the ends to the next scheduler of the home."""

    return [(Services, "store_ends", store_nothing), (Services, "have_stored_ends", True)]


CRASHES_OF_TWO = Conditions(("crash_after",), STORES, n_sites=2, dag_id="dag0")
LATE_STORES = Conditions(("crash_before", "late_write"), STORES, n_sites=2)
BUGS_OF_OWNERSHIP: dict[str, Bug] = {
    "unguarded-write": Bug(
        "Who has lost a run to another scheduler still writes to it.", _unguarded_write, LATE_STORES
    ),
    "uncounted-others": Bug("Other schedulers' slots of a pool are not counted.", _uncounted_others, CRASHES_OF_TWO),
    "begun-elsewhere": Bug(
        "A try that was queued on another home is launched once more under its token.",
        _begun_elsewhere,
        Conditions(("crash_before",), STORES, n_sites=2),
    ),
    "begun-in-another-boot": Bug(
        "A try that was queued in another boot of its machine is launched once more under its token.",
        _another_boot,
        Conditions(("power_cut",), n_sites=1),
    ),
    "unguarded-insert": Bug(
        "Task instances are inserted into a run that is another scheduler's by now.",
        _unguarded_insert,
        LATE_STORES,
    ),
    "early-release": Bug(
        "A scheduler that stops frees its runs before the ends of their tries are stored.",
        _early_release,
        Conditions(("asked_to_stop", "outage"), n_sites=2),
    ),
}
