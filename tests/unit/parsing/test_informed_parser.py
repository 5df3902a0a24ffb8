"""A second parse, which doubts a new version: its occasions, and its consequences."""

from typing import Any

import anyio
import pytest

from asynsched.clock import VirtualClock
from asynsched.errors import ParseCrashed
from asynsched.parsing.processes.informed_parser import (
    FEW_DAGS,
    OTHER_SEED,
    InformedParser,
    KnownVersion,
    ParseSlots,
    differing_fields,
    keep_unstable_versions,
    would_be_new,
)
from asynsched.serialization.schema import (
    SCHEMA_VERSION,
    UNSTABLE,
    FileError,
    ParsedDag,
    ParseReport,
    SerializedDag,
    SerializedTask,
    SourceFile,
)
from asynsched.simulation.simulation import run_virtual
from asynsched.store.dags.parse_results import DagDefaults, FileStamp, store_report
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_inline
from tests.unit.parsing.dispatching import START

LENGTH = 10.0
BEFORE, NOW = "1" * 64, "2" * 64
BROKEN = "a syntax error"


def report(path: str, dag_ids: list[str], version: str, known_hash: str | None = None, **fields: Any) -> ParseReport:
    dags = tuple(
        ParsedDag(SerializedDag(dag_id, {"kind": "null"}, **fields), version, known_hash=known_hash)
        for dag_id in dag_ids
    )
    return ParseReport(SCHEMA_VERSION, path, dags, sources=(SourceFile(path, "x", "a" * 64, "text"),))


class SlowParser:
    """Takes ten seconds, or `again_seconds`. Finds `version`, with a `doc_md` that the hash seed decides."""

    def __init__(self, clock: VirtualClock, n_dags: int, again_seconds: float) -> None:
        self._lengths = {0: LENGTH, OTHER_SEED: again_seconds}
        self._clock = clock
        self._dag_ids = [f"d{number}" for number in range(n_dags)]
        self.version = NOW
        self.crashing: set[int] = set()
        self.began: list[tuple[int, float]] = []

    async def parse(self, path: str, questions: object = None, *, hash_seed: int = 0) -> ParseReport:
        self.began.append((hash_seed, (self._clock.now() - START).total_seconds()))
        await anyio.sleep(self._lengths[hash_seed])
        if hash_seed in self.crashing:
            raise ParseCrashed(path, "died")
        if self.version == BROKEN:
            return ParseReport(SCHEMA_VERSION, path, errors=(FileError("syntax", BROKEN),))
        return report(path, self._dag_ids, self.version, BEFORE, doc_md=f"by seed {hash_seed}")


async def store_known(database: Database, n_dags: int) -> None:
    known = report("d.py", [f"d{number}" for number in range(n_dags)], BEFORE)
    stamp, defaults = FileStamp("0" * 64, 1, 2, "3.11"), DagDefaults(16, paused=False)
    await database.write(store_report, known, stamp, now=START, defaults=defaults)


def parse(
    *paths: str,
    n_dags: int = 1,
    is_known: bool = True,
    versions: tuple[str, ...] = (NOW,),
    crashing: tuple[int, ...] = (),
    n_slots: int = 2,
    again_seconds: float = LENGTH,
    is_edited: bool = True,
) -> tuple[list[ParseReport | str], list[tuple[int, float]], float]:
    """Return the reports of simultaneous parses, when each parse of a file began, and how long all took.

    `versions`: the versions that they find; all are done once for each.
    """
    clock = VirtualClock(START)
    parser = SlowParser(clock, n_dags, again_seconds)
    parser.crashing = set(crashing)
    database = open_inline()
    ended: list[ParseReport | str] = []
    slots = ParseSlots(n_slots, lambda: None)

    async def one(informed: InformedParser, path: str) -> None:
        assert slots.take()
        try:
            ended.append(await informed.parse(path, slots, is_edited=is_edited))
        except ParseCrashed as exc:
            ended.append(str(exc))
        finally:
            slots.give_back()

    async def main() -> None:
        if is_known:
            await store_known(database, n_dags)
        informed = InformedParser(parser, database, clock)  # type: ignore[arg-type]
        for parser.version in versions:
            async with anyio.create_task_group() as tasks:
                for path in paths:
                    tasks.start_soon(one, informed, path)
        await database.close()

    run_virtual(main, clock)
    return ended, parser.began, (clock.now() - START).total_seconds()


def test_an_edit_is_doubted_while_it_is_parsed():
    [found], began, took = parse("d.py")
    assert sorted(began) == [(0, 0.0), (OTHER_SEED, 0.0)]
    assert took == LENGTH
    [dag] = found.dags
    # Only fields in which the two parses differ also differ from the known version, so that one is kept.
    assert dag.version_hash == BEFORE
    assert [warning.dag_id for warning in found.warnings] == ["d0"]


