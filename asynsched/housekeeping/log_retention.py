"""Which logs go: those of runs that are gone, and those that the settings keep no longer.

Logs are files of one machine, runs rows of a database that other machines share. So the folders of logs are walked, a
few hundred runs a batch, and looked up.
"""

import os
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread

from asynsched.executors.log_paths import DAG_PREFIX, RUN_PREFIX, folder_name, remove_tree
from asynsched.home import LOGS
from asynsched.store.dags.dags import all_dag_ids
from asynsched.store.database import Database
from asynsched.store.runs.retention import Bound, RunAge, newest_run_ids, run_ages

BATCH_FOLDERS = 200
ORPHANED_AFTER = timedelta(days=1)
"""A folder whose run is not stored is left alone for so long after it was last written to."""


class LogFolder(NamedTuple):
    """The logs of a run."""

    path: Path
    name: str
    written_at: datetime


def is_too_old(folder: LogFolder, run: RunAge | None, newest: frozenset[str], bound: Bound, now: datetime) -> bool:
    """Return whether the logs of a run go.

    Args:
        run: The run, as it is stored; None when it is not.
        newest: The runs of its DAG whose logs are kept whatever their age, if `bound` has a number.
    """
    if run is None:
        return folder.written_at < now - ORPHANED_AFTER
    if run.ended_at is None:
        return False
    if bound.before is not None and run.ended_at < bound.before:
        return True
    return bound.per_dag is not None and run.run_id not in newest


class LogRetention:
    """One walk through the logs of a home.

    Args:
        deleted: Counts what goes.
    """

    def __init__(self, home: Path, database: Database, bound: Bound, deleted: Counter[str]) -> None:
        self._logs = home / LOGS
        self._database = database
        self._bound = bound
        self._deleted = deleted
        self._dags: Iterator[tuple[str, Path]] | None = None
        self._dag_id = ""
        self._folders: Iterator[LogFolder] = iter(())
        self._newest: frozenset[str] = frozenset()

    async def sweep(self, now: datetime) -> bool:
        """Look at some folders, and remove what goes. Returns whether there are more."""
        if self._dags is None:
            dag_ids = await self._database.read(all_dag_ids)
            self._dags = await anyio.to_thread.run_sync(self._dag_folders, dag_ids)
        folders = await anyio.to_thread.run_sync(self._next_folders)
        if not folders:
            return await self._next_dag(self._dags)
        known = {RUN_PREFIX + folder_name(run.run_id): run for run in await self._ages(folders)}
        going = [
            folder for folder in folders if is_too_old(folder, known.get(folder.name), self._newest, self._bound, now)
        ]
        await anyio.to_thread.run_sync(_remove, going)
        self._deleted["logs"] += len(going)
        return True

    async def _next_dag(self, dags: Iterator[tuple[str, Path]]) -> bool:
        found = next(dags, None)
        if found is None:
            return False
        self._dag_id, folder = found
        self._folders = _run_folders(folder)
        self._newest = frozenset()
        if self._bound.per_dag is not None:
            ids = await self._database.read(newest_run_ids, self._dag_id, limit=self._bound.per_dag)
            self._newest = frozenset(ids)
        return True

    async def _ages(self, folders: list[LogFolder]) -> list[RunAge]:
        """Return the runs that the folders are of, as far as they are stored."""
        ids = [folder.name.removeprefix(RUN_PREFIX) for folder in folders]
        # A folder whose name is not the run's own, because that is too long or strange, may be any run's of the DAG.
        if any(folder_name(run_id) != run_id for run_id in ids):
            return await self._database.read(run_ages, self._dag_id, None)
        return await self._database.read(run_ages, self._dag_id, ids)

    def _dag_folders(self, dag_ids: list[str]) -> Iterator[tuple[str, Path]]:
        """Return the folders of known DAGs; of others nothing is known, and they stay."""
        found = ((dag_id, self._logs / f"{DAG_PREFIX}{folder_name(dag_id)}") for dag_id in dag_ids)
        return iter([(dag_id, folder) for dag_id, folder in found if folder.is_dir()])

    def _next_folders(self) -> list[LogFolder]:
        return list(islice(self._folders, BATCH_FOLDERS))


def _run_folders(folder: Path) -> Iterator[LogFolder]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(RUN_PREFIX) and entry.is_dir(follow_symlinks=False):
                    written_at = datetime.fromtimestamp(entry.stat(follow_symlinks=False).st_mtime).astimezone()
                    yield LogFolder(Path(entry.path), entry.name, written_at)
    except FileNotFoundError:
        return


def _remove(folders: list[LogFolder]) -> None:
    for folder in folders:
        remove_tree(folder.path)
