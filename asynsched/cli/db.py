"""`asynsched db upgrade|check`: the schema of the database."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import anyio
import click
import structlog
from sqlalchemy import Connection

from asynsched.cli.command import INSTANT_FORMS, command, confirm, fail, read_instant, yes_option
from asynsched.cli.output import Done, Listing, are
from asynsched.cli.session import Session, actor
from asynsched.home import prepare_home
from asynsched.housekeeping.retention import SUPERSEDED_FOR, RetentionPolicy, Sweep, policy_of
from asynsched.store.assets.events import count_old_events
from asynsched.store.audit import count_old_audit, record_audit
from asynsched.store.dags.versions import count_unused_versions
from asynsched.store.engines.opening import open_database, schema_state, upgrade
from asynsched.store.engines.urls import without_secrets
from asynsched.store.runs.retention import Bound, count_old_runs, count_old_xcoms
from asynsched.store.secrets.encryption import LostSecret, change_key, check_key, forget_lost, lost_secrets


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


KINDS = ("runs", "xcoms", "logs", "asset-events", "audit", "versions")
USUAL_KINDS = ("runs", "asset-events", "versions")
WORDS = {"asset_events": "asset events", "xcoms": "XComs", "audit": "notes of the audit"}


@command("clean")
@click.option("--before", metavar="T", help=f"What is older goes; a run is as old as its end. {INSTANT_FORMS}")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Of each DAG's runs, those but the newest N go.")
@click.option("--only", multiple=True, type=click.Choice(KINDS), help="Delete only this; may be given several times.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, delete nothing.")
@yes_option
def clean_database(
    session: Session, before: str | None, keep: int | None, only: tuple[str, ...], dry_run: bool, yes: bool
) -> Done:
    """Delete what is old: ended runs with their tasks, XComs and logs; asset events; versions that no run needs.

    Without --before and --keep, what the settings of retention keep no longer. XComs and logs of runs that stay, and
    the audit, go where --only names them. What stays in any case: runs that are active, or before an active one, or a
    DAG's newest scheduled one; asset events that a DAG waits for; the newest version of each DAG.
    """
    policy = _policy(session, before, keep, only or USUAL_KINDS)
    found = {kind: session.read(count) for kind, count in _counts(policy).items()}
    told = ", ".join(f"{n} {WORDS.get(kind, kind)}" for kind, n in found.items()) or "what is old of the logs"
    if dry_run:
        return Done(f"{told} would be deleted.", {"found": found, "deleted": {}})
    if not yes:
        confirm(f"Delete {told}?")
    # What it deletes it answers, and logs nothing.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    deleted = anyio.run(_sweep, session, policy)
    gone = ", ".join(f"{n} {WORDS.get(kind, kind)}" for kind, n in deleted.items()) or "nothing"
    return Done(f"Deleted: {gone}.", {"found": found, "deleted": deleted})


def _policy(session: Session, before: str | None, keep: int | None, kinds: tuple[str, ...]) -> RetentionPolicy:
    now = session.now()
    if before is None and keep is None:
        policy = policy_of(session.settings.retention, now)
        if policy == RetentionPolicy():
            fail("The settings of retention keep everything: say what is to go, with --before T or --keep N.")
        return policy
    instant = None if before is None else read_instant(before, session.settings.default_timezone, "--before")
    bound = Bound(instant, keep)

    def if_wanted(kind: str) -> datetime | None:
        return instant if kind in kinds else None

    versions = if_wanted("versions")
    return RetentionPolicy(
        runs=bound if "runs" in kinds else Bound(),
        xcoms=bound if "xcoms" in kinds else Bound(),
        logs=bound if "logs" in kinds else Bound(),
        asset_events=if_wanted("asset-events"),
        audit=if_wanted("audit"),
        versions=versions and min(versions, now - SUPERSEDED_FOR),
    )


def _counts(policy: RetentionPolicy) -> dict[str, Callable[[Connection], int]]:
    """Return what counts each kind of what would go."""
    counts: dict[str, Callable[[Connection], int]] = {}
    if not policy.runs.is_open:
        counts["runs"] = lambda conn: count_old_runs(conn, policy.runs)
    if not policy.xcoms.is_open:
        counts["xcoms"] = lambda conn: count_old_xcoms(conn, policy.xcoms)
    for kind, before, count in (
        ("asset_events", policy.asset_events, count_old_events),
        ("audit", policy.audit, count_old_audit),
        ("versions", policy.versions, count_unused_versions),
    ):
        if before is not None:
            counts[kind] = _counting(count, before)
    return counts


def _counting(count: Callable[..., int], before: datetime) -> Callable[[Connection], int]:
    return lambda conn: count(conn, before=before)


async def _sweep(session: Session, policy: RetentionPolicy) -> dict[str, int]:
    database = await open_database(session.settings.database_url, synchronous=session.settings.sqlite_synchronous)
    try:
        rows = session.settings.retention.batch_rows
        sweep = Sweep(policy, database=database, home=session.home, batch_rows=rows)
        while await sweep.step(session.now()):
            pass
        deleted: dict[str, Any] = {kind: n for kind, n in sorted(sweep.deleted.items()) if n}
        if deleted:
            await database.write(record_audit, at=session.now(), actor=actor(), action="db.clean", detail=deleted)
    finally:
        await database.close()
    return deleted


@command("rotate-key")
@click.option("--lost", is_flag=True, help="The key is lost: delete what nobody can read, and go on with another one.")
@click.option("--dry-run", is_flag=True, help="With --lost: only say what cannot be read.")
@yes_option
def rotate_key(session: Session, lost: bool, dry_run: bool, yes: bool) -> Done | Listing:
    """Encrypt all connections, variables and waiting triggers with a new key. Schedulers may serve meanwhile.

    The key file of the home gets a new key, before the old ones. Where fernet_key or fernet_key_file is set, its first
    key is used: give every scheduler both keys, the new one first, before this.

    With --lost: connections and variables that no key decrypts are deleted, to be set again. A deferred task of which
    that is true no longer knows what it waits for: clear it.
    """
    if lost:
        return _give_up(session, dry_run=dry_run, yes=yes)
    if dry_run:
        raise click.UsageError("--dry-run goes with --lost.")
    before = session.read(check_key)
    session.make()  # where keys are kept
    if not session.keys.add_new() and before == session.keys.first():
        fail(f"The secrets are encrypted with the first key of {session.keys.source} already. Put a new one before it.")
    n_secrets = session.change("key.rotate", change_key, detail={"from": before, "to": session.keys.first()})
    fields = {"secrets": n_secrets, "from": before, "to": session.keys.first(), "keys": session.keys.source}
    return Done(
        f"{are(n_secrets, 'secret')} encrypted with the key {fields['to']} of {fields['keys']}."
        " Backups made until now need the keys before it.",
        fields,
    )


def _give_up(session: Session, *, dry_run: bool, yes: bool) -> Done | Listing:
    found = session.read(lost_secrets)
    if dry_run:
        return Listing(LostSecret._fields, [secret._asdict() for secret in found], "Every secret can be read.")
    if not found:
        fail("Every secret can be read: no key is lost.")
    names = ", ".join(f"{secret.kind} {secret.name}" for secret in found)
    if not yes:
        confirm(f"Delete what nobody can read: {names}?")
    session.make()  # where keys are kept
    n_left = session.change("key.lost", forget_lost, detail={"lost": [[*secret] for secret in found]})
    fields: dict[str, Any] = {"lost": [secret._asdict() for secret in found], "secrets": n_left}
    return Done(
        f"Deleted: {names}. {are(n_left, 'other secret')} encrypted with the key {session.keys.first()} of"
        f" {session.keys.source}.",
        fields | {"to": session.keys.first(), "keys": session.keys.source},
    )
