"""The invariants of tickets: checked after every commit, in the rows themselves."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from asynsched.protocol.messages import Launch
from tests.faults.simulated.ledger import Ledger, Violation
from tests.faults.simulated.worlds import inline_database

_TICKETS = "SELECT token, state, digest, worker_boot, renewals, ended, kill_reason, launch FROM ticket ORDER BY token"
_ORDER = ("submitted", "claimed", "ended")


class TicketState(NamedTuple):
    """The checked fields of a ticket."""

    token: str
    state: str
    digest: str
    life: str
    renewals: int
    ended: bytes | None
    kill_reason: str
    launch: bytes

    @property
    def instance(self) -> tuple[str, str, str, int] | None:
        """The task instance that it is for: DAG, run, task and map index; None: it is for a callback."""
        launch = msgspec.json.decode(self.launch, type=Launch)
        if launch.callback:
            return None
        return launch.run.dag_id, launch.run.run_id, launch.task_id, launch.map_index


class Tickets:
    """Watches the tickets of one exploration.

    Attributes:
        rows: The tickets as they were when they were last looked at, by token.
        claimed_at: When each was claimed, in the world's seconds.
        never_claimed: Those that were over before a worker claimed them.
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self._driver = inline_database().connection.open()
        self._n_changes = -1
        self.rows: dict[str, TicketState] = {}
        self.claimed_at: dict[str, float] = {}
        self.never_claimed: set[str] = set()

    def check_commit(self, query: str) -> None:
        """Check what a call of the database has changed."""
        if (n_changes := self._driver.total_changes) == self._n_changes:
            return
        self._n_changes, before = n_changes, self.rows
        self.rows = {row[0]: TicketState(*row) for row in self._driver.execute(_TICKETS)}
        for token, row in self.rows.items():
            if (was := before.get(token)) != row:
                for problem in self._problems(query, was, row):
                    self._world.fail(Violation(f"{query}: {problem}"))
                self._note(was, row)

    def _problems(self, query: str, was: TicketState | None, row: TicketState) -> Iterator[str]:
        token = row.token
        if was is None:
            if row.state != "submitted":
                yield f"the ticket {token} is new, and {row.state}"
            return
        if _ORDER.index(row.state) < _ORDER.index(was.state):
            yield f"the ticket {token} was {was.state}, and is {row.state}"
        if was.state == "ended" and (row.ended, row.renewals) != (was.ended, was.renewals):
            yield f"the try {token} was over, and its ticket has changed from {was} to {row}"
        if was.state != "submitted" and (row.life, row.digest) != (was.life, was.digest):
            yield f"the ticket {token} was claimed by {was.life}, and is by {row.life}"
        if (was.state, row.state) == ("claimed", "ended") and query.removeprefix("late ") == "end_ticket":
            yield from self._wrong_loss(row)

    def _wrong_loss(self, row: TicketState) -> Iterator[str]:
        """A try was given up: no process of it may go on, and no worker that is well may have held it."""
        ledger: Ledger = self._world.ledger
        execution = ledger.tokens.get(row.token)
        holder = self._holder(row)
        if execution is not None and execution.end is None and not self._has_stood_still(row.token, holder):
            yield f"the try {row.token} was given up, and runs"
        if holder.life == row.life and holder.is_quiet and row.token not in holder.held:
            yield f"the try {row.token} was given up, and {holder.name} is well and does not know it"
        ledger.give_up(row.token)

    def _note(self, was: TicketState | None, row: TicketState) -> None:
        state = row.state if not row.kill_reason else f"{row.state}, to be ended"
        if was is None or (was.state, was.kill_reason) != (row.state, row.kill_reason):
            self._world.say("ticket", f"{row.token} {state}")
        if row.state == "claimed" and (was is None or was.state != "claimed"):
            self.claimed_at[row.token] = self._world.clock.monotonic()
        if row.state == "ended" and was is not None and was.state == "submitted":
            self.never_claimed.add(row.token)

    # Questions

    def check_begin(self, launch: Launch, machine: Any) -> None:
        """User code of a try is about to begin on a machine. Raises Violation unless this life of it has claimed it."""
        row = self.rows.get(launch.token)
        if row is None or row.state != "claimed":
            raise Violation(f"the try {launch.token} begins, and its ticket is {row and row.state}")
        if row.life != machine.life:
            raise Violation(f"the try {launch.token} begins on {machine.name}, and {row.life} has claimed it")

    def may_be_adrift(self, token: str, machine: Any) -> bool:
        """Whether a try that begins was given up while its machine stood still."""
        row = self.rows.get(token)
        return (row is None or row.state == "ended") and self._has_stood_still(token, machine)

    def _has_stood_still(self, token: str, machine: Any) -> bool:
        return machine.stood_still_at >= self.claimed_at.get(token, 0.0)

    def _holder(self, row: TicketState) -> Any:
        """Return the machine that has claimed a ticket."""
        machines = self._world.elsewhere.machines.values()
        return next(machine for machine in machines if row.life in machine.lives)

    @property
    def open(self) -> dict[str, TicketState]:
        """The tickets whose tries are not over."""
        return {token: row for token, row in self.rows.items() if row.state != "ended"}

    def complaints(self) -> Iterator[str]:
        """Yield the processes of tries that go on at a worker that is well, though nobody waits for them."""
        for machine in self._world.elsewhere.machines.values():
            if not machine.is_quiet or machine.keeper is None:
                continue
            for token, one in machine.keeper.live.items():
                row = self.rows.get(token)
                if (row is None or row.state == "ended" or row.kill_reason) and not one.is_ending:
                    yield f"the process of {token} goes on at {machine.name}, and no scheduler waits for it"
