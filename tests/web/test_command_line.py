"""The command line's JSON of a list has what the client returns for the same database, field by field."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import sqlalchemy as sa
from anyio.to_thread import run_sync
from click.testing import CliRunner

from asynsched.cli.app import build_app
from asynsched.client.client import LocalClient
from asynsched.client.operation import OPERATIONS
from asynsched.clock import Clock
from asynsched.queries.context import QueryContext
from asynsched.queries.paging import Page
from asynsched.queries.users import Issuer, issue_token, sign_in
from asynsched.settings import Settings
from asynsched.store.rows import as_new
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.schedulers import register_scheduler
from asynsched.store.schema import DeadlineRow, deadline
from tests.web.filling import RUN_ID

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
LISTS = {
    "dags list": ("list_dags", {}),
    "dags tags": ("list_tags", {}),
    "dags versions report": ("list_versions", {"dag_id": "report"}),
    "dags errors --warnings": ("list_import_errors", {}),
    "dags next daily -n 2 --now 2026-02-01T12:00:00Z": ("upcoming", {"dag_id": "daily", "n": 2, "now": NOON}),
    "runs list": ("list_runs", {}),
    f"tasks list report {RUN_ID}": ("list_tasks", {"dag_id": "report", "run_id": RUN_ID}),
    "tasks awaiting": ("list_questions", {}),
    "backfill list": ("list_backfills", {}),
    "deadlines list": ("list_deadlines", {}),
    "assets list": ("list_assets", {}),
    "assets events": ("list_asset_events", {}),
    "assets queued": ("list_queued_events", {}),
    "pools list": ("list_pools", {}),
    "variables list": ("list_variables", {}),
    "connections list": ("list_connections", {}),
    "users list": ("list_users", {}),
    "users sessions --user ada": ("list_user_sessions", {"name": "ada"}),
    "tokens list --user ada": ("list_user_tokens", {"name": "ada"}),
    "schedulers list": ("list_schedulers", {}),
    "plugins list": ("list_plugins", {}),
    "audit list": ("list_audit", {}),
}
"""The commands that list something, and the methods that return the same."""
PARTS = {"list_callbacks": "runs show", "list_backfill_dates": "backfill show"}
"""Methods whose rows are shown as a part of something."""
OTHERS = {
    "list_providers": "`providers list` adds what their hooks offer",
    "list_tries": "`tasks list --all-tries` lists those of a whole run",
    "list_late": "it is two lists",
    "list_warnings": "they are of DAGs, not of files",
    "list_sessions": "a command has no session of its own",
    "list_tokens": "a command's own are those of `tokens list --mine`",
}


@pytest.fixture
def asked(site):
    """Return a function that gives the JSON of a command, and one of a method of the client."""
    client = LocalClient(lambda: QueryContext(site.database, site.settings.home_path, site.settings, Clock()), "ada")
    place = ["--home", site.settings.home, *(["--database", site.settings.database] if site.settings.database else [])]

    plugins = {"ASYNSCHED_PLUGINS_FOLDER": str(site.settings.plugins_path)}

    async def command(words: str) -> object:
        runner, arguments = CliRunner(env=plugins), [*words.split(), *place, "-o", "json"]
        done = await run_sync(lambda: runner.invoke(build_app(), arguments))
        assert done.exit_code == 0, done.output
        return msgspec.json.decode(done.stdout)

    async def method(called: str, /, **arguments: object) -> object:
        found = await getattr(client, called)(**arguments)
        return msgspec.json.decode(msgspec.json.encode(found.items if isinstance(found, Page) else found))

    return client, command, method


PLUGIN = """
from asynsched.airflow.plugins_manager import AirflowPlugin

class Own(AirflowPlugin):
    name = "own"
"""


def add_others(conn: sa.Connection, now: datetime, settings: Settings) -> None:
    """Store what no method of the client makes: a token and a session of ada's, a deadline, and a scheduler."""
    issue_token(
        conn, Issuer("ada", None, "administer"), "a token", scope="view", dag_ids=None, now=now, lasts=timedelta(days=1)
    )
    sign_in(conn, "secret", "ada", user_id=None, now=now, lasts=timedelta(days=1))
    run = get_run(conn, "report", RUN_ID)
    missed = DeadlineRow(dag_run_id=run.id, number=0, name="soon", due_at=now, state="missed")
    conn.execute(deadline.insert(), as_new(missed))
    register_scheduler(
        conn, scheduler_id="me", hostname="here", pid=1, home=str(settings.home_path), version="1", now=now,
        lease_until=now + timedelta(hours=1), takeover_seconds=60.0,
    )  # fmt: skip


def ordered(rows):
    return sorted(rows, key=msgspec.json.encode)


async def test_each_list_of_the_command_line_has_the_fields_of_the_client(asked, site):
    client, command, method = asked
    await client.create_user("ada", ("viewer",))
    filled = await client.backfill("daily", NOON - timedelta(days=3), NOON)
    await site.database.write(add_others, datetime.now(UTC), site.settings)
    site.settings.plugins_path.mkdir(parents=True)
    (site.settings.plugins_path / "own.py").write_text(PLUGIN)
    for words, (name, arguments) in LISTS.items():
        rows, its_rows = ordered(await command(words)), ordered(await method(name, **arguments))
        assert len(rows) == len(its_rows) > 0, words
        for row, its_row in zip(rows, its_rows, strict=True):
            # What a table has beside the fields, such as the states of watchers, is there as well.
            assert row == its_row or row.items() >= its_row.items(), words
    run = await command(f"runs show fails {RUN_ID}")
    assert run["callbacks"] == await method("list_callbacks", run=("fails", RUN_ID))
    assert run.items() >= (await method("get_run", run=("fails", RUN_ID))).items()
    shown = await command(f"backfill show {filled.id}")
    assert shown["dates"] == await method("list_backfill_dates", dag_id="daily", backfill_id=filled.id)
    assert await command("dags show report") == await method("get_dag_details", dag_id="report")


def test_each_list_of_the_client_is_compared():
    lists = {name for name in OPERATIONS if name.startswith("list_")}
    assert lists == ({name for name, _ in LISTS.values()} | PARTS.keys() | OTHERS.keys()) - {"upcoming"}
