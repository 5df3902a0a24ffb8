"""Plans of authors' timetables, and the reasons to pause a DAG, on every database."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from asynsched import Asset
from asynsched.queries.dags import DagFilter, list_dags
from asynsched.serialization.schema import ParsedDag, RunByHand, SerializedDag, TimetableQuestion
from asynsched.states import DagRunState, DagRunType
from asynsched.store.assets import AssetEventRow, record_events
from asynsched.store.dags.dags import file_to_ask, get_dag, get_plan, pause_active, questions_for_file
from asynsched.store.runs.dag_runs import insert_run, last_run_states
from asynsched.store.schema import DagRunRow
from asynsched.timetables import CustomTimetable, PlannedInterval, PlannedRun, TimetablePlan
from asynsched.timetables.asset_condition import read_condition
from asynsched.timetables.own_partitions import AssetKeys
from tests.store.test_parse_results import LATER, NOW, report, store

DAY = PlannedInterval(NOW, NOW + timedelta(days=1))
PLAN = TimetablePlan(asked_at=NOW, runs=(PlannedRun(DAY.end, DAY),))
MINE = CustomTimetable("Mine", fields={}, summary="")
OWN = ParsedDag(SerializedDag("own", MINE.serialize()), "1", PLAN)
DATED = TimetableQuestion(run_by_hand=RunByHand(NOW, NOW, is_named=True))
KNOWN = ParsedDag(SerializedDag("known", {"kind": "null"}), "1")


def run(number, state, run_type=DagRunType.SCHEDULED):
    start = NOW + number * timedelta(days=1)
    end = start + timedelta(days=1)
    return DagRunRow(
        dag_id="own", run_id=f"r{number}", run_type=run_type, state=state, logical_date=start,
        data_interval_start=start, data_interval_end=end, run_after=end, queued_at=end,
    )  # fmt: skip


async def test_a_plan_is_kept_until_the_next_parse_which_counts_as_a_change(database):
    await store(database, report("d.py", OWN, KNOWN))
    assert await database.read(get_plan, "own") == PLAN
    assert await database.read(get_plan, "known") is None
    again = msgspec.structs.replace(OWN, plan=msgspec.structs.replace(PLAN, asked_at=LATER))
    assert (await store(database, report("d.py", again, KNOWN), LATER)).changed == ("own",)
    assert (await database.read(get_plan, "own")).asked_at == LATER


async def test_lists_show_whether_a_timetable_of_ones_own_is_periodic(database):
    rare = CustomTimetable("Rare", fields={}, summary="", periodic=False)
    await store(database, report("d.py", OWN, ParsedDag(SerializedDag("rare", rare.serialize()), "1", PLAN)))
    found = await database.read(list_dags, DagFilter())
    assert {dag.dag_id: dag.is_periodic for dag in found.items} == {"own": True, "rare": False}


async def test_a_file_is_asked_for_plans_that_follow_the_last_runs_of_its_dags(database):
    await store(database, report("d.py", OWN, KNOWN))
    assert await database.read(file_to_ask, "own", DATED) == "d.py"
    assert await database.read(file_to_ask, "known", DATED) is None
    assert (await database.read(questions_for_file, "d.py", NOW)).of_dags == {"own": TimetableQuestion()}
    await database.write(insert_run, run(0, DagRunState.SUCCESS))
    await database.write(insert_run, run(5, DagRunState.SUCCESS, DagRunType.MANUAL))
    questions = await database.read(questions_for_file, "d.py", NOW)
    assert questions.of_dags == {"own": TimetableQuestion(last=PLAN.runs[0])}
    await store(database, report("d.py", msgspec.structs.replace(OWN, plan=None)), LATER)
    assert await database.read(file_to_ask, "own", DATED) is None
    assert (await database.read(questions_for_file, "d.py", NOW)).of_dags == {}


async def test_a_file_is_asked_what_its_partition_mappers_make_of_the_keys_that_wait(database):
    waits = read_condition(Asset("a").as_expression())
    dag = SerializedDag("own", {"kind": "null"}, waits, {"default": {"kind": "IdentityMapper"}})
    await store(database, report("d.py", ParsedDag(dag, "1", TimetablePlan(asked_at=NOW))))
    for key in ("x", "x", "y"):
        await database.write(record_events, [AssetEventRow("a", "a", {}, NOW, partition_key=key, partition_date=NOW)])
    questions = (await database.read(questions_for_file, "d.py", NOW)).of_dags
    assert questions == {"own": TimetableQuestion(partitions=(AssetKeys("a", "a", keys=("x", "y"), dates=(NOW,)),))}
    assert await database.read(file_to_ask, "own", DATED) is None, "its timetable is not the author's"
    of_partition = msgspec.structs.replace(DATED, partition_key="x")
    assert await database.read(file_to_ask, "own", of_partition) == "d.py"


@pytest.mark.parametrize("names_runs", [False, True])
async def test_a_file_is_asked_about_a_run_only_for_a_data_interval_or_a_name(database, *, names_runs: bool):
    plan = msgspec.structs.replace(PLAN, names_runs=names_runs)
    await store(database, report("d.py", msgspec.structs.replace(OWN, plan=plan)))
    asked = {}
    for given in ("date", "date, interval", "date, name", "date, interval, name", "", "name", "operator"):
        question = TimetableQuestion.about_run(
            NOW, date=NOW if "date" in given else None, interval=DAY.value() if "interval" in given else None,
            run_id="r" if "name" in given else None, run_after=None,
            run_type=DagRunType.OPERATOR_TRIGGERED if given == "operator" else DagRunType.MANUAL,
        )  # fmt: skip
        asked[given] = await database.read(file_to_ask, "own", question) is not None
    assert [given for given in asked if asked[given]] == [
        *(["date", "date, interval", "date, name", ""] if names_runs else ["date", "date, name"])
    ]


async def test_the_states_of_the_newest_runs_are_told_and_a_dag_is_paused_once(database):
    await store(database, report("d.py", OWN))
    for number, state in enumerate((DagRunState.SUCCESS, DagRunState.FAILED, DagRunState.QUEUED)):
        await database.write(insert_run, run(number, state))
    assert await database.read(last_run_states, "own", 2) == ["queued", "failed"]
    assert await database.write(pause_active, "own", datetime(2026, 4, 1, tzinfo=UTC))
    assert not await database.write(pause_active, "own", datetime(2026, 4, 2, tzinfo=UTC))
    dag = await database.read(get_dag, "own")
    assert (dag.is_paused, dag.updated_at) == (True, datetime(2026, 4, 1, tzinfo=UTC))
