"""What a look at a file means for it: parse it, remove its DAGs, show its error, look again later, or nothing."""

import enum
import platform
from dataclasses import dataclass
from datetime import datetime

from asynsched._version import __version__
from asynsched.parsing.examination import Examined
from asynsched.serialization.schema import SCHEMA_VERSION
from asynsched.settings import Settings
from asynsched.store.dags.files import DagFileRow

SETTLED_SECONDS = 1.0
"""A file that has just lost its DAGs' text may be in the middle of being written: it is looked at again after this."""

TRANSIENT_KINDS = frozenset({"import", "exception", "exit", "crash", "timeout", "memory", "unreadable"})
"""Errors that may be gone although the file is the same, so that a start tries again."""


class Step(enum.Enum):
    """What to do with a file."""

    NOTHING = enum.auto()
    PARSE = enum.auto()
    REMOVE = enum.auto()
    REPORT = enum.auto()
    LOOK_LATER = enum.auto()


@dataclass(frozen=True, slots=True)
class LookRequest:
    """Why a file is looked at.

    `is_urgent`: it changed, or somebody asks for it. `is_forced`: parse it even if nothing about it is new.
    `asked_at`: when somebody asked for that. `waited_from`: another scheduler was parsing the file; when it had been
    parsed before that. `is_for_module`: a module that it has imported has another text, or had when this was asked.
    """

    path: str
    is_urgent: bool = False
    is_forced: bool = False
    asked_at: datetime | None = None
    waited_from: datetime | None = None
    is_for_module: bool = False

    def merged_with(self, later: "LookRequest") -> "LookRequest":
        """Return the one request that does for both."""
        return LookRequest(
            later.path,
            self.is_urgent or later.is_urgent,
            self.is_forced or later.is_forced,
            later.asked_at or self.asked_at,
            later.waited_from or self.waited_from,
            self.is_for_module or later.is_for_module,
        )


def runtime_of(settings: Settings) -> str:
    """Return what a parse's result depends on beside the files: what parses them, and how it reads naive dates."""
    return (
        f"asynsched {__version__}, schema {SCHEMA_VERSION}, Python {platform.python_version()}, "
        f"{settings.default_timezone}"
    )


def next_step(
    request: LookRequest,
    examined: Examined,
    known: DagFileRow | None,
    *,
    is_ignored: bool,
    runtime: str,
    safe_mode: bool,
    now_seconds: float,
    may_have_healed: bool = False,
) -> Step:
    """Return what to do with a file.

    Args:
        request: Why it was looked at.
        examined: What it is now.
        known: What was last parsed of it, None if nothing was.
        is_ignored: Whether an ignore file names it.
        runtime: What a parse's result would depend on now.
        safe_mode: Whether a file that nothing is known of has to mention a DAG.
        now_seconds: The time, in seconds since 1970.
        may_have_healed: Whether it has an error of `TRANSIENT_KINDS`.
    """
    if examined.error is not None:
        return Step.NOTHING if is_ignored else Step.REPORT
    if examined.is_gone or is_ignored:
        return Step.NOTHING if known is None else Step.REMOVE
    if safe_mode and not examined.mentions_dag:
        if known is None:
            return Step.NOTHING
        # What had DAGs is parsed once more: only a parse can tell that they are gone, and not that the file is broken.
        if abs(now_seconds - examined.modified_ns / 1e9) < SETTLED_SECONDS:
            return Step.LOOK_LATER
    is_new = known is None or (known.content_hash, known.runtime) != (examined.content_hash, runtime)
    if known is not None and may_have_healed:
        # Saved again, or touched: what it lacked, such as a package, may be there by now.
        is_new = is_new or known.modified_ns != examined.modified_ns
    return Step.PARSE if is_new or request.is_forced else Step.NOTHING
