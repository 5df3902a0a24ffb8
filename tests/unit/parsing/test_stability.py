"""Two parses of one file: what differs is named, and makes no version by itself."""

import pytest

from asynsched.parsing.processes.stability import KnownVersion, differing_fields, settled, would_be_new
from asynsched.serialization.schema import (
    SCHEMA_VERSION,
    UNSTABLE,
    ParsedDag,
    ParseReport,
    SerializedDag,
    SerializedTask,
    SourceFile,
)

CODE = SourceFile("d.py", "d", "1" * 64, "code")


def dag(*tasks, **fields):
    return SerializedDag("d", {"kind": "null"}, tasks=tuple(tasks or (task("a"), task("b"))), **fields)


def task(task_id, **fields):
    return SerializedTask(task_id, "EmptyOperator", **fields)


def report(parsed, version="2" * 64, **fields):
    return ParseReport(SCHEMA_VERSION, "d.py", (ParsedDag(parsed, version, **fields),), sources=(CODE,))


def verdict(stored, first, second, known_hash="0" * 64):
    """Return the version that is stored, and what the warning names."""
    again = report(second, "3" * 64, known_hash=known_hash)
    result = settled(report(first), again, {"d": KnownVersion("0" * 64, stored)})
    [parsed] = result.dags
    assert parsed.dag == (stored if parsed.version_hash == "0" * 64 else first)
    warnings = [warning.message for warning in result.warnings if warning.kind == UNSTABLE]
    return parsed.version_hash[0], " ".join(warnings)


@pytest.mark.parametrize(
    ("stored", "first", "second", "names"),
    [
        (dag(doc_md="1"), dag(doc_md="2"), dag(doc_md="3"), "in doc_md;"),
        (dag(task("a", doc_md="1")), dag(task("a", doc_md="2")), dag(task("a", doc_md="3")), "in doc_md of task 'a';"),
        (dag(task("a"), task("b")), dag(task("b"), task("a")), dag(task("a"), task("b")), "in the order of its tasks;"),
        (dag(task("a1")), dag(task("a2")), dag(task("a3")), "in the ids of its tasks ('a2' is not always there);"),
        (dag(doc_md="1", tags=("x",)), dag(doc_md="2", tags=("y",)), dag(doc_md="3", tags=("z",)), "in doc_md, tags;"),
    ],
)
def test_what_two_parses_do_not_agree_on_is_named_and_makes_no_version(stored, first, second, names):
    version, warning = verdict(stored, first, second)
    assert version == "0"
    assert names in warning


@pytest.mark.parametrize(
    ("stored", "first", "second"),
    [
        (dag(doc_md="1", owners=("x",)), dag(doc_md="2", owners=("y",)), dag(doc_md="3", owners=("y",))),
        (dag(task("a", doc_md="1")), dag(task("a", doc_md="2", retries=1)), dag(task("a", doc_md="3", retries=1))),
        (dag(task("a", doc_md="1")), dag(task("a", doc_md="2"), task("b")), dag(task("a", doc_md="3"), task("b"))),
    ],
)
def test_what_they_do_agree_on_makes_a_version_all_the_same(stored, first, second):
    version, warning = verdict(stored, first, second)
    assert version == "2"
    assert "doc_md" in warning


def test_other_code_makes_a_version_all_the_same():
    assert verdict(dag(doc_md="1"), dag(doc_md="2"), dag(doc_md="3"), known_hash="9" * 64)[0] == "2"


def test_a_dag_on_which_both_parses_agree_is_not_mentioned():
    assert verdict(dag(doc_md="1"), dag(doc_md="2"), dag(doc_md="2")) == ("2", "")
    assert differing_fields(dag(), dag()) == []


def test_a_new_dag_that_is_parsed_twice_by_chance_is_named_too():
    result = settled(report(dag(doc_md="1")), report(dag(doc_md="2")), {})
    assert ([parsed.version_hash for parsed in result.dags], len(result.warnings)) == (["2" * 64], 1)


def test_only_a_dag_that_has_another_version_is_parsed_again():
    assert would_be_new(report(dag()), {}) == []
    assert would_be_new(report(dag()), {"d": "2" * 64}) == []
    assert would_be_new(report(dag()), {"d": "0" * 64}) == ["d"]
