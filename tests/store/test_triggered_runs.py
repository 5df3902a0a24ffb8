"""Triggered runs: stored with few statements, and never in place of another one."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from asynsched.bell import Hint
from asynsched.clock import VirtualClock
from asynsched.errors import AlreadyExists, DagError
from asynsched.scheduling.creation import triggering
from asynsched.scheduling.creation.triggering import ManualRuns, create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.serialization.schema import AnswersForRun
from asynsched.states import DagRunType
from asynsched.store.dags.parse_results import Outcome, store_outcomes
from asynsched.store.database import Database
from asynsched.store.runs.dag_runs import get_run, list_runs
from tests.support.parse_reports import DEFAULTS, NOW, STAMP, parsed, report

EARLIER = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
async def database(database: Database) -> Database:
    """A database with a DAG `d`."""
    outcome = Outcome("d.py", report("d.py", parsed("d")), STAMP)
    await database.write(store_outcomes, [outcome], now=NOW, defaults=DEFAULTS)
    return database


def trigger(conn: sa.Connection, **options: Any) -> tuple[str, datetime | None]:
    """Trigger `d`; return the run_id and the logical date."""
    row = get_run(conn, *create_manual_run(conn, "d", Trigger(**options), now=NOW))
    assert row is not None
    return row.run_id, row.logical_date


async def test_runs_triggered_at_one_instant_differ_by_a_number_and_a_microsecond(database):
    name = f"manual__{NOW.isoformat()}"
    for number, run_id in enumerate([name, f"{name}_2", f"{name}_3"]):
        assert await database.write(trigger) == (run_id, NOW + timedelta(microseconds=number))
    for number in (4, 5):
        assert await database.write(trigger, has_logical_date=False) == (f"{name}_{number}", None)
    dated = {"logical_date": EARLIER, "has_logical_date": False}
    assert await database.write(trigger, run_id="dated", **dated) == ("dated", EARLIER), "a given date counts"
    assert await database.write(trigger, run_id="mine") == ("mine", NOW + timedelta(microseconds=3))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"logical_date": EARLIER}, f"manual__{NOW.isoformat()}"),
        ({"run_after": LATER}, f"manual__{LATER.isoformat()}"),
        ({"run_type": DagRunType.OPERATOR_TRIGGERED, "logical_date": EARLIER}, f"manual__{EARLIER.isoformat()}"),
        ({"run_type": DagRunType.OPERATOR_TRIGGERED, "run_after": LATER}, f"manual__{LATER.isoformat()}"),
        ({"run_type": DagRunType.ASSET_MATERIALIZATION}, f"asset_materialization__{NOW.isoformat()}"),
    ],
)
async def test_a_run_is_named_by_its_earliest_start_as_in_airflow(database, options, name):
    assert (await database.write(trigger, **options))[0] == name


@pytest.mark.parametrize(
    ("taken", "asked", "says"),
    [
        ({"run_id": "a"}, {"run_id": "a"}, "has a run 'a' already; choose another run id"),
        ({"logical_date": EARLIER}, {"logical_date": EARLIER, "run_id": "b"}, "of the logical date 2026-01-01"),
    ],
    ids=["run id", "logical date"],
)
async def test_what_was_asked_for_and_is_taken_is_refused(database, taken, asked, says):
    first, _ = await database.write(trigger, **taken)
    with pytest.raises(AlreadyExists, match=says):
        await database.write(trigger, **asked)
    assert [run.run_id for run in await database.read(list_runs)] == [first]


async def test_a_run_that_is_in_nobody_s_way_takes_few_statements(database):
    def statements(conn: sa.Connection) -> int:
        found: list[str] = []
        note = lambda *args: found.append(args[2])  # noqa: E731 - it must be the same object to be removed
        sa.event.listen(conn, "before_cursor_execute", note)
        create_manual_run(conn, "d", Trigger(), now=NOW)
        sa.event.remove(conn, "before_cursor_execute", note)
        return len(found)

    assert await database.write(statements) == 2, "the DAG's version, and the run with its deadlines"


async def test_a_conf_that_no_task_could_be_given_is_refused_with_its_largest_value(database):
    said = (
        "The conf of a run of the DAG 'd' is too large: 16.0 MiB of JSON; the limit is 15.0 MiB. The"
        " largest value is 'rows', with 16.0 MiB"
    )
    with pytest.raises(DagError, match=said):
        await database.write(trigger, conf={"day": "monday", "rows": "x" * (16 * 1024**2)})
    assert await database.write(trigger, run_id="small", conf={"rows": "x" * 1000})


@pytest.mark.parametrize(
    ("run_id", "says"), [("latest", "'latest' is reserved: commands name"), ("", "'' is not valid")]
)
async def test_a_run_id_by_which_no_run_could_be_named_is_refused(database, run_id, says):
    with pytest.raises(DagError, match=says):
        await database.write(trigger, run_id=run_id)
    assert await database.read(list_runs) == []


async def test_other_schedulers_hear_of_a_run_that_a_task_or_a_program_triggers(database, monkeypatch):
    """They may have room for it where this one has none."""
    hints: list[Hint] = []
    monkeypatch.setattr(triggering, "notify", lambda _, *given: hints.extend(given))

    async def ask(*_: object) -> AnswersForRun:
        return AnswersForRun()

    key = await ManualRuns(database, VirtualClock(NOW), ask).create("d", Trigger(), actor="program")
    assert hints == [Hint("run", *key)]
