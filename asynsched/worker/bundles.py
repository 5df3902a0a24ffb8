"""The data files of DAG folders that a worker has fetched: each state of them in a folder, a bundle.

    bundles/HASH/           the files, below the paths that they have in the DAG folder; it is the DAG folder of tries
    bundles/HASH.json       their list, whose hash it is

A bundle appears whole, and is compared with its list when this worker first uses it. Files that an earlier bundle has
are copied from it; the others are fetched.
"""

import hashlib
import shutil
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath

import anyio
import msgspec
from anyio.to_thread import run_sync

from asynsched.home import replace_file
from asynsched.protocol.frames import UNDECODABLE
from asynsched.protocol.home_files import PRIVATE_FOLDER
from asynsched.protocol.worker_messages import MOST_FILE_BYTES, DataFile, DataFileList, Ticket
from asynsched.worker.schedulers import Refused, Schedulers

DRAFT = "draft"
ATTEMPTS = 5
"""How often the list is fetched again because a file has changed meanwhile."""


class _Changed(Exception):
    """A file is not any more as the list says."""


class Bundles:
    """Bundles in a folder, up to a number of bytes, the least recently used go.

    Args:
        most_bytes: How many bytes all of them may have, beside those in use.
    """

    def __init__(self, folder: Path, most_bytes: int, schedulers: Schedulers) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._schedulers = schedulers
        self._whole: set[str] = set()
        """The bundles that were compared with their lists."""
        self._used: dict[str, str] = {}
        """The bundle of each try, by its token."""
        self._fetching = anyio.Lock()

    def path(self, name: str) -> Path:
        """Return the folder of a bundle."""
        return self._folder / name

    def use(self, token: str, name: str) -> None:
        """Keep a bundle for a try, until it is released."""
        self._used[token] = name

    def release(self, token: str) -> None:
        """Release the bundle of a try."""
        self._used.pop(token, None)

    async def fetch(self, ticket: Ticket) -> str:
        """Fetch the data files as they are now, and return the name of their bundle, which the try uses.

        Raises Refused, and OSError.
        """
        changed = ""
        for _ in range(ATTEMPTS):
            try:
                return await self._schedulers.insist(partial(self._fetch_once, ticket))
            except _Changed as exc:
                changed = str(exc)
        raise Refused(f"the data file {changed} changes, or is not the same for all schedulers", is_over=False)

    async def _fetch_once(self, ticket: Ticket) -> str:
        """Fetch them once. Raises _Changed, Unreachable, Refused, and OSError.

        A try whose schedulers are away does not hold the lock, for which others wait.
        """
        found = await self._schedulers.send(ticket.addresses, "/files", ticket.proof, DataFileList)
        name = hashlib.sha256(msgspec.json.encode(found)).hexdigest()
        async with self._fetching:
            if not await run_sync(self._is_whole, name, found.files):
                await self._make(ticket, name, found)
            self.use(ticket.token, name)
            await run_sync(self._trim)
        return name

    def _trim(self) -> None:
        """Remove the bundles that were not used for longest, except those in use, until the others fit. Blocks."""
        found, in_use = [], set(self._used.values())
        for path in self._folder.iterdir():
            if path.is_dir() and path.name not in in_use:
                n_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
                found.append((path.stat().st_mtime_ns, n_bytes, path))
        left = sum(n_bytes for _, n_bytes, _ in found)
        for _, n_bytes, path in sorted(found):
            if left <= self._most_bytes:
                return
            self._remove(path.name)
            left -= n_bytes

    async def _make(self, ticket: Ticket, name: str, found: DataFileList) -> None:
        """Make a bundle. Raises _Changed, Unreachable, Refused, and OSError."""
        draft = self._folder / DRAFT
        for file in await run_sync(self._copy_known, draft, found.files):
            await self._fetch_file(ticket, draft, file)
        await run_sync(self._finish, draft, name, found)

    async def _fetch_file(self, ticket: Ticket, draft: Path, file: DataFile) -> None:
        digest, start, part = hashlib.sha256(), 0, b""
        async with await anyio.open_file(draft / file.path, "wb") as opened:
            while start == 0 or len(part) == MOST_FILE_BYTES:
                try:
                    part = await self._schedulers.fetch_file(ticket, file.path, start)
                except Refused as exc:
                    if exc.is_over:
                        raise
                    raise _Changed(file.path) from exc  # it was removed
                await opened.write(part)
                digest.update(part)
                start += len(part)
                if not part:
                    break
        if digest.hexdigest() != file.content_hash:
            raise _Changed(file.path)

    def _copy_known(self, draft: Path, files: Iterable[DataFile]) -> list[DataFile]:
        """Make the folders of a bundle, copy the files that others have, and return those that none has. Blocks."""
        known = {file.content_hash: self._folder / path.stem / file.path for path, file in self._kept_files()}
        missing = []
        shutil.rmtree(draft, ignore_errors=True)  # of a fetch that has failed
        draft.mkdir(mode=PRIVATE_FOLDER, parents=True)
        for file in files:
            target = draft / _checked(file.path)
            target.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            with suppress(OSError, KeyError):
                shutil.copyfile(known[file.content_hash], target)
                if _hash_of(target) == file.content_hash:
                    continue
            missing.append(file)
        return missing

    def _kept_files(self) -> Iterable[tuple[Path, DataFile]]:
        for path in self._folder.glob("*.json"):
            with suppress(OSError, *UNDECODABLE):
                for file in msgspec.json.decode(path.read_bytes(), type=DataFileList).files:
                    yield path, file

    def _finish(self, draft: Path, name: str, found: DataFileList) -> None:
        for file in found.files:
            (draft / file.path).chmod(0o500 if file.is_executable else 0o400)
        replace_file(self._folder / f"{name}.json", msgspec.json.encode(found), outlasts_power_cut=False)
        draft.replace(self.path(name))
        self._whole.add(name)

    def _is_whole(self, name: str, files: Iterable[DataFile]) -> bool:
        """Note the use of a bundle, and return whether it is here; remove it if it is damaged. Blocks."""
        path = self.path(name)
        if not path.is_dir():
            return False
        path.touch()
        if name in self._whole:
            return True
        with suppress(OSError):
            if all(_hash_of(path / _checked(file.path)) == file.content_hash for file in files):
                self._whole.add(name)
                return True
        self._remove(name)
        return False

    def _remove(self, name: str) -> None:
        self._whole.discard(name)
        shutil.rmtree(self._folder / name, ignore_errors=True)
        (self._folder / f"{name}.json").unlink(missing_ok=True)


def _checked(path: str) -> str:
    """Return a path that stays in its folder. Raises Refused."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts:
        raise Refused(f"{path!r} is no path of a data file", is_over=False)
    return path


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
