"""A second parse, which doubts a new version: at the same time as the first one where no other file is being parsed."""

from typing import Any

import anyio
import pytest

from asynsched.clock import VirtualClock
from asynsched.errors import ParseCrashed
from asynsched.parsing.processes.informed_parser import FEW_DAGS, OTHER_SEED, InformedParser
from asynsched.serialization.schema import SCHEMA_VERSION, ParsedDag, ParseReport, SerializedDag, SourceFile
from asynsched.simulation.loop import run_virtual
from asynsched.store.engines.direct_database import open_inline
from asynsched.store.parse_results import DagDefaults, FileStamp, store_report
from tests.unit.parsing.dispatching import START

LENGTH = 10.0
BEFORE, NOW = "1" * 64, "2" * 64


def report(path: str, dag_ids: list[str], version: str, known_hash: str | None = None, **fields: Any) -> ParseReport:
    dags = tuple(
        ParsedDag(SerializedDag(dag_id, {"kind": "null"}, **fields), version, known_hash=known_hash)
        for dag_id in dag_ids
    )
    return ParseReport(SCHEMA_VERSION, path, dags, sources=(SourceFile(path, "x", "a" * 64, "text"),))


class SlowParser:
    """Takes ten seconds. What it finds is of `version`, with a `doc_md` that the hash seed decides."""

    def __init__(self, clock: VirtualClock, n_dags: int) -> None:
        self._clock = clock
        self._dag_ids = [f"d{number}" for number in range(n_dags)]
        self.version = NOW
        self.crashing: set[int] = set()
        self.began: list[tuple[int, float]] = []

    async def parse(self, path: str, questions: object = None, *, hash_seed: int = 0) -> ParseReport:
        self.began.append((hash_seed, (self._clock.now() - START).total_seconds()))
        await anyio.sleep(LENGTH)
        if hash_seed in self.crashing:
            raise ParseCrashed(path, "died")
        return report(path, self._dag_ids, self.version, BEFORE, doc_md=f"by seed {hash_seed}")


def parse(
    *paths: str,
    n_dags: int = 1,
    is_known: bool = True,
    versions: tuple[str, ...] = (NOW,),
    crashing: tuple[int, ...] = (),
) -> tuple[list[ParseReport | str], list[tuple[int, float]], float]:
    """Return what came of parses at the same moment, when each parse of a file began, and how long all took.

    `versions`: what they find; all are done once for each.
    """
    clock = VirtualClock(START)
    parser = SlowParser(clock, n_dags)
    parser.crashing = set(crashing)
    database = open_inline()
    ended: list[ParseReport | str] = []

    async def one(informed: InformedParser, path: str) -> None:
        try:
            ended.append(await informed.parse(path))
        except ParseCrashed as exc:
            ended.append(str(exc))

    async def main() -> None:
        if is_known:
            known = report("d.py", [f"d{number}" for number in range(n_dags)], BEFORE)
            stamp, defaults = FileStamp("0" * 64, 1, 2, "3.11"), DagDefaults(16, paused=False)
            await database.write(store_report, known, stamp, now=START, defaults=defaults)
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
