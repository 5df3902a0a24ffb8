"""Running Alembic from code, on a connection that the caller holds: no alembic.ini, no second connection."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

SCRIPTS = Path(__file__).parent


def alembic_config(conn: Connection) -> Config:
    """Return a configuration whose scripts are those beside this file."""
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = conn
    return config


def migrate(conn: Connection, revision: str) -> None:
    """Bring the tables to `revision`, in the transaction of `conn`."""
    command.upgrade(alembic_config(conn), revision)
