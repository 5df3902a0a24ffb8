"""Figures: percentiles, the yardstick P, and the machine they were taken on."""

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

N_YARDSTICKS = 30


@dataclass(frozen=True)
class Figure:
    """One measured value. `in_p` is the same as a multiple of P, None where that says nothing."""

    workload: str
    backend: str
    name: str
    value: float
    unit: str
    in_p: float | None = None


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value below which that share of all values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def yardstick_seconds() -> float:
    """Return P: the median time that `python -c pass` takes on this machine now, in seconds."""
    times = []
    for _ in range(N_YARDSTICKS):
        before = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def machine() -> str:
    """Return one line about this machine."""
    models = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    model = next(models, "unknown processor").partition(":")[2].strip()
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model}, Linux {platform.release()}, Python {platform.python_version()}"
