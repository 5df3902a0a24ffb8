"""A run's task instances on a line of time, as SVG."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from asynsched.queries.task_instances import TaskSpan
from asynsched.web.pages.showing import duration, shortened, state_class

WIDTH, LEFT, RIGHT, TOP = 900, 200, 12, 26
ROW = 22
N_TICKS = 6
MOST_ROWS = 500
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
"""Seconds between two marks, the least that needs no more than N_TICKS."""


class Bar(NamedTuple):
    """A task instance: from its queueing, and from its start, to its end."""

    name: str
    title: str
    y: int
    queued_x: float
    x: float
    width: float
    kind: str
    task_id: str
    map_index: int


class Gantt(NamedTuple):
    """The picture."""

    width: int
    height: int
    bars: list[Bar]
    ticks: list[tuple[float, str]]
    is_cut: bool


def draw_gantt(tasks: Sequence[TaskSpan], now: datetime) -> Gantt:
    """Return the picture of task instances that have begun, in their order."""
    shown = tasks[:MOST_ROWS]
    if not shown:
        return Gantt(WIDTH, TOP, [], [], False)
    first = min(min(task.queued_at or now, task.started_at) for task in shown)
    last = max(task.ended_at or now for task in shown)
    span = max((last - first).total_seconds(), 0.1)
    scale = (WIDTH - LEFT - RIGHT) / span

    def place(at: datetime) -> float:
        return round(LEFT + (at - first).total_seconds() * scale, 1)

    bars = []
    for row, task in enumerate(shown):
        start, end = task.started_at, task.ended_at or now
        told = f"{task.name}: {(task.state or 'no state').replace('_', ' ')}, {duration(end - start)}"
        x = place(start)
        queued = min(task.queued_at or start, start)
        bars.append(
            Bar(shortened(task.name, 28), told, TOP + row * ROW, place(queued), x, max(place(end) - x, 2),
                state_class(task.state), task.task_id, task.map_index)
        )  # fmt: skip
    step = next((step for step in STEPS if span / step <= N_TICKS), span / N_TICKS)
    marks = [number * step for number in range(int(span / step) + 1)]
    ticks = [(round(LEFT + mark * scale, 1), _mark(mark)) for mark in marks]
    return Gantt(WIDTH, TOP + len(shown) * ROW + 4, bars, ticks, len(tasks) > len(shown))


def _mark(seconds: float) -> str:
    return (
        "0"
        if not seconds
        else duration(timedelta(seconds=seconds)).removesuffix(".0 s")
        + (" s" if seconds < 10 and seconds == int(seconds) else "")
    )
