"""`asynsched db rotate-key`: encrypt the secrets in the database with another key."""

from typing import Any

import click

from asynsched.cli.command import command, confirm, fail, yes_option
from asynsched.cli.rendering import Done, Listing, are
from asynsched.cli.session import Session
from asynsched.store.secrets.encryption import LostSecret, change_key, check_key, forget_lost, lost_secrets


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
