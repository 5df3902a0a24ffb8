"""Databases are made, migrated, and refused."""

import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from asynsched.errors import DatabaseMissing, SettingsError, StoreUnavailable, StoreVersionError
from asynsched.home import ATTEMPTS, LOGS, SOURCES, TMP, prepare_home
from asynsched.store.engines import opening
from asynsched.store.engines.opening import connect_direct, open_direct, schema_state, upgrade
from asynsched.store.engines.urls import parse_url
from asynsched.store.runs.dag_runs import insert_run
from asynsched.store.runs.hitl import Question, put_question
from asynsched.store.runs.pools import list_pools
from asynsched.store.runs.task_instances import load_task_instances
from asynsched.store.runs.transitions import Batch, apply
from asynsched.store.schema import hitl_detail, metadata
from tests.store.test_runs import new_run, task
from tests.support.runs import NOON
from tests.support.waiting import until

HEAD = opening.HEAD
NEXT = f"{int(HEAD) + 1:04}"
NEXT_REVISION = f"""
import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{HEAD}"


def upgrade() -> None:
    with op.batch_alter_table("pool") as pool:
        pool.add_column(sa.Column("colour", sa.Text(), nullable=True))
"""


def description(conn: sa.Connection) -> dict[str, object]:
    """Return all that a database says of our tables."""
    inspector = sa.inspect(conn)
    return {
        table: [
            [
                (c["name"], str(c["type"]), c["nullable"], bool(c.get("autoincrement")))
                for c in inspector.get_columns(table)
            ],
            inspector.get_pk_constraint(table),
            sorted((i["name"], i["column_names"], i["unique"], predicate(i)) for i in inspector.get_indexes(table)),
            sorted(map(str, inspector.get_foreign_keys(table))),
            sorted(map(str, inspector.get_unique_constraints(table))),
        ]
        for table in metadata.tables
    }


def predicate(index: dict[str, object]) -> str:
    """Return the condition of a partial index."""
    options = index.get("dialect_options", {})
    return str(options.get("sqlite_where", options.get("postgresql_where", "")))


TRIGGERS = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name",
    "postgresql": "SELECT pg_get_triggerdef(t.oid), pg_get_functiondef(t.tgfoid) FROM pg_trigger AS t"
    " WHERE NOT t.tgisinternal ORDER BY 1",
}


def triggers(conn: sa.Connection) -> list[tuple[str, ...]]:
    return [tuple(row) for row in conn.execute(sa.text(TRIGGERS[conn.dialect.name]))]


def differences(conn: sa.Connection) -> list[object]:
    return compare_metadata(MigrationContext.configure(conn), metadata)


def test_a_new_database_is_what_the_migrations_make(new_url):
    with open_direct(new_url()) as created:
        at_once = created.read(description), created.read(triggers)
        assert len(at_once[1]) == 4
        assert created.read(differences) == []
        assert created.read(opening.current_revision) == opening.HEAD
        if created.read(lambda conn: conn.dialect.name) == "sqlite":
            Path(parse_url(new_url()).path).unlink()
    with connect_direct(parse_url(new_url())) as migrated:
        migrated.write(opening.migrate, opening.HEAD)
        assert (migrated.read(description), migrated.read(triggers)) == at_once
        assert migrated.read(differences) == []


def test_the_known_revisions_are_those_of_the_migration_scripts():
    scripts = ScriptDirectory(str(opening.SCRIPTS)).walk_revisions()
    assert tuple(reversed([script.revision for script in scripts])) == opening.REVISIONS


@pytest.fixture
def later(tmp_path, monkeypatch) -> Callable[[], None]:
    """A function that makes this a later version, with one more revision."""

    def become() -> None:
        scripts = tmp_path / "migrations"
        shutil.copytree(opening.SCRIPTS, scripts)
        (scripts / "versions" / f"revision_{NEXT}.py").write_text(NEXT_REVISION)
        monkeypatch.setattr(opening, "SCRIPTS", scripts)
        monkeypatch.setattr(opening, "REVISIONS", (*opening.REVISIONS, NEXT))
        monkeypatch.setattr(opening, "HEAD", NEXT)

    return become


