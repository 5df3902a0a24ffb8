"""The application as something to serve or to mount: it loads itself at its first request, and closes with its host.

Starlette and what belongs to it take a fraction of a second to load: a scheduler whose page nobody opens never does
that, and it happens in a thread, beside the event loop.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import anyio
from anyio.to_thread import run_sync

from asynsched.clock import Clock
from asynsched.errors import AsynschedError
from asynsched.queries.context import QueryContext
from asynsched.settings import Settings
from asynsched.store.database import AnnouncingDatabase, Database
from asynsched.store.engines.opening import open_as_set

if TYPE_CHECKING:
    from asynsched.queries.events import EventFeed
    from asynsched.web.access import Access
    from asynsched.web.workers import WorkerDesk

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
GRACE_SECONDS = 0.5
"""How long requests may go on when the application closes; streams of events have no end of their own."""
NOT_READY = b'{"detail": "The scheduler is not serving."}'


class WebApp:
    """An ASGI application: the page and the REST APIs of one database, on connections of its own.

    Args:
        is_ready: Whether there is a scheduler, or none is needed.
        database: An open one; None: that of the settings.
        access: Tells who asks; None: the users, sessions and tokens of the database.
        checks_host: Whether it checks by which names it is addressed; in a host application, that one does.
        find_feed: Returns the event feed of this process, given the open database; None: there are no events.
        find_desk: Returns what answers workers on other machines; None: this process has no scheduler.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        is_ready: Callable[[], bool],
        database: Database | None = None,
        access: "Access | None" = None,
        checks_host: bool = False,
        find_feed: "Callable[[Database], Awaitable[EventFeed]] | None" = None,
        find_desk: "Callable[[], WorkerDesk] | None" = None,
    ) -> None:
        self.checks_host = checks_host
        self._find_feed = find_feed
        self._find_desk = find_desk
        self._settings = settings
        self.clock = clock
        self._is_ready = is_ready
        self._given_database = database
        self._access = access
        self._database: Database | None = None
        self._app: Any = None
        self._opening = anyio.Lock()
        self._link: tuple[str, str] | None = None
        self._n_answering = 0
        self._n_closed = 0
        self._idle = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        if self._app is None or not self._is_ready():
            try:
                is_open = self._is_ready() and await self.load()
            except AsynschedError:
                is_open = False  # the scheduler's log tells why its database does not answer
            if not is_open:
                await _unavailable(send)
                return
        self._n_answering += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._n_answering -= 1
            if not self._n_answering:
                self._idle.set()

    def offer_link(self, secret: str, owner: str) -> None:
        """Accept a secret as a sign-in of the home's owner, once. The first request stores it, as a hash."""
        self._link = (secret, owner)

    async def aclose(self) -> None:
        """Answer no more requests, and close the database unless it is the host's.

        Requests that are being answered may end, within a moment.
        """
        self._n_closed += 1
        app, self._app = self._app, None
        if app is None:
            return  # the database is closed once it is open
        database, self._database, self._idle = self._database, None, anyio.Event()
        with anyio.CancelScope(shield=True):
            if self._n_answering:
                with anyio.move_on_after(GRACE_SECONDS):
                    await self._idle.wait()
            await self._close(database)

    async def _close(self, database: Database | None) -> None:
        if database is not None and database is not self._given_database:
            with anyio.CancelScope(shield=True):
                await database.close()

    async def load(self) -> bool:
        """Load everything, unless that is done. Returns False if the application was closed meanwhile.

        Raises StoreError, and SettingsError.
        """
        async with self._opening:
            if self._app is not None:
                return True
            n_closed, make_app = self._n_closed, await run_sync(_load)
            database = self._given_database or await open_as_set(self._settings)
            try:
                await self._store_link(database)
                feed = None if self._find_feed is None else await self._find_feed(database)
                desk = None if self._find_desk is None else self._find_desk()
            except BaseException:
                await self._close(database)
                raise
            if n_closed != self._n_closed:
                await self._close(database)
                return False
            seen = database if feed is None else AnnouncingDatabase(database, feed.note_write)
            self._database = database
            context = QueryContext(seen, self._settings.home_path, self._settings, self.clock, feed)
            self._app = make_app(context, self._access, checks_host=self.checks_host, desk=desk)
            return True

    async def _store_link(self, database: Database) -> None:
        if self._link is not None:
            from asynsched.queries.users import create_link

            secret, owner = self._link
            context = QueryContext(database, self._settings.home_path, self._settings, self.clock)
            await context.act(owner, create_link, secret, owner, now=self.clock.now())
            self._link = None


def _load() -> Callable[..., Any]:
    from asynsched.web.app import make_guarded

    return make_guarded


async def _unavailable(send: Send) -> None:
    headers = [
        (b"content-type", b"application/json"), (b"content-length", str(len(NOT_READY)).encode()),
        (b"retry-after", b"1"), (b"cache-control", b"no-store"),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": NOT_READY})
