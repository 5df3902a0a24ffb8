"""`asynsched db rotate-key`: encrypt the secrets in the database with another key."""

from asynsched.cli.command import command, fail
from asynsched.cli.rendering import Done, are
from asynsched.cli.session import Session
from asynsched.home import prepare_home
from asynsched.store.encryption import change_key, check_key


@command("rotate-key")
def rotate_key(session: Session) -> Done:
    """Encrypt all connections, variables and waiting triggers with a new key. Schedulers may serve meanwhile.

    The key file of the home gets a new key, before the old ones. Where fernet_key or fernet_key_file is set, its first
    key is used: give every scheduler both keys, the new one first, before this.
    """
    prepare_home(session.home)
    before = session.read(check_key)
    if not session.keys.add_new() and before == session.keys.first():
        fail(f"The secrets are encrypted with the first key of {session.keys.source} already. Put a new one before it.")
    n_secrets = session.change("key.rotate", change_key, detail={"from": before, "to": session.keys.first()})
    fields = {"secrets": n_secrets, "from": before, "to": session.keys.first(), "keys": session.keys.source}
    return Done(
        f"{are(n_secrets, 'secret')} encrypted with the key {fields['to']} of {fields['keys']}."
        " Backups made until now need the keys before it.",
        fields,
    )
