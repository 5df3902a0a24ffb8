"""`asynsched db …`: the schema of the database, the deletion of old rows, and the key of its secrets."""

from typing import TYPE_CHECKING, Any

import click

from asynsched.cli.command import INSTANT_FORMS, command, confirm, fail, read_instant, yes_option
from asynsched.cli.output import Done, Listing, are
from asynsched.cli.session import Session, actor
from asynsched.store.engines.urls import without_secrets

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from asynsched.housekeeping.retention import RetentionPolicy


@command("upgrade")
def db_upgrade(session: Session) -> Done:
    """Create the database, or migrate it to the schema of this version of asynsched."""
    from asynsched.store.engines.opening import upgrade

    with session.making_home():
        before = upgrade(session.settings.database_url, default_pool_slots=session.settings.default_pool_slots)
    after: str | None = before.head
    done = f"is now at schema {before.head}"
    if before.current == before.head:
        done = f"is at the newest schema, {before.head}"
    elif before.is_newer:
        after, done = before.current, "is left as it is: this version works beside the newer one that has migrated it"
    shown = without_secrets(session.settings.database_url)
    return Done(f"The database {shown} {done}.", {"database": shown, "from": before.current, "to": after})


@command("check")
def db_check(session: Session) -> Done:
    """Check that the database can be reached and has the schema of this version. Exit code 1 if not."""
    from asynsched.store.engines.opening import schema_state

    state = schema_state(session.settings.database_url)
    shown = without_secrets(session.settings.database_url)
    if state.current is None:
        fail(f"The database {shown} does not exist yet. {state.advice}")
    if state.advice:
        fail(f"The database {shown} has schema {state.current}, that of this asynsched is {state.head}. {state.advice}")
    fields = {"database": shown, "current": state.current, "head": state.head}
    return Done(f"The database {shown} can be reached and has the newest schema, {state.head}.", fields)


KINDS = ("runs", "xcoms", "logs", "asset-events", "audit", "versions")
USUAL_KINDS = ("runs", "asset-events", "versions")
WORDS = {
    "asset_events": "asset events",
    "task_states": "values of task states",
    "xcoms": "XComs",
    "audit": "notes of the audit",
    "changes": "numbered changes",
}


