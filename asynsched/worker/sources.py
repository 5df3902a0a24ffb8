"""The code that a worker has fetched: sources by their hashes, up to a number of bytes, the least recently used go."""

import hashlib
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from asynsched.errors import AsynschedError
from asynsched.protocol.home_files import lay_out_source, read_source


class WrongSource(AsynschedError):
    """A scheduler has sent a source that has another hash."""


class SourceCache:
    """Sources in a folder, as templates read them. Every method blocks.

    Args:
        most_bytes: How many bytes all of them may have, beside those in use.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def missing(self, hashes: Iterable[str]) -> list[str]:
        """Return the hashes whose sources are not here, or damaged; note the use of the others."""
        return [content_hash for content_hash in dict.fromkeys(hashes) if not self._is_here(content_hash)]

    def add(self, content_hash: str, text: str) -> None:
        """Add a source. Raises WrongSource unless its hash is this, and OSError."""
        if hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() != content_hash:
            raise WrongSource(f"the source {content_hash} that was sent has another hash")
        lay_out_source(self._folder, content_hash, text)

    def trim(self, in_use: Collection[str]) -> None:
        """Remove the sources that were not used for longest, except those in use, until the others fit."""
        found = []
        for path in self._folder.glob("*.py"):
            if path.stem not in in_use:
                with suppress(OSError):
                    status = path.stat()
                    found.append((status.st_mtime_ns, status.st_size, path))
        n_bytes = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if n_bytes <= self._most_bytes:
                return
            path.unlink(missing_ok=True)
            n_bytes -= size

    def _is_here(self, content_hash: str) -> bool:
        try:
            read_source(self._folder, content_hash)
            os.utime(self._folder / f"{content_hash}.py")
        except (OSError, ValueError):
            return False
        return True
