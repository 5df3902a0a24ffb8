"""What `asynsched db` does: say which schema a database has, and migrate it on request."""

from asynsched.store.engines.direct_database import connect_direct, file_exists, open_direct
from asynsched.store.engines.preparation import DEFAULT_POOL_SLOTS, HEAD, SchemaState, current_revision, refuse_foreign
from asynsched.store.engines.urls import parse_url


def schema_state(url: str) -> SchemaState:
    """Return the revision that a database is at, and the newest one. Makes nothing.

    Raises:
        SettingsError: The URL names no database.
        StoreUnavailable: The database cannot be reached.
        StoreVersionError: It holds tables of something else.
    """
    parsed = parse_url(url)
    if parsed.backend == "sqlite" and (parsed.path is None or not file_exists(parsed)):
        return SchemaState(None, HEAD)
    with connect_direct(parsed) as database:
        current = database.read(current_revision)
        if current is None:
            database.read(refuse_foreign, parsed.shown)
        return SchemaState(current, HEAD)


def upgrade(url: str, *, default_pool_slots: int = DEFAULT_POOL_SLOTS) -> SchemaState:
    """Make or migrate a database. Returns what it was at before, and the newest revision, which it now is at.

    Raises:
        SettingsError: The URL names no database.
        StoreUnavailable: The database cannot be reached.
        StoreVersionError: It has a schema that this version of asynsched does not know.
    """
    before = schema_state(url)
    open_direct(url, default_pool_slots=default_pool_slots).close()
    return before
