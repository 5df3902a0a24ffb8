"""The code and structure of DAG versions, loaded once for all runs that are pinned to them."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
from sqlalchemy import Connection

from asynsched.errors import DagError, NotFound
from asynsched.protocol.messages import CodeVersion, SourceRef
from asynsched.scheduling.evaluation.structure import DagStructure, compile_structure
from asynsched.serialization.decode import decode_dag
from asynsched.store.dags.versions import DagVersionRow, get_sources, get_versions
from asynsched.store.database import Database
from sandbox.sources.laid_out import lay_out_source

MAX_LOADED = 1000


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """One DAG version: its structure for decisions, its code for executors."""

    id: int
    structure: DagStructure
    code: CodeVersion


class VersionCache:
    """Loads versions, and lays out their sources where executors of this machine read them.

    Args:
        database: Where versions and sources are stored.
        sources_folder: Folder of one file a source, named by content hash.
        dags_folder: Absolute path that the sources' paths are relative to.
        in_thread: Whether a version is prepared in a thread. A simulation, whose order must not depend on when a
            thread is done, has it done on the spot.
    """

    def __init__(self, database: Database, sources_folder: Path, dags_folder: Path, *, in_thread: bool = True) -> None:
        self._database = database
        self._sources_folder = sources_folder
        self._dags_folder = dags_folder
        self._in_thread = in_thread
        self._loaded: OrderedDict[int, LoadedVersion] = OrderedDict()

    async def get(self, version_id: int) -> LoadedVersion:
        """Return a version. Raises NotFound when the database has none with that id, DagError when it is no good."""
        if version_id in self._loaded:
            self._loaded.move_to_end(version_id)
            return self._loaded[version_id]
        for loaded in await self._load([version_id]):
            if isinstance(loaded, DagError):
                raise loaded
            return loaded
        raise NotFound("DAG version", str(version_id))

    async def prepare(self, version_ids: Iterable[int]) -> None:
        """Load versions together that are going to be asked for; what is wrong with one is said when it is."""
        missing = set(version_ids) - self._loaded.keys()
        if missing:
            await self._load(sorted(missing)[:MAX_LOADED])

    async def _load(self, version_ids: list[int]) -> list[LoadedVersion | DagError]:
        """Load those of some versions that there are, with one look at the database and one turn of a thread."""
        rows, texts = await self._database.read(read_versions, version_ids)
        if self._in_thread:
            # A large DAG takes a while, in which the event loop has other things to do.
            found = await anyio.to_thread.run_sync(self._compile, rows, texts)
        else:
            found = self._compile(rows, texts)
        self._loaded |= {loaded.id: loaded for loaded in found if isinstance(loaded, LoadedVersion)}
        while len(self._loaded) > MAX_LOADED:
            self._loaded.popitem(last=False)
        return found

    def _compile(self, rows: list[DagVersionRow], texts: dict[str, str]) -> list[LoadedVersion | DagError]:
        self._lay_out(texts)
        return [self._compiled(row) for row in rows]

    def _compiled(self, row: DagVersionRow) -> LoadedVersion | DagError:
        try:
            structure = compile_structure(decode_dag(row.serialized))
        except DagError as exc:
            return exc
        sources = tuple(SourceRef(ref.path, ref.module, ref.content_hash) for ref in row.sources)
        return LoadedVersion(row.id, structure, CodeVersion(row.version_hash, str(self._dags_folder), sources))

    def _lay_out(self, texts: dict[str, str]) -> None:
        """Write the sources that are not there, or are not what the database has: it is the truth, these are copies.

        So they need not be synced. What a power cut has made of them is seen here, by the next scheduler.
        """
        for content_hash, text in texts.items():
            lay_out_source(self._sources_folder, content_hash, text)


def read_versions(conn: Connection, version_ids: list[int]) -> tuple[list[DagVersionRow], dict[str, str]]:
    """Return those of some versions that there are, and the texts of their sources by content hash."""
    rows = get_versions(conn, version_ids)
    hashes = {ref.content_hash for row in rows for ref in row.sources}
    return rows, get_sources(conn, sorted(hashes))