def test_opening_migrates_a_database_that_is_behind_and_keeps_its_rows(new_url, later):
    url = new_url()
    open_direct(url, default_pool_slots=7).close()
    later()
    assert schema_state(url) == (HEAD, NEXT)
    assert schema_state(url).advice == "`asynsched db upgrade` migrates it."
    with open_direct(url) as database:
        assert database.read(opening.current_revision) == NEXT
        row = database.read(lambda conn: conn.execute(sa.text("SELECT slots, colour FROM pool")).one())
        assert tuple(row) == (7, None)


def test_deferred_tasks_with_a_question_await_an_answer_from_revision_5_on(new_url):
    states = {
        "asks": "awaiting_input", "is answered": "awaiting_input", "asked before": "deferred", "waits": "deferred"
    }  # fmt: skip
    url = new_url()
    with open_direct(url) as database:
        run = database.write(insert_run, new_run())
        tasks = [task(run, task_id, "deferred", token=f"token of {task_id}") for task_id in states]
        database.write(apply, Batch(0, new_tasks=tasks))
        asked = Question(
            subject="Go on?", body=None, options=["yes"], defaults=None, multiple=False, params={}, assigned_users=[]
        )
        database.write(put_question, (run, "asks", -1), "token of asks", asked, NOON)
        database.write(put_question, (run, "asked before", -1), "an earlier token", asked, NOON)
        database.write(put_question, (run, "is answered", -1), "token of is answered", asked, NOON)
        # Its request waits for a scheduler.
        is_it = hitl_detail.c.task_id == "is answered"
        database.write(lambda conn: conn.execute(sa.update(hitl_detail).where(is_it).values(responded_at=NOON)))
        for column in ("pool", "pool_slots", "queue", "executor", "priority_weight"):  # of revision 6
            drop = sa.text(f"ALTER TABLE task_instance_history DROP COLUMN {column}")
            database.write(lambda conn, drop=drop: conn.execute(drop))
        database.write(lambda conn: conn.execute(sa.text("UPDATE alembic_version SET version_num = '0004'")))
    with open_direct(url) as database:
        assert {row.task_id: row.state for row in database.read(load_task_instances, run)} == states


def test_a_database_that_a_newer_version_has_added_to_is_used_as_it_is(new_url):
    url = new_url()
    with open_direct(url) as database:
        database.write(lambda conn: conn.execute(sa.text(f"UPDATE alembic_version SET version_num = '{NEXT}'")))
    with open_direct(url) as database:
        assert database.read(opening.current_revision) == NEXT
        assert len(database.read(list_pools)) == 1


def test_a_database_of_a_newer_version_is_refused_and_left_alone(new_url):
    url = new_url()
    with open_direct(url) as database:
        database.write(lambda conn: conn.execute(sa.text("UPDATE alembic_version SET version_num = '0999'")))
        database.write(lambda conn: conn.execute(sa.text("UPDATE schema_compatibility SET oldest_revision = '0998'")))
    with pytest.raises(StoreVersionError, match=rf"'0999'.*up to {HEAD}.*newer one"):
        open_direct(url)
    assert schema_state(url).current == "0999"


@pytest.mark.parametrize("table", ["connection (id integer)", "alembic_version AS SELECT '0001' AS version_num"])
def test_a_database_that_holds_tables_of_something_else_is_refused(new_url, table):
    url = new_url()
    with connect_direct(parse_url(url)) as database:
        database.write(lambda conn: conn.execute(sa.text(f"CREATE TABLE {table}")))
    with pytest.raises(StoreVersionError, match=f"'{table.split()[0]}' that is not asynsched's"):
        open_direct(url)


def test_no_table_is_added_to_a_file_of_another_program(tmp_path):
    url = f"sqlite:///{tmp_path / 'other.db'}"
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE songs (id integer)")
    before = (tmp_path / "other.db").read_bytes()
    with connect_direct(parse_url(url)) as database:
        with pytest.raises(StoreVersionError, match="'songs' that is not asynsched's"):
            open_direct(url)
        with pytest.raises(StoreVersionError, match="'songs' that is not asynsched's"):
            schema_state(url)
        assert database.read(lambda conn: sa.inspect(conn).get_table_names()) == ["songs"]
    assert (tmp_path / "other.db").read_bytes() == before


