"""Figures: the measurement, its goal, the yardstick P, and the machine."""

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

N_YARDSTICKS = 30


@dataclass(frozen=True)
class Goal:
    """A bound that a figure is to keep: at most (or, for rates, at least) that much, in its unit or in P."""

    bound: float
    is_least: bool = False
    is_in_p: bool = False

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.is_least else value <= self.bound

    def shown(self, unit: str) -> str:
        """Return it as the table has it, for a figure in that unit."""
        if self.is_in_p:
            unit = "a P" if self.is_least else "P"
        return f"{'≥' if self.is_least else '≤'} {self.bound:,g} {unit}".strip()


def at_most(bound: float) -> Goal:
    return Goal(bound)


def at_most_p(bound: float) -> Goal:
    return Goal(bound, is_in_p=True)


def at_least(bound: float) -> Goal:
    return Goal(bound, is_least=True)


def at_least_a_p(bound: float) -> Goal:
    """A rate: that many in the time of one P."""
    return Goal(bound, is_least=True, is_in_p=True)


@dataclass(frozen=True)
class Figure:
    """One measured value, or the median of several.

    Attributes:
        in_p: The same as a multiple of P, or a rate by P; None where that says nothing.
        judged: The value to compare with a goal: in P, in seconds or in its unit.
        span: The least and the most of several, in P.
    """

    workload: str
    system: str
    name: str
    value: float
    unit: str
    in_p: float | None = None
    goal: str = ""
    is_met: bool | None = None
    judged: float = 0.0
    span: tuple[float, float] | None = None


@dataclass
class Sheet:
    """Where a workload writes its figures down.

    Attributes:
        workload: Its name.
        system: The system under test: a database of ours, or a peer.
        p: P in seconds, as just measured.
        has_goals: Whether the figures are held against goals: those of a peer are not.
    """

    workload: str
    system: str
    p: float
    has_goals: bool = True
    figures: list[Figure] = field(default_factory=list)

    def seconds(self, name: str, seconds: float, goal: Goal | None = None) -> None:
        """Note a length of time."""
        value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1000, "ms")
        judged = seconds / self.p if goal is not None and goal.is_in_p else seconds
        self._note(name, value, unit, seconds / self.p, (goal, "s"), judged)

    def rate(self, name: str, per_second: float, goal: Goal | None = None) -> None:
        """Note how many of something there are in a second."""
        judged = per_second * self.p if goal is not None and goal.is_in_p else per_second
        self._note(name, per_second, "/s", per_second * self.p, (goal, "/s"), judged)

    def amount(self, name: str, value: float, unit: str, goal: Goal | None = None) -> None:
        """Record a value that is not a time."""
        self._note(name, value, unit, None, (goal, unit), value)

    def spread(self, name: str, times: Iterable[float], *goals: Goal | None) -> None:
        """Note median, p95 and p99 of lengths of time in seconds, each beside its goal."""
        ordered = sorted(times)
        padded = (*goals, None, None, None)
        for which, share, goal in zip(("median", "p95", "p99"), (0.5, 0.95, 0.99), padded, strict=False):
            self.seconds(f"{name}, {which}", percentile(ordered, share), goal)

    def _note(
        self, name: str, value: float, unit: str, in_p: float | None, aim: tuple[Goal | None, str], judged: float
    ) -> None:
        goal, goal_unit = aim if self.has_goals else (None, "")
        is_met = None if goal is None else goal.is_met(judged)
        shown = "" if goal is None else goal.shown(goal_unit)
        self.figures.append(Figure(self.workload, self.system, name, value, unit, in_p, shown, is_met, judged))


def medians(figures: Iterable[Figure]) -> list[Figure]:
    """Return each figure once, in the order of the first ones: of those of several rounds, the median."""
    rounds: dict[tuple[str, str, str], list[Figure]] = {}
    for figure in figures:
        rounds.setdefault((figure.workload, figure.system, figure.name), []).append(figure)
    return [_median(same) for same in rounds.values()]


def _median(figures: list[Figure]) -> Figure:
    """Return the middle one of several, the lower of two."""
    middle = sorted(figures, key=lambda figure: figure.judged)[(len(figures) - 1) // 2]
    in_p = [figure.in_p for figure in figures if figure.in_p is not None]
    return replace(middle, span=(min(in_p), max(in_p)) if len(in_p) > 1 else None)


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value below which that share of all values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def yardstick_seconds() -> float:
    """Return P: the median time that `python -c pass` takes on this machine now, in seconds."""
    return statistics.median(command_seconds([sys.executable, "-c", "pass"], N_YARDSTICKS))


def command_seconds(command: list[str], times: int, env: dict[str, str] | None = None) -> list[float]:
    """Return how long a command takes, from its start to its end, each time."""
    found = []
    for _ in range(times):
        before = time.perf_counter()
        subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
        found.append(time.perf_counter() - before)
    return found


def machine() -> str:
    """Return one line about this machine."""
    models = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    model = next(models, "unknown processor").partition(":")[2].strip()
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return f"{cores} cores of {model}, Linux {platform.release()}, Python {platform.python_version()}, load {load:.1f}"


def table(figures: Iterable[Figure]) -> str:
    """Return figures as a Markdown table, as docs/benchmark-history.md has them."""
    rows = ["| workload | on | figure | value | in P | goal | |", "|---|---|---|---|---|---|---|"]
    for figure in figures:
        in_p = "" if figure.in_p is None else f"{figure.in_p:.2f}"
        if figure.span is not None:
            in_p += f" ({figure.span[0]:.3g} to {figure.span[1]:.3g})"
        met = {None: "", True: "met", False: "missed"}[figure.is_met]
        value = f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.3g}"
        rows.append(
            f"| {figure.workload} | {figure.system} | {figure.name} | {value} {figure.unit} | {in_p} |"
            f" {figure.goal} | {met} |"
        )
    return "\n".join(rows)
