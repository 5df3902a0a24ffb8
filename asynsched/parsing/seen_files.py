"""What the watcher has told of the folder: which files are there, and which an ignore file names."""

from collections.abc import Iterable
from datetime import datetime

from asynsched.channels import FileChanged, FolderScanned
from asynsched.parsing.examination import shown
from asynsched.parsing.freshness import TRANSIENT_KINDS, LookRequest
from asynsched.parsing.known_files import KnownFiles
from asynsched.parsing.look_requests import LookRequests


class SeenFiles:
    """Turns the watcher's messages into requests to look at files.

    Attributes:
        n_scans: How many full scans there were whose files are all taken in.
    """

    def __init__(self, requests: LookRequests) -> None:
        self._requests = requests
        self._seen: set[str] = set()
        self._ignored: set[str] = set()
        self.n_scans = 0

    def is_ignored(self, path: str) -> bool:
        """Return whether an ignore file names a file."""
        return path in self._ignored

    def take(self, messages: Iterable[FileChanged | FolderScanned], known: KnownFiles, now: datetime) -> None:
        """Request a look at each file that a message is about, and at those that a new module may be missing in."""
        has_new_module = False
        for message in messages:
            if isinstance(message, FolderScanned):
                self._request_missing(known)
                self.n_scans += 1
                continue
            path = shown(message.path)
            if not message.forced:
                (self._ignored.add if message.is_ignored else self._ignored.discard)(path)
            if message.removed:
                self._seen.discard(path)
            elif path not in self._seen:
                self._seen.add(path)
                has_new_module = has_new_module or (self.n_scans > 0 and path.endswith(".py"))
            self._requests.add(
                LookRequest(
                    message.path,
                    is_urgent=not message.at_start,
                    is_forced=message.forced or (message.at_start and known.has_error(path, TRANSIENT_KINDS)),
                    asked_at=now if message.forced else None,
                )
            )
        if has_new_module:
            for path in sorted(known.with_error(frozenset({"import"}))):
                self._requests.add(LookRequest(path, is_urgent=True, is_forced=True))

    def _request_missing(self, known: KnownFiles) -> None:
        """Look for the files that are known, but were not found by the scan."""
        for path in sorted(known.paths() - self._seen):
            self._requests.add(LookRequest(path, is_urgent=True))
