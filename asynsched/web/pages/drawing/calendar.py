"""A year of runs, a square a day, as SVG."""

from collections.abc import Mapping
from datetime import date, timedelta
from typing import NamedTuple

STEP = 13
LEFT, TOP = 30, 18
WEEKS = 53


class Day(NamedTuple):
    """A day: its place in the picture, its class, and what it says."""

    x: int
    y: int
    kind: str
    title: str


class Calendar(NamedTuple):
    """The picture's days, and the places of the months' names."""

    days: list[Day]
    months: list[tuple[int, str]]
    width: int
    height: int
    n_runs: int


def draw_calendar(days: Mapping[date, Mapping[str, int]], today: date) -> Calendar:
    """Return the year until today, a column a week, Mondays above."""
    first = today - timedelta(days=today.weekday(), weeks=WEEKS - 1)
    drawn, months = [], []
    for number in range((today - first).days + 1):
        day = first + timedelta(days=number)
        x, y = LEFT + number // 7 * STEP, TOP + number % 7 * STEP
        if day.day == 1:
            months.append((x, day.strftime("%b")))
        states = days.get(day, {})
        told = ", ".join(f"{n} {state}" for state, n in sorted(states.items())) or "no run"
        drawn.append(Day(x, y, _kind(states), f"{day.isoformat()}: {told}"))
    n_runs = sum(sum(states.values()) for states in days.values())
    return Calendar(drawn, months, LEFT + WEEKS * STEP, TOP + 7 * STEP, n_runs)


def _kind(states: Mapping[str, int]) -> str:
    for state in ("failed", "running", "queued", "success"):
        if states.get(state):
            both = state == "failed" and states.get("success", 0) > states["failed"]
            return "partly-failed" if both else state
    return "empty"
