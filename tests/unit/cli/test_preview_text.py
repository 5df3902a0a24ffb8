"""The texts of a preview: its problems, its schedules, and a comment that is not too long."""

import re
from datetime import UTC, datetime

import msgspec
import pytest

from asynsched.cli.preview import as_markdown, next_in_words, problems, run_in_words
from asynsched.queries.preview import (
    MOST_DUE,
    DagSummary,
    FailingFile,
    FolderState,
    LiveState,
    Load,
    LostAsset,
    MissingPool,
    NextRuns,
    RunVersion,
    preview,
)
from asynsched.queries.version_changes import DagState, dag_change
from asynsched.serialization.schema import SerializedDag, SerializedTask

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOTHING = preview(FolderState("a"), FolderState("b"), LiveState(), now=NOW)
LOAD = Load(NOW, NOW, 1, 2, 1, 2, 0, 0, (), ())
FAILING = FailingFile("d.py", "syntax", "d.py:1: wrong | `x` @all <b>", 1, None, is_new=True)


def dag(number: int = 0) -> DagSummary:
    return DagSummary(f"d{number}", "d.py", None, 1, is_paused=False)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({}, {}),
        ({"load": LOAD, "added": (dag(),)}, {}),
        ({"failing": (FAILING, FAILING)}, {"errors": "2 errors of DAG files"}),
        ({"missing_pools": (MissingPool("p", ()),)}, {"pools": "1 pool missing"}),
        ({"lost_assets": (LostAsset("a", "a", (), ()),)}, {"assets": "1 asset is updated by nothing"}),
        ({"removed": (dag(), dag(1))}, {"removed": "2 DAGs are removed"}),
        ({"load": msgspec.structs.replace(LOAD, failed_after=3)}, {"failed": "3 simulated runs fail, not 0"}),
        ({"load": msgspec.structs.replace(LOAD, failed_before=3)}, {}),
        (
            {"load": msgspec.structs.replace(LOAD, deadlines_missed=("d.r",))},
            {"deadlines": "1 deadline missed in the simulation"},
        ),
    ],
)
def test_each_problem_has_a_kind_and_a_sentence(parts, told):
    found = problems(msgspec.structs.replace(NOTHING, **parts))
    assert {kind: text for kind, text in found.items() if text} == told
    assert list(found) == ["errors", "pools", "assets", "removed", "failed", "deadlines"]


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        (None, "no DAG"),
        (NextRuns(None), "only on demand"),
        (NextRuns("@daily", 1, (NOW,)), "@daily; 1 run is due; next 2026-03-01 12:00Z"),
        (NextRuns("@daily", MOST_DUE), f"@daily; at least {MOST_DUE} runs are due"),
        (NextRuns("odd", error="why"), "odd; why"),
    ],
)
def test_a_schedule_is_told_with_its_next_and_due_runs(runs, text):
    assert next_in_words(runs) == text


@pytest.mark.parametrize(
    ("version", "is_removed", "text"),
    [
        (3, False, "stays on version 3"),
        (3, True, "stays on version 3"),
        (None, False, "begins with the new version"),
        (None, True, "begins with the last version"),
    ],
)
def test_an_active_run_is_told_with_its_version(version, is_removed, text):
    assert run_in_words(RunVersion("d", "r", "queued", version, is_removed)) == text


def test_markdown_holds_hostile_texts_and_fits_into_a_comment():
    told = as_markdown(msgspec.structs.replace(NOTHING, failing=(FAILING,)), {"errors": "1 error"})
    assert r"| `d.py` | 1 | `d.py:1: wrong \| 'x' @all <b>` | yes |  |" in told
    long = msgspec.structs.replace(FAILING, message="x" * 1000)
    failing = tuple(msgspec.structs.replace(long, file=f"{'y' * 1000}{n}") for n in range(200))
    large = msgspec.structs.replace(NOTHING, failing=failing, added=tuple(map(dag, range(5000))), load=LOAD)
    told = as_markdown(large, {})
    assert told.count("…`") == 100
    assert "And 150 more." in told
    assert "And 4950 more." in told
    changes = [dag_change(wide(0), wide(n), {}) for n in range(1, 60)]
    told = as_markdown(msgspec.structs.replace(large, changed=tuple(changes)), {})
    assert len(told) < 65_536
    assert "### Simulated load" in told
    assert re.search(r"Left out, as this would be too long: \d+ parts\.\n$", told)


def wide(retries: int) -> DagState:
    """Return a DAG of many tasks with these retries."""
    tasks = tuple(SerializedTask(f"task-{n}", "EmptyOperator", retries=retries) for n in range(100))
    return DagState("d.py", SerializedDag("d", {"kind": "null"}, tasks=tasks), str(retries))
