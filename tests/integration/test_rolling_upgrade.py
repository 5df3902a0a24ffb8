"""A scheduler beside a newer one that has migrated the database: it goes on with its own version's features.

The newer schema is made up here as every migration may make it: by additions only.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import sqlalchemy as sa

from asynsched import DAG, BashOperator
from asynsched.bell import Hint, decode_hints
from asynsched.channels import Channels
from asynsched.housekeeping.bell_listener import hand_out
from asynsched.protocol.messages import Launch
from asynsched.simulation.script import Outcome
from asynsched.store.schema import metadata, run_request
from tests.support.simulated import Simulated

START = datetime(2026, 3, 1, tzinfo=UTC)


def add_what_is_newer(conn: sa.Connection) -> None:
    for table in metadata.tables:
        conn.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN from_tomorrow TEXT"))
        conn.execute(sa.text(f"CREATE INDEX ix_{table}_from_tomorrow ON {table} (from_tomorrow)"))
    conn.execute(sa.text("CREATE TABLE tomorrow (id INTEGER PRIMARY KEY)"))
    conn.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))


def test_a_scheduler_works_with_a_schema_that_a_newer_one_has_added_to(tmp_path: Path):
    with DAG("hourly", schedule="@hourly") as dag:
        BashOperator(task_id="first", bash_command="true", retries=1) >> BashOperator(
            task_id="last", bash_command="true"
        )

    def script(launch: Launch) -> Outcome:
        return Outcome("failed" if launch.try_number == 1 else "success", timedelta(minutes=1), "as scripted")

    simulated = Simulated(tmp_path, [dag], script, START - timedelta(seconds=1))
    simulated.inline.connection.write(add_what_is_newer)

    async def ask_for_what_is_newer(_: Channels) -> None:
        def ask(conn: sa.Connection) -> None:
            values = {"dag_run_id": 1, "request": msgspec.json.encode({"type": "from_tomorrow"}), "actor": "me"}
            conn.execute(run_request.insert(), values | {"created_at": START})

        await simulated.clock.sleep(timedelta(minutes=1))
        await simulated.database.write(ask)

    simulated.act = ask_for_what_is_newer
    simulated.run_for(timedelta(hours=3))
    found = simulated.inline.connection.read(
        lambda conn: conn.execute(sa.text("SELECT state FROM dag_run ORDER BY id")).scalars().all()
    )
    assert len(found) >= 2
    assert set(found[:2]) <= {"success", "failed"}
    left = simulated.inline.connection.read(lambda conn: conn.execute(sa.select(run_request)).all())
    assert len(left) == 1


async def test_hints_of_kinds_that_only_a_newer_version_knows_are_passed_over():
    channels = Channels()
    text = '[{"kind": "from_tomorrow", "what": 1}, {"kind": "pool", "more": {}}]'
    hints = decode_hints(text)
    assert hints[1] == Hint("pool")
    await hand_out(hints, channels)
    assert channels.limits.qsize() == 1
