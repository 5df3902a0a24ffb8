"""Reads the DAG folder for a command, if no scheduler does: by the same confined parses, into the same database."""

import asyncio

import anyio
import msgspec

from asynsched.airflow.installation import digest_of
from asynsched.channels import Channels
from asynsched.cli.logging import configure_logging
from asynsched.clock import Clock
from asynsched.errors import ungrouped
from asynsched.fernet_keys import keys_of
from asynsched.home import hold_home, prepare_home, remember_dags_folder
from asynsched.parsing.dispatcher import ParseDispatcher
from asynsched.parsing.processes.informed_parser import InformedParser
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.parsing.readable_secrets import ReadableSecrets
from asynsched.parsing.watching.watcher import Watcher
from asynsched.settings import Settings
from asynsched.store.engines.opening import open_database


def read_folder(settings: Settings, *, again: str | None = None) -> None:
    """Parse the files that have changed since the DAG folder was last read, and store the results.

    Args:
        again: A file to parse even if it has not changed, relative to the folder.

    Raises:
        HomeInUse: A scheduler is serving the home.
        SettingsError: There is no such folder.
    """
    # The database has the errors of files afterwards.
    configure_logging(msgspec.structs.replace(settings.log, level="error"))
    prepare_home(settings.home_path)
    with hold_home(settings.home_path):
        remember_dags_folder(settings.home_path, settings.dags_path)
        with ungrouped():
            asyncio.run(_read(settings, again))


async def _read(settings: Settings, again: str | None) -> None:
    clock = Clock()
    channels = Channels()
    database = await open_database(
        settings.database_url, synchronous=settings.sqlite_synchronous, keys=keys_of(settings)
    )
    try:
        async with SandboxParser(settings, ReadableSecrets(settings.parse, database.read)) as parser:
            informed = InformedParser(parser, database, clock)
            own_code = digest_of(settings.installation_folders)
            dispatcher = ParseDispatcher(settings, channels, database, clock, informed, installation=own_code)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_forget_changes, channels)
                await tasks.start(dispatcher.run)
                if again is not None:
                    dispatcher.reparse(again)
                await tasks.start(Watcher(settings, channels, clock).run)
                await dispatcher.wait_idle()
                tasks.cancel_scope.cancel()
    finally:
        await database.close()


async def _forget_changes(channels: Channels) -> None:
    """Drop the dispatcher's messages to the other services, which do not run here."""
    while True:
        await channels.dag_changes.get()
