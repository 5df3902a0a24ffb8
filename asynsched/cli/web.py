"""`asynsched web`: serve the page and the REST APIs, beside schedulers that run elsewhere."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import click
from anyio.to_thread import run_sync

from asynsched.cli import live_on
from asynsched.cli.command import configure, database_option, errors_in_one_line, home_option, settings_located
from asynsched.cli.configuration import Configuration, with_served_folder
from asynsched.cli.output import note
from asynsched.cli.session import Session, actor
from asynsched.clock import Clock
from asynsched.errors import SettingsError
from asynsched.home import prepare_home, remember_web
from asynsched.loggers import get_logger
from asynsched.queries.events import EventFeed
from asynsched.queries.listening import start_feed
from asynsched.queries.users import new_secret
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.web.hosting import WebApp
from asynsched.web.server import Listener, open_listener, serve

log = get_logger(__name__)


class Link(NamedTuple):
    """A sign-in of the home's owner that works once."""

    secret: str
    owner: str


@click.command("web")
@home_option
@database_option
@click.option("--listen", metavar="HOST:PORT", help="Address to serve at; as web.listen.")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="For people or programs.")
def web(listen: str | None, log_format: str | None, **flags: Any) -> None:
    """Serve the page and the REST APIs until Ctrl-C or SIGTERM; a scheduler serves them, too, unless web.listen is off.

    Any number of such processes may serve a database, each on an address of its own, while schedulers come and go.
    """
    with errors_in_one_line():
        configuration = with_served_folder(configure(**{"web.listen": listen, "log.format": log_format}, **flags))
        with settings_located(configuration):
            _serve(configuration)


def _serve(configuration: Configuration) -> None:
    from asynsched.cli.logging import configure_logging  # not for --help
    from sandbox.confine import close_memory

    session = Session(configuration)
    try:
        _ = session.database  # fails with advice if it does not exist
    finally:
        session.close()
    prepare_home(configuration.settings.home_path)  # that of a shared database's scheduler may be elsewhere
    # Tasks are processes of the same user, and the environment may have the password of the database.
    close_memory()
    live_on()
    configure_logging(configuration.settings.log)
    asyncio.run(_serve_until_signalled(configuration.settings))


async def _serve_until_signalled(settings: Settings) -> None:
    listener = open_listener(settings.web)
    if listener is None:
        raise SettingsError("web.listen: it is off, so there is nothing to serve: give --listen HOST:PORT")
    loop, signalled = asyncio.get_running_loop(), anyio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled.set)
    async with anyio.create_task_group() as tasks:
        async with application(settings, Clock()) as app:
            tasks.start_soon(serve_web, app, listener, settings, True)
            await signalled.wait()
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def application(settings: Settings, clock: Clock) -> AsyncIterator[WebApp]:
    """Open the page and the APIs of a database whose schedulers are other processes, until the end of the block."""
    feeds = anyio.create_task_group()

    async def find_feed(database: Database) -> EventFeed:
        return await start_feed(feeds, settings, database, clock)

    app = WebApp(settings, clock, is_ready=lambda: True, checks_host=True, find_feed=find_feed)
    try:
        async with feeds:
            yield app
            feeds.cancel_scope.cancel()  # first, because streams of events end with it
    finally:
        await app.aclose()


async def serve_web(app: WebApp, listener: Listener, settings: Settings, at_once: bool = False) -> None:
    """Tell people where the page is, and serve it until this is cancelled."""
    link = await tell_address(listener, settings)
    if link is not None:
        app.offer_link(*link)
    await serve(app, listener.socket, settings.web, at_once=at_once)


async def tell_address(listener: Listener, settings: Settings) -> Link | None:
    """Print where the page is. Returns the printed link, which signs in once, if only this machine can open it."""
    if listener.taken:
        log.warning("web.address_taken", address=listener.taken, hint="the setting web.listen names another one")
    await run_sync(remember_web, settings.home_path, listener.url)
    if settings.log.format == "json":
        log.info("web.listening", url=listener.url, hint="`asynsched users link` prints a link that signs in once")
    elif listener.is_local and not settings.web.base_url:
        link = Link(new_secret(), actor())
        note(f"  page         {listener.link(link.secret)} (signs you in, once)")
        return link
    else:
        note(f"  page         {listener.url}, for the users of `asynsched users list`")
    return None
