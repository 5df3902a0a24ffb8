"""The laid out sources of versions that are gone: files of the home that nobody will ask for."""

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

import anyio.to_thread

from asynsched.store.dags.versions import unknown_sources
from asynsched.store.database import Database

BATCH_FILES = 500
LEAST_AGE = timedelta(days=1)
"""A file that was written lately may be of a version that is being stored."""


class SourceFiles:
    """One walk through the folder of sources: files that are named by their content's hash."""

    def __init__(self, folder: Path, database: Database) -> None:
        self._database = database
        self._files = _files(folder)

    async def sweep(self, now: datetime) -> bool:
        """Look at some files, and remove those whose text no version needs. Returns whether there are more."""
        found = await anyio.to_thread.run_sync(lambda: list(islice(self._files, BATCH_FILES)))
        old = {path.stem: path for path, written_at in found if written_at < now - LEAST_AGE}
        if old:
            gone = await self._database.read(unknown_sources, old)
            await anyio.to_thread.run_sync(_remove, [old[content_hash] for content_hash in gone])
        return bool(found)


def _files(folder: Path) -> Iterator[tuple[Path, datetime]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                yield Path(entry.path), datetime.fromtimestamp(entry.stat().st_mtime).astimezone()


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
