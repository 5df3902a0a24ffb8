"""A second parse, which doubts a new version: at the same time as the first one where no other file is being parsed."""

from typing import Any

import anyio
import pytest

from asynsched.clock import VirtualClock
from asynsched.errors import ParseCrashed
from asynsched.parsing.processes.informed_parser import FEW_DAGS, OTHER_SEED, InformedParser
from asynsched.parsing.processes.parse_slots import ParseSlots
from asynsched.serialization.schema import SCHEMA_VERSION, FileError, ParsedDag, ParseReport, SerializedDag, SourceFile
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
) -> tuple[list[ParseReport | str], list[tuple[int, float]], float]:
    """Return what came of parses at the same moment, when each parse of a file began, and how long all took.

    `versions`: what they find; all are done once for each.
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
            ended.append(await informed.parse(path, slots))
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
    # Nothing but what the two parses do not agree on is different from the known version, so that is kept.
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


def test_a_file_that_is_parsed_again_and_again_without_a_change_is_parsed_once_each_time_but_the_first():
    _, began, _ = parse("d.py", versions=(BEFORE, BEFORE, NOW, NOW))
    assert [seed for seed, at in began if at == 0] == [0, OTHER_SEED]
    assert began[2:] == [(0, 10.0), (0, 20.0), (OTHER_SEED, 30.0), (0, 40.0), (OTHER_SEED, 40.0)]
    _, began, _ = parse("d.py", versions=(BEFORE, BROKEN, NOW))
    assert began[2:] == [(0, 10.0), (0, 20.0), (OTHER_SEED, 20.0)]


def test_an_edit_is_doubted_afterwards_where_no_more_than_one_parse_may_run_at_once():
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
def test_the_slot_of_a_second_parse_is_free_as_soon_as_one_of_both_has_ended(again_seconds):
    clock = VirtualClock(START)
    freed: list[float] = []
    slots = ParseSlots(1, lambda: freed.append((clock.now() - START).total_seconds()))

    async def main() -> None:
        database = open_inline()
        await store_known(database, 1)
        informed = InformedParser(SlowParser(clock, 1, again_seconds), database, clock)  # type: ignore[arg-type]
        await informed.parse("d.py", slots)
        await database.close()

    run_virtual(main, clock)
    assert freed == [min(again_seconds, LENGTH)]
