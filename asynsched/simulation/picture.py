"""A picture of a span: runs or tasks as bars over time, and the use of pools below. Drawn by matplotlib."""

from collections.abc import Iterable
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from asynsched.errors import SettingsError
from asynsched.simulation.span import PoolUse, SpanReport
from asynsched.states import TaskInstanceState

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png")
MOST_TASK_ROWS = 60
"""With more tasks than this, each row is a DAG. The states of runs have the same names as those of tasks."""
MOST_LABELS = 150
"""With more rows than this, no row has a label."""
MOST_POOLS = 8
WIDTH = 14.0
ROW_HEIGHT = 0.22
POOL_HEIGHT = 1.4
TALLEST_ROWS = 40.0
"""Inches."""

COLORS: dict[str, str] = {
    TaskInstanceState.SUCCESS: "#2e8b57",
    TaskInstanceState.FAILED: "#c0392b",
    TaskInstanceState.UPSTREAM_FAILED: "#e08e45",
    TaskInstanceState.UP_FOR_RETRY: "#d4a017",
    TaskInstanceState.SKIPPED: "#d98cb3",
    TaskInstanceState.RUNNING: "#4c9be8",
    TaskInstanceState.QUEUED: "#9e9e9e",
}


class Bar(NamedTuple):
    """Something that lasted, in a row of its own kind."""

    row: str
    start: datetime
    end: datetime
    state: str


def check_picture(path: Path) -> None:
    """Raise SettingsError unless the file's format is supported, and matplotlib is installed."""
    if path.suffix not in FORMATS:
        raise SettingsError(f"{path}: a picture is {' or '.join(FORMATS)}: end its name so")
    if find_spec("matplotlib") is None:
        raise SettingsError("A picture is drawn by matplotlib: pip install 'asynsched[picture]'")


def draw_span(span: SpanReport, path: Path) -> None:
    """Draw a span to a file that `check_picture` has accepted. The same span gives the same file.

    Raises:
        OSError: The file cannot be written.
    """
    import matplotlib as mpl  # half a second

    with mpl.rc_context({"svg.hashsalt": "asynsched", "font.size": 8}):
        figure = _figure(span)
        # No creation date: the file is a function of the span.
        figure.savefig(path, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)


def bars(span: SpanReport) -> list[Bar]:
    """Return a bar for each try of each task or, if there are too many tasks, for each run of each DAG."""
    if len({(run.dag_id, task.task_id) for run in span.runs for task in run.tasks}) <= MOST_TASK_ROWS:
        return [
            Bar(f"{run.dag_id}.{task.task_id}", one.started_at, one.ended_at or span.end, one.state or "")
            for run in span.runs
            for task in run.tasks
            for one in task.tries
            if one.started_at is not None
        ]
    return [Bar(run.dag_id, run.started_at, run.ended_at or span.end, run.state) for run in span.runs if run.started_at]


def _figure(span: SpanReport) -> "Figure":
    from matplotlib.figure import Figure

    found = bars(span)
    rows = list(dict.fromkeys(bar.row for bar in sorted(found, key=lambda bar: (bar.row.split(".")[0], bar.start))))
    pools = sorted(span.pools, key=lambda use: (-use.peak, use.pool))[:MOST_POOLS]
    height = min(max(len(rows), 4) * ROW_HEIGHT, TALLEST_ROWS)
    heights = [height, *(POOL_HEIGHT for _ in pools)]
    figure = Figure(figsize=(WIDTH, sum(heights) + 1), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    _draw_bars(axes[0], found, rows)
    for axis, use in zip(axes[1:], pools, strict=True):
        _draw_pool(axis, use, span)
    axes[-1].set_xlim(_number(span.start), _number(span.end))
    axes[-1].xaxis_date()
    axes[-1].set_xlabel("UTC")
    return figure


def _draw_bars(axis: "Axes", found: Iterable[Bar], rows: list[str]) -> None:
    from matplotlib.patches import Patch

    by_row: dict[str, list[Bar]] = {row: [] for row in rows}
    for bar in found:
        by_row[bar.row].append(bar)
    for place, row in enumerate(rows):
        spans = [(_number(bar.start), _number(bar.end) - _number(bar.start)) for bar in by_row[row]]
        colors = [_color(bar.state) for bar in by_row[row]]
        axis.broken_barh(spans, (place - 0.4, 0.8), facecolors=colors, edgecolors=colors, linewidth=0.4)
    axis.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    has_labels = len(rows) <= MOST_LABELS
    axis.set_yticks(range(len(rows)) if has_labels else (), rows if has_labels else ())
    states = sorted({bar.state for bars in by_row.values() for bar in bars})
    axis.legend(handles=[Patch(color=_color(state), label=state) for state in states], loc="upper right")
    axis.grid(axis="x", alpha=0.3)


def _draw_pool(axis: "Axes", use: PoolUse, span: SpanReport) -> None:
    times = [_number(span.start), *(_number(step.at) for step in use.steps), _number(span.end)]
    slots = [0, *(step.slots for step in use.steps)]
    axis.fill_between(times, [*slots, slots[-1]], step="post", alpha=0.5, linewidth=0.6)
    if use.slots > 0 and use.peak * 4 >= use.slots:
        # If the limit is far above the use, showing its line would flatten the use until it is invisible.
        axis.axhline(use.slots, color=COLORS[TaskInstanceState.FAILED], linewidth=0.8)
    axis.set_ylim(bottom=0)
    limit = "no limit" if use.slots < 0 else f"{use.slots} slots"
    axis.set_ylabel(f"{use.pool}\n{limit}")
    axis.grid(alpha=0.3)


def _number(instant: datetime) -> float:
    from matplotlib.dates import date2num

    return float(date2num(instant))  # type: ignore[no-untyped-call]


def _color(state: str) -> str:
    return COLORS.get(state, COLORS[TaskInstanceState.QUEUED])