@pytest.mark.parametrize(
    ("case", "n_seconds"), [({"is_known": False}, 1), ({"versions": (BEFORE,)}, 1), ({"n_dags": FEW_DAGS + 1}, 2)]
)
def test_a_file_is_parsed_once_or_twice_as_its_versions_need(case, n_seconds):
    [found], began, took = parse("d.py", **case)
    assert took == n_seconds * LENGTH
    assert [warning.kind for warning in found.warnings] == [
        "unstable" for _ in range(FEW_DAGS + 1 if n_seconds == 2 else 0)
    ]
    assert began[0] == (0, 0.0)


def test_while_other_files_are_parsed_only_what_has_changed_is_parsed_again():
    _, began, took = parse("e.py", "d.py")
    assert sorted(began) == [(0, 0.0), (0, 0.0), (OTHER_SEED, LENGTH)]
    assert took == 2 * LENGTH


@pytest.mark.parametrize(("crashing", "version"), [((0,), None), ((OTHER_SEED,), NOW), ((0, OTHER_SEED), None)])
def test_a_parse_that_crashes_beside_another_counts_as_if_it_were_alone(crashing, version):
    [found], _, took = parse("d.py", crashing=crashing)
    assert took == LENGTH
    assert (None if isinstance(found, str) else found.dags[0].version_hash) == version


def test_only_an_edited_file_is_parsed_twice_at_once():
    _, began, _ = parse("d.py", versions=(BEFORE, NOW), is_edited=False)
    assert began == [(0, 0.0), (0, 10.0), (OTHER_SEED, 20.0)]


def test_with_one_slot_an_edit_is_doubted_after_the_first_parse():
    [found], began, took = parse("d.py", n_slots=1)
    assert (began, took) == ([(0, 0.0), (OTHER_SEED, LENGTH)], 2 * LENGTH)
    assert found.warnings


@pytest.mark.parametrize(
    "case", [{"versions": (BEFORE,)}, {"versions": (BROKEN,)}, {"crashing": (0,)}], ids=["same", "broken", "crashed"]
)
def test_nobody_waits_for_a_second_parse_that_is_not_needed(case):
    _, began, took = parse("d.py", again_seconds=60, **case)
    assert [seed for seed, _ in began] == [0, OTHER_SEED]
    assert took == LENGTH


@pytest.mark.parametrize("again_seconds", [LENGTH / 2, LENGTH * 2])
def test_a_second_parse_s_slot_is_free_once_one_of_both_has_ended(again_seconds):
    clock = VirtualClock(START)
    freed: list[float] = []
    slots = ParseSlots(1, lambda: freed.append((clock.now() - START).total_seconds()))

    async def main() -> None:
        database = open_inline()
        await store_known(database, 1)
        informed = InformedParser(SlowParser(clock, 1, again_seconds), database, clock)  # type: ignore[arg-type]
        await informed.parse("d.py", slots, is_edited=True)
        await database.close()

    run_virtual(main, clock)
    assert freed == [min(again_seconds, LENGTH)]


CODE = SourceFile("d.py", "d", "1" * 64, "code")


def dag(*tasks, **fields):
    return SerializedDag("d", {"kind": "null"}, tasks=tuple(tasks or (task("a"), task("b"))), **fields)


def task(task_id, **fields):
    return SerializedTask(task_id, "EmptyOperator", **fields)


def report_of(parsed, version="2" * 64, **fields):
    return ParseReport(SCHEMA_VERSION, "d.py", (ParsedDag(parsed, version, **fields),), sources=(CODE,))


def verdict(stored, first, second, known_hash="0" * 64):
    """Return the stored version, and the fields that the warning names."""
    again = report_of(second, "3" * 64, known_hash=known_hash)
    result = keep_unstable_versions(report_of(first), again, {"d": KnownVersion("0" * 64, stored)})
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
    assert list(differing_fields(dag(), dag())) == []


def test_a_new_dag_that_is_parsed_twice_by_chance_is_named_too():
    result = keep_unstable_versions(report_of(dag(doc_md="1")), report_of(dag(doc_md="2")), {})
    assert ([parsed.version_hash for parsed in result.dags], len(result.warnings)) == (["2" * 64], 1)


def test_only_a_dag_that_has_another_version_is_parsed_again():
    assert would_be_new(report_of(dag()), {}) == []
    assert would_be_new(report_of(dag()), {"d": "2" * 64}) == []
    assert would_be_new(report_of(dag()), {"d": "0" * 64}) == ["d"]
