"""The XComs of a mapped task's instances, counted and read in parts."""

from datetime import UTC, datetime

from asynsched.store import rows as parts
from asynsched.store.runs.dag_runs import insert_run
from asynsched.store.runs.transitions import Batch, XComWrite, apply
from asynsched.store.runs.xcoms import MappedXComs, count_mapped_xcoms, mapped_xcoms, some_xcoms
from tests.store.test_runs import new_run

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


async def stored(database, values, task_id="m", key="return_value"):
    run = await database.write(insert_run, new_run())
    rows = [XComWrite(run, task_id, index, key, value, NOW) for index, value in values.items()]
    others = [XComWrite(run, "other", 0, key, "0", NOW), XComWrite(run, task_id, 0, "other", "0", NOW)]
    await database.write(apply, Batch(1, xcoms=[*rows, *others]))
    return MappedXComs(run, task_id, key, 0, 100)


async def test_mapped_values_are_counted_and_read_by_their_place(database):
    wanted = await stored(database, {11: '"last"', 0: "[0]", 2: "null", 9: "9"})
    assert await database.read(count_mapped_xcoms, wanted) == 4
    assert await database.read(mapped_xcoms, wanted, 0, None) == [b"[0]", b"null", b"9", b'"last"']
    assert await database.read(mapped_xcoms, wanted, 1, 2) == [b"null", b"9"]
    assert await database.read(mapped_xcoms, wanted, 4, 1) == []


async def test_one_instance_of_a_group_reads_only_its_map_indexes(database):
    wanted = await stored(database, {index: str(index) for index in range(12)})
    part = wanted._replace(first=3, end=6)
    assert await database.read(count_mapped_xcoms, part) == 3
    assert await database.read(mapped_xcoms, part, 1, None) == [b"4", b"5"]


async def test_an_answer_holds_no_more_than_fits_and_always_one_value(database, monkeypatch):
    wanted = await stored(database, {index: f"{10**11 + index}" for index in range(6)})
    monkeypatch.setattr(parts, "MANY_BYTES", 36)
    assert await database.read(mapped_xcoms, wanted, 0, None) == [b"100000000000", b"100000000001", b"100000000002"]
    monkeypatch.setattr(parts, "MANY_BYTES", 1)
    assert await database.read(mapped_xcoms, wanted, 5, None) == [b"100000000005"]


async def test_values_of_tasks_come_in_parts_that_follow_each_other(database, monkeypatch):
    """Also where one of them alone is more than a part should hold."""
    wanted = await stored(database, {0: "0", 1: f'"{"x" * 50}"', 2: "2", 10: "10", 11: "11"})
    monkeypatch.setattr(parts, "MANY_BYTES", 4)
    found, after, is_last = [], None, False
    while not is_last:
        part, is_last = await database.read(
            some_xcoms, wanted.run, key="return_value", task_ids=["other", "m"], after=after
        )
        found.append([(item.task_id, item.map_index, len(item.value)) for item in part])
        after = part[-1][:2]
    assert found == [
        [("m", 0, 1)], [("m", 1, 52)], [("m", 2, 1), ("m", 10, 2)], [("m", 11, 2), ("other", 0, 1)],
    ]  # fmt: skip
