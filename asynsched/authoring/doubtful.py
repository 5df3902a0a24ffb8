"""Warnings of what the author of a DAG file hardly means."""

from __future__ import annotations

import datetime as dt

from asynsched.errors import DagWarning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asynsched.authoring.dag import DAG

SHORTEST = dt.timedelta(seconds=1)


def warn_of_short_schedule(dag: DAG) -> None:
    """Warn of a DAG whose runs follow each other faster than a second: they are made ever later than they are due."""
    every = getattr(dag.timetable, "every", None)
    if every is None or every.length >= SHORTEST:
        return
    import warnings

    warnings.warn_explicit(
        f"DAG {dag.dag_id!r}: a run each {every.length.total_seconds():f} s is more than can be made, so that its runs"
        " are ever later; let a second or more be between them, or use schedule='@continuous'",
        DagWarning,
        dag.fileloc,
        dag.lineno,
    )