def test_schema_state_of_a_database_that_is_not_there_makes_none(tmp_path):
    url = f"sqlite:///{tmp_path / 'none.db'}"
    assert schema_state(url) == (None, opening.HEAD)
    assert not (tmp_path / "none.db").exists()
    assert upgrade(url).current is None
    assert schema_state(url) == (opening.HEAD, opening.HEAD)


def test_a_new_file_and_its_home_are_for_their_owner_alone(tmp_path):
    path = tmp_path / "some" / "home" / "asynsched.db"
    prepare_home(path.parent)
    with open_direct(f"sqlite:///{path}", default_pool_slots=3) as database:
        assert [(pool.name, pool.slots) for pool in database.read(list_pools)] == [("default_pool", 3)]
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    folders = {modes.pop(name) for name in (ATTEMPTS, LOGS, SOURCES, TMP)}
    assert (set(modes.values()), folders) == ({0o600}, {0o700})
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_new_home_is_kept_out_of_a_repository_and_an_old_folder_stays_as_it_is(tmp_path):
    for _ in range(2):
        prepare_home(tmp_path / "new")
        prepare_home(tmp_path)
        assert (tmp_path / "new" / ".gitignore").read_text() == "*\n"
        assert not (tmp_path / ".gitignore").exists()
    (tmp_path / "new" / ".gitignore").write_text("*.log\n")
    prepare_home(tmp_path / "new")
    assert (tmp_path / "new" / ".gitignore").read_text() == "*.log\n"


def test_no_file_is_made_in_a_missing_folder_or_by_a_reader(tmp_path):
    with pytest.raises(SettingsError, match=rf"{tmp_path}/foldr does not exist. Make it, or name another"):
        open_direct(f"sqlite:///{tmp_path}/foldr/asynsched.db")
    with pytest.raises(DatabaseMissing, match=rf"There is no database sqlite:///{tmp_path}/asynsched.db"):
        open_direct(f"sqlite:///{tmp_path}/asynsched.db", make=False)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_leaves_a_postgresql_database_without_tables(postgres_server):
    url = postgres_server.new_database(migrated=False)
    with pytest.raises(DatabaseMissing):
        open_direct(url, make=False)
    assert schema_state(url).current is None


def test_a_file_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match=r"file/asynsched\.db cannot be made"):
        open_direct(f"sqlite:///{tmp_path}/file/asynsched.db")


def test_many_processes_may_open_a_new_file_at_once(tmp_path):
    program = (
        f"from asynsched.store.engines.opening import open_direct; open_direct('sqlite:///{tmp_path}/a.db').close()"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) for _ in range(5)]
    errors = [process.communicate()[1].decode() for process in processes]
    assert errors == [""] * 5


def test_many_clients_may_open_an_empty_postgresql_database_at_once(postgres_server):
    url = postgres_server.new_database(migrated=False)
    with ThreadPoolExecutor(5) as threads:
        for database in threads.map(open_direct, [url] * 5):
            assert len(database.read(list_pools)) == 1
            database.close()


def test_one_of_many_clients_migrates_postgresql_and_the_others_wait(postgres_server, later, monkeypatch):
    url = postgres_server.new_database(migrated=True)
    later()
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    migrated = []

    def migrate_once_all_others_wait(conn: sa.Connection, revision: str) -> None:
        until(lambda: conn.scalar(waiting) == n_clients - 1, "all others wait")
        migrated.append(revision)
        migrate(conn, revision)

    migrate, n_clients = opening.migrate, 5
    monkeypatch.setattr(opening, "migrate", migrate_once_all_others_wait)
    with ThreadPoolExecutor(n_clients) as threads:
        for database in threads.map(open_direct, [url] * n_clients):
            assert database.read(opening.current_revision) == NEXT
            assert database.write(lambda conn: conn.execute(sa.text("UPDATE pool SET colour = 'red'")).rowcount) == 1
            database.close()
    assert migrated == [NEXT]
