"""The DAGs that run while processes die, and how each of their task instances must end.

They come in waves: a wave is one file with a DAG of each shape, whose runs the scheduler itself creates, because
`catchup` asks for a known number of past intervals. So a run that is lost, or made twice, is noticed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.faults.real.dag_files import WAVE

N_RUNS = 4
"""Runs of each DAG of a wave."""
POOL = "narrow"
POOL_SLOTS = 2
N_MAPPED = 3


class Expected(NamedTuple):
    """How a task must end: its state, in how many instances (-1: not mapped), and whether a body of its own ran."""

    state: str
    n_mapped: int = -1
    has_body: bool = True


SUCCESS = Expected("success")
SHAPES: dict[str, tuple[str, dict[str, Expected]]] = {
    "chain": ("success", {"extract": SUCCESS, "transform": SUCCESS, "load": SUCCESS}),
    "fan": ("success", {"numbers": SUCCESS, "square": Expected("success", N_MAPPED), "gather": SUCCESS}),
    "sour": (
        "success",
        {
            "breaks": Expected("failed"),
            "mends": SUCCESS,
            "blocked": Expected("upstream_failed", has_body=False),
            "cleans_up": SUCCESS,
        },
    ),
    "narrow": ("success", {"thin": Expected("success", N_MAPPED), "wide": SUCCESS}),
    "waits": ("success", {"looks": SUCCESS, "defers": SUCCESS, "after": SUCCESS}),
    "branch": (
        "success",
        {
            "decides": SUCCESS,
            "taken": SUCCESS,
            "avoided": Expected("skipped", has_body=False),
            "joins": SUCCESS,
        },
    ),
}
"""By the first word of a dag_id: how its runs end, and how each of its tasks does."""


@dataclass(frozen=True)
class Wave:
    """One wave of DAGs."""

    number: int

    @property
    def file_name(self) -> str:
        return f"wave_{self.number}.py"

    @property
    def text(self) -> str:
        return WAVE.format(wave=self.number, last_hour=N_RUNS - 1, n_mapped=N_MAPPED)

    @property
    def dag_ids(self) -> Iterator[str]:
        return (f"{shape}_{self.number}" for shape in SHAPES)


def expected_of(dag_id: str) -> tuple[str, dict[str, Expected]]:
    """Return how the runs of a DAG end, and how each of its tasks does."""
    return SHAPES[dag_id.rpartition("_")[0]]
