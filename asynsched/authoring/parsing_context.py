"""What a file that makes many DAGs may ask: which of them it is loaded for."""

from __future__ import annotations


class ParsingContext:
    """For which DAG, and for which task, a file is loaded: None means for all.

    Attributes:
        dag_id: Always None: a file is loaded whole, once for many tries.
        task_id: Always None.
    """

    __slots__ = ()
    dag_id: str | None = None
    task_id: str | None = None


def get_parsing_context() -> ParsingContext:
    """Return for what the file is loaded: for all of its DAGs, so that one that asks leaves out none."""
    return ParsingContext()
