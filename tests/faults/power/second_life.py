"""The life after the power cut: `python -m tests.faults.power.second_life ROOT`.

A scheduler works on the state after the cut, in another boot of the machine, until it is idle. Prints the final state.
"""

import json
import sys
from pathlib import Path
from typing import Any

import anyio

from asynsched import Scheduler
from asynsched.clock import Clock
from asynsched.errors import NotFound, SecretsUnreadable
from asynsched.fernet_keys import keys_of
from asynsched.home import served_dags_folder
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database
from asynsched.store.runs.dag_runs import list_runs
from asynsched.store.secrets import get_connection, get_variable
from tests.faults.power.first_life import options


class AfterReboot(Clock):
    def boot(self) -> str:
        return "after the power cut"


async def main(root: Path) -> None:
    scheduler = Scheduler(**options(root), clock=AfterReboot())  # type: ignore[arg-type] # they fit
    served = served_dags_folder(root / "home")
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        await scheduler.wait_idle()
        scheduler.request_stop()
    settings = scheduler.settings
    database = await open_database(settings.database_url, keys=keys_of(settings))
    found: dict[str, Any] = {"served": None if served is None else str(served)}
    found["runs"] = {run.run_id: run.state for run in await database.read(list_runs)}
    found["connection"] = await _one(database, get_connection, "safe", "password")
    found["variable"] = await _one(database, get_variable, "wanted", "value")
    journal = root / "home" / "attempts" / "journal"
    found["journal"] = journal.read_text(errors="replace").strip() if journal.exists() else ""
    await database.close()
    print(json.dumps(found))


async def _one(database: Database, query: Any, key: str, name: str) -> Any:
    try:
        return getattr(await database.read(query, key), name)
    except (NotFound, SecretsUnreadable) as exc:
        return f"{type(exc).__name__}: {exc}"


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
