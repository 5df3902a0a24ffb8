"""Every workload of `python -m tests.benchmarks` that needs no other server still measures, in its smallest size."""

import math
from importlib import import_module

import pytest

from tests.benchmarks.__main__ import WORKLOADS
from tests.benchmarks.measuring import Sheet
from tests.benchmarks.systems import Ours
from tests.support.history import N_TASKS
from tests.support.up import Site

NEED_MORE = {"celery", "celery-fan-out", "dask", "dask-fan-out", "in-flight", "pandas", "slurm"}
"""Servers, or a package that the tests do not install."""
SMALLEST = {
    "airflow_files": {"N_PARSES": 1, "N_ROUNDS": 1, "N_IMPORTS": 1},
    "dying": {"N_DEATHS": 2},
    "engine": {"N_RUNS": 1},
    "events": {"N_RUNS": 1, "N_READERS": 2},
    "folders": {"N_FILES": 2, "N_MANY_FILES": 2, "IDLE_SECONDS": 0.1, "SETTLE_SECONDS": 0, "PAUSE_SECONDS": 0},
    "growth": {"TASKS": (10,), "DAGS": (1,), "RUNS": (1,), "HISTORY": (0, N_TASKS), "SETTLE_SECONDS": 0},
    "history": {"N_FINISHED": N_TASKS, "N_BLOCKED_RUNS": 1, "N_DAGS": 1, "N_MEASURED": 1},
    "lateness": {"N_DAGS": 2, "N_FILES": 1, "LEAD_SECONDS": 1},
    "running": {"HEAVY_FIB": 2, "N_CHAINS": 2},
    "simulating": {"N_DAGS": 1, "LAST_DAY": "2026-03-02"},
    "starting": {"TIMES": 1},
    "tabs": {"N_TABS": 1, "N_TASKS": 2, "ROUNDS": 1, "IDLE_SECONDS": 0.1, "SETTLE_SECONDS": 0},
}
"""The sizes of the workloads, by their modules."""


@pytest.fixture(autouse=True)
def smallest_sizes(monkeypatch):
    for module, sizes in SMALLEST.items():
        for name, size in sizes.items():
            monkeypatch.setattr(import_module(f"tests.benchmarks.workloads.{module}"), name, size)
    monkeypatch.setattr(Ours, "n_runs", 2)
    monkeypatch.setattr(Ours, "n_saves", 1)


@pytest.mark.parametrize("name", sorted(WORKLOADS.keys() - NEED_MORE))
def test_a_workload_measures_its_figures(name, tmp_path, warm):
    system = Ours(Site(tmp_path / "site"), "sqlite")
    sheet = Sheet(name, system.name, p=0.01)
    WORKLOADS[name](system, sheet)
    assert sheet.figures
    assert all(math.isfinite(figure.value) for figure in sheet.figures)
