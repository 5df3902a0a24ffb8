"""Outcomes of example files, compared with the expected ones. Pure.

`observed.json` has the ends of runs in Airflow itself, `expected.toml` the reasons for everything else that may happen.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
States = Mapping[str, tuple[str | None, ...]]
"""The states of a run's tasks; a mapped task has its states in the order of map indexes."""


@dataclass(frozen=True)
class Run:
    """The end of a run: its state, or `timeout`; the states of its tasks; and why it did not succeed, in one line."""

    state: str
    tasks: States = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True)
class Tried:
    """The outcome of one file: the errors of its parse, and a run of each of its DAGs, if they are run."""

    path: str
    errors: tuple[str, ...] = ()
    runs: Mapping[str, Run] = field(default_factory=dict)


Kind = Literal["as in Airflow", "success", "outside", "expected", "failure"]


@dataclass(frozen=True)
class Verdict:
    """How a parse or a run is to be taken, and why."""

    kind: Kind
    why: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it ended well, rather than badly for a good reason."""
        return self.kind in ("as in Airflow", "success")


@dataclass(frozen=True)
class Outside:
    """Files that Airflow refuses, too, where they are tried: they need something that is not there.

    Attributes:
        files: Patterns of the files.
        error: A regular expression that is found in the error of each: another error has no excuse.
        reason: What they need.
    """

    files: Sequence[str]
    error: str
    reason: str

    def explains(self, tried: Tried) -> bool:
        """Whether every error of a file is because of this."""
        is_named = any(fnmatchcase(tried.path, pattern) for pattern in self.files)
        return is_named and all(re.search(self.error, error) for error in tried.errors)


@dataclass(frozen=True)
class Expectations:
    """The reasons of one package, by patterns of files and names of DAGs.

    Attributes:
        outside: Why Airflow does not parse a file either.
        files: Why a file does not parse.
        runs: Why a run does not succeed, or differs from Airflow's.
        varies: Why tasks of a run end differently from time to time; its end as a whole does not.
    """

    outside: Sequence[Outside] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[str, str] = field(default_factory=dict)
    varies: Mapping[str, str] = field(default_factory=dict)


def parse_verdict(tried: Tried, expected: Expectations) -> Verdict:
    """Return how the parse of a file is to be taken."""
    if not tried.errors:
        return Verdict("success")
    for one in expected.outside:
        if one.explains(tried):
            return Verdict("outside", f"{one.reason}: {'; '.join(tried.errors)}")
    for pattern, reason in expected.files.items():
        if fnmatchcase(tried.path, pattern):
            return Verdict("expected", f"{reason}: {'; '.join(tried.errors)}")
    return Verdict("failure", "; ".join(tried.errors))


def run_verdict(dag_id: str, run: Run, in_airflow: Run | None, expected: Expectations) -> Verdict:
    """Return how the end of a run is to be taken."""
    difference = _difference(run, in_airflow, tasks_too=dag_id not in expected.varies)
    if dag_id in expected.runs and (difference or run.state != "success"):
        return Verdict("expected", expected.runs[dag_id])
    if difference:
        return Verdict("failure", f"{difference}{f': {run.why}' if run.why else ''}")
    return Verdict("success" if in_airflow is None else "as in Airflow")


def verdicts(tried: Tried, expected: Expectations, observed: Mapping[str, Run]) -> Iterator[tuple[str, Verdict]]:
    """Yield the verdict on the parse of a file under an empty name, then the verdicts on its DAGs by their names."""
    yield "", parse_verdict(tried, expected)
    for dag_id, run in sorted(tried.runs.items()):
        yield dag_id, run_verdict(dag_id, run, observed.get(dag_id), expected)


def _difference(run: Run, in_airflow: Run | None, *, tasks_too: bool) -> str:
    """Return how a run differs from Airflow's, or from success if that is not known; empty if it does not."""
    if in_airflow is None:
        return "" if run.state == "success" else run.state
    if run.state != in_airflow.state:
        return f"{run.state}, in Airflow {in_airflow.state}"
    if tasks_too:
        for task_id in sorted({*run.tasks, *in_airflow.tasks}):
            ours, theirs = run.tasks.get(task_id, ()), in_airflow.tasks.get(task_id, ())
            if ours != theirs:
                return f"task {task_id}: {_listed(ours)}, in Airflow {_listed(theirs)}"
    return ""


def _listed(states: tuple[str | None, ...]) -> str:
    return ", ".join(str(state) for state in states) or "missing"


@cache
def expectations() -> Mapping[str, Expectations]:
    """Return the contents of `expected.toml`, by package."""
    known = tomllib.loads((HERE / "expected.toml").read_text(encoding="utf-8"))
    return {
        package: Expectations(**fields | {"outside": tuple(Outside(**one) for one in fields.get("outside", ()))})
        for package, fields in known.items()
    }


@cache
def observed() -> Mapping[str, Run]:
    """Return the ends of runs in Airflow, by DAG."""
    known = json.loads((HERE / "observed.json").read_text(encoding="utf-8"))
    return {
        case["dag_id"]: Run(case["state"], {task: tuple(states) for task, states in case["tasks"].items()})
        for case in known["cases"]
    }
