"""`asynsched db upgrade|check`: the schema of the database."""

from asynsched.cli.command import command, fail
from asynsched.cli.rendering import Done
from asynsched.cli.session import Session
from asynsched.home import prepare_home
from asynsched.store.engines.upgrade import schema_state, upgrade
from asynsched.store.engines.urls import without_secrets


@command("upgrade")
def upgrade_database(session: Session) -> Done:
    """Make the database, or migrate it to the schema of this version of asynsched."""
    prepare_home(session.home)
    before = upgrade(session.settings.database_url, default_pool_slots=session.settings.default_pool_slots)
    fields = {"database": without_secrets(session.settings.database_url), "from": before.current, "to": before.head}
    if before.current == before.head:
        return Done(f"The database {fields['database']} is at the newest schema, {before.head}.", fields)
    if before.is_newer:
        sentence = "is left as it is, for this version may go on beside the newer one that has migrated it"
        return Done(f"The database {fields['database']} {sentence}.", fields | {"to": before.current})
    return Done(f"The database {fields['database']} is now at schema {before.head}.", fields)


@command("check")
def check_database(session: Session) -> Done:
    """Check that the database can be reached and has the schema of this version. Exit code 1 if not."""
    state = schema_state(session.settings.database_url)
    shown = without_secrets(session.settings.database_url)
    if state.current is None:
        fail(f"The database {shown} has not been made yet. {state.advice}")
    if state.advice:
        fail(f"The database {shown} has schema {state.current}, that of this asynsched is {state.head}. {state.advice}")
    fields = {"database": shown, "current": state.current, "head": state.head}
    return Done(f"The database {shown} can be reached and has the newest schema, {state.head}.", fields)
