"""The imports of a command on SQLite: neither Alembic, nor the drivers that it does not use."""

import subprocess
import sys

UNUSED = {"alembic", "aiosqlite", "asyncpg", "anyio", "sqlalchemy.orm", "sqlalchemy.ext.asyncio", "jsonschema"}
PROGRAM = """
import sys
from asynsched.store.engines import opening
for name in ("dags.dags", "dags.files", "runs.dag_runs", "runs.pools", "runs.task_instances",
             "runs.xcoms", "audit", "schedulers", "secrets"):
    __import__(f"asynsched.store.{name}")
from asynsched.store.runs.pools import list_pools, set_pool
with opening.open_direct(sys.argv[1]) as database:
    database.write(set_pool, "new", 3)
    assert len(database.read(list_pools)) == 2
print(*sys.modules)
"""


def test_a_command_on_sqlite_loads_no_driver_or_tool_that_it_does_not_need(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path}/a.db"], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) & UNUSED == set()