@command("clean")
@click.option("--before", metavar="T", help=f"Delete what is older than T; a run is as old as its end. {INSTANT_FORMS}")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Delete all but the newest N runs of each DAG.")
@click.option("--only", multiple=True, type=click.Choice(KINDS), help="Delete only this; may be given several times.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@yes_option
def db_clean(
    session: Session, before: str | None, keep: int | None, only: tuple[str, ...], dry_run: bool, yes: bool
) -> Done:
    """Delete old rows: ended runs with their tasks, XComs and logs; asset events; versions that no run needs.

    Without --before and --keep, the settings of retention decide. XComs and logs of runs that stay, and the audit, are
    deleted only if --only names them. Never deleted: active runs, the run before an active one, a DAG's newest
    scheduled run, asset events that a DAG waits for, and the newest version of each DAG.
    """
    import anyio
    import structlog

    policy = _policy(session, before, keep, only)
    found = session.read(_counts, policy, session.now())
    told = _listed(found) or "the old logs"
    if dry_run:
        return Done(f"{told} would be deleted.", {"found": found, "deleted": {}})
    if not yes:
        confirm(f"Delete {told}?")
    # The answer lists the deletions; nothing is logged.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    deleted = anyio.run(_sweep, session, policy)
    return Done(f"Deleted: {_listed(deleted) or 'nothing'}.", {"found": found, "deleted": deleted})


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {WORDS.get(kind, kind)}" for kind, n in counts.items())


def _policy(session: Session, before: str | None, keep: int | None, only: tuple[str, ...]) -> "RetentionPolicy":
    from asynsched.housekeeping.retention import SUPERSEDED_FOR, RetentionPolicy, policy_of
    from asynsched.store.runs.retention import Bound

    now = session.now()
    if before is None and keep is None:
        policy = policy_of(session.settings.retention, now)
        if only:
            fields = [kind.replace("-", "_") for kind in only]
            policy = RetentionPolicy(**{name: getattr(policy, name) for name in fields}, with_task_states=False)
        kept_anyway = {name: getattr(policy, name) for name in ("task_states", "changes", "most_changes")}
        if policy == RetentionPolicy(**kept_anyway, with_task_states=not only):
            what = " and ".join(only) or "everything"
            fail(f"The settings of retention keep {what}: give --before T or --keep N.")
        return policy
    kinds = only or USUAL_KINDS
    instant = None if before is None else read_instant(before, session.settings.default_timezone, "--before")
    runs, xcoms, logs = (Bound(instant, keep) if kind in kinds else Bound() for kind in ("runs", "xcoms", "logs"))
    events, audit, versions = (instant if kind in kinds else None for kind in ("asset-events", "audit", "versions"))
    superseded = versions and min(versions, now - SUPERSEDED_FOR)
    return RetentionPolicy(
        runs=runs, xcoms=xcoms, logs=logs, asset_events=events, audit=audit, versions=superseded, with_task_states=False
    )


def _counts(conn: "Connection", policy: "RetentionPolicy", now: "datetime") -> dict[str, int]:
    """Return how many rows there are of each kind that the policy deletes."""
    from asynsched.store.assets import count_old_events
    from asynsched.store.audit import count_old_audit
    from asynsched.store.changes import count_old_changes
    from asynsched.store.dags.dags import count_unused_versions
    from asynsched.store.runs.retention import count_old_runs, count_old_xcoms
    from asynsched.store.state_stores import count_old_states

    counts: dict[str, int] = {}
    if not policy.runs.is_open:
        counts["runs"] = count_old_runs(conn, policy.runs)
    if not policy.xcoms.is_open:
        counts["xcoms"] = count_old_xcoms(conn, policy.xcoms)
    if policy.with_task_states:
        counts["task_states"] = count_old_states(conn, before=policy.task_states, now=now)
    if n := count_old_changes(conn, before=policy.changes, most=policy.most_changes):
        counts["changes"] = n
    if policy.asset_events is not None:
        counts["asset_events"] = count_old_events(conn, before=policy.asset_events)
    if policy.audit is not None:
        counts["audit"] = count_old_audit(conn, before=policy.audit)
    if policy.versions is not None:
        counts["versions"] = count_unused_versions(conn, before=policy.versions)
    return counts


async def _sweep(session: Session, policy: "RetentionPolicy") -> dict[str, int]:
    from anyio.to_thread import run_sync

    from asynsched.cli.runs import remove_archived_logs
    from asynsched.clock import Clock
    from asynsched.executors.log_archive import archive_of
    from asynsched.executors.store_calls import StoreCalls
    from asynsched.housekeeping.retention import Sweep
    from asynsched.service import Pulse
    from asynsched.store.audit import record_audit
    from asynsched.store.engines.opening import open_database

    database = await open_database(session.settings.database_url, synchronous=session.settings.sqlite_synchronous)
    try:
        rows = session.settings.retention.batch_rows
        clock, archive = Clock(), await run_sync(archive_of, session.settings.log)
        calls = StoreCalls(Pulse(clock), clock, at_once=1)
        sweep = Sweep(policy, database=database, home=session.home, batch_rows=rows, archive=archive, calls=calls)
        while await sweep.step(session.now()):
            pass
        await run_sync(remove_archived_logs, session)
        deleted: dict[str, Any] = {kind: n for kind, n in sorted(sweep.deleted.items()) if n}
        if deleted:
            await database.write(record_audit, at=session.now(), actor=actor(), action="db.clean", detail=deleted)
    finally:
        await database.close()
    return deleted


@command("rotate-key")
@click.option("--lost", is_flag=True, help="The key is lost: delete secrets that no key decrypts; use a new key.")
@click.option("--dry-run", is_flag=True, help="With --lost: only list the secrets that cannot be read.")
@yes_option
def db_rotate_key(session: Session, lost: bool, dry_run: bool, yes: bool) -> Done | Listing:
    """Encrypt all connections, variables and waiting triggers with a new key. Schedulers may serve meanwhile.

    The key file of the home gets a new key, before the old ones. Where fernet_key or fernet_key_file is set, its first
    key is used: give every scheduler both keys, the new one first, before this.

    With --lost: connections and variables that no key decrypts are deleted; set them again. A deferred task whose
    trigger no key decrypts has lost that trigger: clear the task.
    """
    from asynsched.queries.context import Act
    from asynsched.store.secrets import change_key, check_key

    if lost:
        return _give_up(session, dry_run=dry_run, yes=yes)
    if dry_run:
        raise click.UsageError("--dry-run goes with --lost.")
    before = session.read(check_key)
    session.make()  # where keys are kept
    if not session.keys.add_new() and before == session.keys.first():
        fail(f"The secrets are encrypted with the first key of {session.keys.source} already. Put a new one before it.")
    detail = {"from": before, "to": session.keys.first()}
    n_secrets = session.act(lambda conn: Act(change_key(conn), "key.rotate", detail=detail))
    fields = {"secrets": n_secrets, "from": before, "to": session.keys.first(), "keys": session.keys.source}
    encrypted = f"{are(n_secrets, 'secret')} encrypted with the key {fields['to']} of {fields['keys']}."
    return Done(f"{encrypted} Backups made until now need the keys before it.", fields)


def _give_up(session: Session, *, dry_run: bool, yes: bool) -> Done | Listing:
    from asynsched.queries.context import Act
    from asynsched.store.secrets import LostSecret, forget_lost, lost_secrets

    found = session.read(lost_secrets)
    if dry_run:
        return Listing(LostSecret._fields, [secret._asdict() for secret in found], "Every secret can be read.")
    if not found:
        fail("Every secret can be read: no key is lost.")
    names = ", ".join(f"{secret.kind} {secret.name}" for secret in found)
    if not yes:
        confirm(f"Delete these secrets, which no key decrypts: {names}?")
    session.make()  # where keys are kept
    detail = {"lost": [[*secret] for secret in found]}
    n_left = session.act(lambda conn: Act(forget_lost(conn), "key.lost", detail=detail))
    key, source = session.keys.first(), session.keys.source
    fields = {"lost": [secret._asdict() for secret in found], "secrets": n_left, "to": key, "keys": source}
    return Done(f"Deleted: {names}. {are(n_left, 'other secret')} encrypted with the key {key} of {source}.", fields)
