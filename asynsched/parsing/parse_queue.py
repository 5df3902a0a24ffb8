"""What waits to be parsed: files that changed first, then those found at the start, each in the order of arrival."""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime

from asynsched.parsing.examination import Examined
from asynsched.parsing.freshness import LookRequest


@dataclass(frozen=True, slots=True)
class ParseJob:
    """A file to be parsed, and what it was when that was decided. The last two are those of LookRequest."""

    path: str
    content_hash: str
    modified_ns: int
    size: int
    asked_at: datetime | None = None
    waited_from: datetime | None = None


def job_of(path: str, examined: Examined, request: LookRequest) -> ParseJob:
    """Return the job to parse a file as a look has found it."""
    return ParseJob(
        path, examined.content_hash, examined.modified_ns, examined.size, request.asked_at, request.waited_from
    )


class ParseQueue:
    """Each file at most once; who asks for it again renews what it was, and may make it urgent."""

    def __init__(self) -> None:
        self._urgent: OrderedDict[str, ParseJob] = OrderedDict()
        self._patient: OrderedDict[str, ParseJob] = OrderedDict()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._patient)

    def __contains__(self, path: str) -> bool:
        return path in self._urgent or path in self._patient

    def add(self, job: ParseJob, *, is_urgent: bool) -> None:
        """Put a file into the queue, or bring forward one that is in it."""
        is_urgent = is_urgent or job.path in self._urgent
        if is_urgent:
            self._patient.pop(job.path, None)
        (self._urgent if is_urgent else self._patient)[job.path] = job

    def discard(self, path: str) -> None:
        """Take a file out, if it is in."""
        self._urgent.pop(path, None)
        self._patient.pop(path, None)

    def pop(self) -> ParseJob:
        """Take out the next file. Raises KeyError when there is none."""
        return (self._urgent or self._patient).popitem(last=False)[1]
