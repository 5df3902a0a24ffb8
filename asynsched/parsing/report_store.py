"""Stores what parses found, many in one transaction, and says what that has changed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec
from sqlalchemy import Connection

from asynsched.serialization.schema import ParseReport
from asynsched.store.dags.files import DagFileRow, ImportErrorRow, get_file, known_files, list_errors
from asynsched.store.dags.parse_claims import drop_claims, store_alone
from asynsched.store.dags.parse_results import (
    DagDefaults,
    FileStamp,
    Parsed,
    StoredReport,
    refused_for_nobody,
    remove_file,
    store_new_files,
    store_report,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is to be stored of a file: what its parse found, or, without a report, that it is gone.

    `claimed_by`: the scheduler that has claimed the file, which other schedulers leave alone until that is stored.
    """

    path: str
    report: ParseReport | None = None
    stamp: FileStamp | None = None
    claimed_by: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A file as it is stored now. `row` is None when it is gone."""

    path: str
    changes: StoredReport
    row: DagFileRow | None
    errors: tuple[ImportErrorRow, ...]

    @property
    def changed_dags(self) -> tuple[str, ...]:
        """The DAGs that are new, changed or gone."""
        return (*self.changes.new, *self.changes.changed, *self.changes.removed)


def store_outcomes(
    conn: Connection, outcomes: Sequence[Outcome], *, now: datetime, defaults: DagDefaults, may_be_stored: bool = False
) -> list[Stored]:
    """Store each outcome: those of new files together, then all others, in order.

    What was parsed under a claim that another scheduler has taken meanwhile is not stored, and missing in the answer.

    Args:
        may_be_stored: The answer to storing some of them was lost: perhaps it was that which has ended their claims.
    """
    store_alone(conn)
    outcomes = _claimed(conn, outcomes, may_be_stored=may_be_stored)
    parsed = [Parsed(outcome.report, outcome.stamp) for outcome in outcomes if outcome.report and outcome.stamp]
    new = store_new_files(conn, parsed, now=now, defaults=defaults)
    stored = [
        _stored_as_new(new[outcome.path], outcome) if outcome.path in new else _store(conn, outcome, now, defaults)
        for outcome in outcomes
    ]
    return _with_refused(conn, stored) if may_be_stored and stored else stored


def _with_refused(conn: Connection, stored: list[Stored]) -> list[Stored]:
    """Add what an answer would have said that was lost: which files may have a DAG now that they were refused."""
    *others, last = stored
    refused = (*last.changes.contested, *refused_for_nobody(conn))
    return [*others, replace(last, changes=last.changes._replace(contested=refused))]


def load_files(conn: Connection) -> tuple[list[DagFileRow], dict[str, tuple[ImportErrorRow, ...]]]:
    """Return every file that was parsed, and the errors of those that have any.

    One that is to be parsed again, whatever it is now, is returned as if nobody's runtime had parsed it.
    """
    again = frozenset(refused_for_nobody(conn))
    rows = [msgspec.structs.replace(row, runtime="") if row.path in again else row for row in known_files(conn)]
    errors: dict[str, tuple[ImportErrorRow, ...]] = {}
    for error in list_errors(conn):
        errors[error.file_path] = (*errors.get(error.file_path, ()), error)
    return rows, errors


def _claimed(conn: Connection, outcomes: Sequence[Outcome], *, may_be_stored: bool) -> list[Outcome]:
    """Give up the claims of outcomes, and return those that had one still, or need none."""
    held: set[str] = set()
    for scheduler_id in {outcome.claimed_by for outcome in outcomes if outcome.claimed_by is not None}:
        paths = [outcome.path for outcome in outcomes if outcome.claimed_by == scheduler_id]
        held |= drop_claims(conn, paths, scheduler_id)
    return [
        outcome
        for outcome in outcomes
        if outcome.claimed_by is None or outcome.path in held or (may_be_stored and _is_stored(conn, outcome))
    ]


def _is_stored(conn: Connection, outcome: Outcome) -> bool:
    """Whether a file is stored as it was parsed: to store that once more changes nothing."""
    row = get_file(conn, outcome.path)
    if row is None or outcome.stamp is None:
        return row is None and outcome.stamp is None
    return (row.content_hash, row.runtime) == (outcome.stamp.content_hash, outcome.stamp.runtime)


def _stored_as_new(row: DagFileRow, outcome: Outcome) -> Stored:
    assert outcome.report is not None
    dag_ids = sorted(parsed.dag.dag_id for parsed in outcome.report.dags)
    return Stored(outcome.path, StoredReport(new=tuple(dag_ids)), row, ())


def _store(conn: Connection, outcome: Outcome, now: datetime, defaults: DagDefaults) -> Stored:
    if outcome.report is None or outcome.stamp is None:
        return Stored(outcome.path, remove_file(conn, outcome.path, now=now), None, ())
    changes = store_report(conn, outcome.report, outcome.stamp, now=now, defaults=defaults)
    row = get_file(conn, outcome.path)
    is_faulty = outcome.report.warnings or (row is not None and row.n_errors)
    return Stored(outcome.path, changes, row, tuple(list_errors(conn, outcome.path)) if is_faulty else ())
