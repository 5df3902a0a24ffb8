"""The context of questions and actions: one database, with its home, settings and clock."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace
from sqlalchemy import Connection

from asynsched.bell import Hint, ring
from asynsched.keys import DagRunKey
from asynsched.queries.recent import Recent
from asynsched.settings import Settings
from asynsched.store.audit import record_audit
from asynsched.store.database import Database
from asynsched.store.schedulers import notify

if TYPE_CHECKING:
    from asynsched.clock import Clock
    from asynsched.queries.events import EventFeed, EventReader

P = ParamSpec("P")
T = TypeVar("T")


class Act(Struct, Generic[T], frozen=True):
    """A finished action.

    Attributes:
        result: The answer to the caller.
        action: Its name in the audit, such as `dag.pause`.
        hint: Wakes the schedulers that the change concerns; names the DAG and the run for the audit.
        task_id: For the audit.
        detail: More for the audit; never secrets.
    """

    result: T
    action: str
    hint: Hint | None = None
    task_id: str | None = None
    detail: dict[str, Any] = {}


def carry_out(conn: Connection, action: Callable[[Connection], Act[T]], *, actor: str, clock: "Clock") -> Act[T]:
    """Do something for a user, note it in the audit, and notify schedulers elsewhere, all in one transaction."""
    act = action(conn)
    hint = act.hint
    record_audit(
        conn, at=clock.now(), actor=actor, action=act.action, dag_id=(hint and hint.dag_id) or None,
        run_id=(hint and hint.run_id) or None, task_id=act.task_id, detail=act.detail,
    )  # fmt: skip
    if hint is not None:
        notify(conn, hint)
    return act


class QueryContext(Struct, frozen=True):
    """A database with its home, for the event loop.

    Attributes:
        home: Its schedulers' own folder, with the logs.
        settings: Those of the schedulers.
        feed: Gives the changes of runs and task instances; None: this process does not read them, and waits for none.
        until_known: Waits until a DAG is known, or the folder was read once; None: this process does not read it.
        recent: The last answers to questions that many ask.
    """

    database: Database
    home: Path
    settings: Settings
    clock: "Clock"
    feed: "EventFeed | None" = None
    until_known: Callable[[str], Awaitable[None]] | None = None
    recent: Recent = field(default_factory=Recent)

    @property
    def settings_elsewhere(self) -> Settings:
        """The settings for a process of its own, which opens the same database, also where a program has opened it."""
        return replace(self.settings, database=self.database.address or self.settings.database)

    async def ask(self, question: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Answer a question. Raises its errors, and StoreUnavailable."""
        return await self.database.read(question, *args, **kwargs)

    async def act(
        self, actor: str, action: Callable[Concatenate[Connection, P], Act[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do something for a user, whom the audit names, and wake the schedulers that it concerns.

        Raises the action's errors, and StoreUnavailable.
        """

        def changed(conn: Connection) -> Act[T]:
            return carry_out(conn, lambda conn: action(conn, *args, **kwargs), actor=actor, clock=self.clock)

        import anyio  # commands, which have no loop, import this module too
        from anyio.to_thread import run_sync

        act = await self.database.write(changed)
        if act.hint is not None:
            with anyio.CancelScope(shield=True):  # it is done: a caller who leaves now does not delay the schedulers
                await run_sync(ring, self.home, [act.hint])
        return act.result

    def following(self, run: DagRunKey) -> "EventReader":
        """Return the changes of a run: look at the run after each, and once before the first. Raises NoEvents."""
        if self.feed is None:
            from asynsched.queries.events import NoEvents  # commands, which have no loop, import this module too

            raise NoEvents
        return self.feed.read(dag_id=run.dag_id, run_id=run.run_id)
