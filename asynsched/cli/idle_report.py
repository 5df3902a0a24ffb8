"""What `asynsched up --until-idle` says last: how many files could not be used, and how many runs have failed."""

from datetime import datetime

import structlog
from sqlalchemy import Connection

from asynsched.cli.rendering import note
from asynsched.cli.unread_dags import unparsed_files
from asynsched.errors import AsynschedError
from asynsched.settings import Settings
from asynsched.store.dag_runs import count_failed_since
from asynsched.store.engines.direct_database import open_direct

log = structlog.get_logger(__name__)


def say_what_failed(settings: Settings, since: datetime) -> None:
    """Say in one line what a scheduler that has stopped leaves for people to look at; nothing where all is well."""
    try:
        database = open_direct(settings.database_url)
        try:
            trouble = database.read(what_failed, since)
        finally:
            database.close()
    except AsynschedError as exc:
        trouble = f"What has failed cannot be told: {exc}"
    if not trouble:
        return
    if settings.log.format == "json":
        log.warning("scheduler.idle", message=trouble)
    else:
        note(trouble)


def what_failed(conn: Connection, since: datetime) -> str:
    """Return in sentences which files have errors, and how many runs have failed since an instant; empty for none."""
    n_failed = count_failed_since(conn, since)
    runs = "1 run has" if n_failed == 1 else f"{n_failed} runs have"
    told = [unparsed_files(conn), f"{runs} failed: see `asynsched runs list --state failed`." if n_failed else ""]
    return " ".join(filter(None, told))
