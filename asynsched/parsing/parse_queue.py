"""What waits to be parsed: files that changed first, then those found at the start, each in the order of arrival."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import datetime

from asynsched.parsing.examination import Examined
from asynsched.parsing.freshness import LookRequest


@dataclass(frozen=True, slots=True)
class ParseJob:
    """A file to be parsed, and what it was when that was decided. The last three are those of LookRequest."""

    path: str
    content_hash: str
    modified_ns: int
    size: int
    is_urgent: bool = False
    asked_at: datetime | None = None
    waited_from: datetime | None = None


def job_of(path: str, examined: Examined, request: LookRequest) -> ParseJob:
    """Return the job to parse a file as a look has found it."""
    return ParseJob(
        path, examined.content_hash, examined.modified_ns, examined.size,
        request.is_urgent, request.asked_at, request.waited_from,
    )  # fmt: skip


class ParseQueue:
    """Each file at most once; who asks for it again renews what it was, and may make it urgent."""

    def __init__(self) -> None:
        self._urgent: OrderedDict[str, ParseJob] = OrderedDict()
        self._patient: OrderedDict[str, ParseJob] = OrderedDict()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._patient)

    def __contains__(self, path: str) -> bool:
        return path in self._urgent or path in self._patient

    @property
    def has_urgent(self) -> bool:
        """Whether a file that changed is in it."""
        return bool(self._urgent)

    def add(self, job: ParseJob) -> None:
        """Put a file into the queue, or bring forward one that is in it."""
        if job.path in self._urgent:
            job = replace(job, is_urgent=True)
        if job.is_urgent:
            self._patient.pop(job.path, None)
        (self._urgent if job.is_urgent else self._patient)[job.path] = job

    def hasten(self, path: str) -> None:
        """Bring a file forward, if it is in."""
        if job := self._patient.get(path):
            self.add(replace(job, is_urgent=True))

    def discard(self, path: str) -> None:
        """Take a file out, if it is in."""
        self._urgent.pop(path, None)
        self._patient.pop(path, None)

    def pop(self) -> ParseJob:
        """Take out the next file. Raises KeyError when there is none."""
        return (self._urgent or self._patient).popitem(last=False)[1]
