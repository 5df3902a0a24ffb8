"""The keys that encrypt secrets in the database.

They are Fernet keys, of the library `cryptography`. They come from the setting `fernet_key`, or from the lines of the
file `fernet_key_file`; without either, from `fernet.key` in the home, which is made for the first secret.
`store/secrets.py` decides which of them is used.
"""

import base64
import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from asynsched.errors import SecretsUnreadable
from asynsched.home import draft_of, replace_file, sync_folder
from asynsched.settings import Settings

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

KEY_FILE = "fernet.key"
READABLE_BY_ANYBODY = 0o007
_KEY = re.compile(r"[A-Za-z0-9_-]{43}=")


class FernetKeys:
    """Keys, read when they are first needed, and again when an unknown one is wanted.

    Args:
        given: Keys, separated by commas, the one for new secrets first; None: the file has them.
        file: Has one key a line.
        may_make: Whether the file may be made.
        named: Where `given` comes from, for messages.
    """

    def __init__(self, given: str | None, file: Path, *, may_make: bool, named: str = "fernet_key") -> None:
        self._given = given
        self._named = named
        self._file = file
        self._may_make = may_make
        self._texts: dict[str, str] = {}
        self._fernets: dict[str, Fernet] = {}

    def __repr__(self) -> str:
        return f"FernetKeys(of {self.source})"

    @property
    def source(self) -> str:
        """Where the keys come from, for messages."""
        return self._named if self._given else f"the file {self._file}"

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Names of the keys, which reveal nothing of them. The one for new secrets comes first.

        Raises SecretsUnreadable if the file cannot be read, or everybody can read it, or a key is invalid.
        """
        return tuple(self._texts or self._load())

    def has(self, key_id: str) -> bool:
        """Return whether there is such a key. Raises SecretsUnreadable."""
        return key_id in self.key_ids or key_id in self._load()

    def first(self) -> str:
        """Return the name of the key for the first secret; make a key if none exists. Raises SecretsUnreadable."""
        if not self.key_ids and self._may_make:
            self._write_new(())
        if not self.key_ids:
            raise SecretsUnreadable(f"There is no key to encrypt secrets with: {self.source} has none.")
        return self.key_ids[0]

    def add_new(self) -> bool:
        """Put a new key first, if the file is ours to write. Returns whether it is."""
        if not self._may_make:
            return False
        self._write_new(self._read())
        return True

    def encrypt(self, text: str, key_id: str) -> str:
        return self._fernet(key_id).encrypt(text.encode()).decode()

    def decrypt(self, token: str) -> str:
        """Return a decrypted text. Raises SecretsUnreadable if none of the keys encrypted it."""
        from cryptography.fernet import InvalidToken, MultiFernet  # loaded only where there are secrets

        try:
            return MultiFernet([self._fernet(key_id) for key_id in self.key_ids]).decrypt(token).decode()
        except (InvalidToken, ValueError) as exc:
            raise SecretsUnreadable(f"A secret was encrypted with a key that {self.source} does not have.") from exc

    def _fernet(self, key_id: str) -> "Fernet":
        if key_id not in self._fernets:
            from cryptography.fernet import Fernet  # as above

            self._fernets[key_id] = Fernet(self._texts[key_id])
        return self._fernets[key_id]

    def _load(self) -> dict[str, str]:
        # Replaced as a whole: the threads of several connections share it.
        self._texts = loaded = {_key_id(text): text for text in self._read()}
        return loaded

    def _read(self) -> list[str]:
        texts = self._given.split(",") if self._given else self._lines_of_file()
        keys = [text.strip() for text in texts if text.strip()]
        for number, text in enumerate(keys, 1):
            if _KEY.fullmatch(text) is None:
                where = self._named if self._given else self._file
                raise SecretsUnreadable(
                    f"{where}: key {number} is not a Fernet key, which is 32 random bytes in URL-safe base64:"
                    ' python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'
                )
        return keys

    def _lines_of_file(self) -> list[str]:
        try:
            with self._file.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode & 0o777
                content = file.read()
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise SecretsUnreadable(f"The file {self._file} with the keys cannot be read: {exc.strerror}") from exc
        if mode & READABLE_BY_ANYBODY:
            raise SecretsUnreadable(
                f"The file {self._file} with the keys is open to everybody (mode {mode:04o}): chmod 600 {self._file}"
            )
        return content.decode(errors="replace").splitlines()

    def _write_new(self, others: list[str] | tuple[str, ...]) -> None:
        """Put a new key before the others. It is durable when this returns: secrets are lost without their key."""
        from cryptography.fernet import Fernet  # as above

        content = "".join(f"{text}\n" for text in (Fernet.generate_key().decode(), *others)).encode()
        try:
            if others:
                replace_file(self._file, content)
            else:
                # If another process makes one at this moment, the first one stays.
                with draft_of(self._file, content) as draft, suppress(FileExistsError):
                    self._file.hardlink_to(draft)
                sync_folder(self._file.parent)
        except OSError as exc:
            raise SecretsUnreadable(f"The file {self._file} cannot be written: {exc.strerror}") from exc
        self._load()


def keys_of(settings: Settings) -> FernetKeys:
    """Return the keys that the settings name."""
    own = settings.fernet_key_file is None
    file = settings.home_path / KEY_FILE if settings.fernet_key_file is None else Path(settings.fernet_key_file)
    return FernetKeys(settings.fernet_key, file.absolute(), may_make=own and not settings.fernet_key)


def check_given_keys(settings: Settings) -> None:
    """Raise SecretsUnreadable if the settings name keys that cannot be used. Blocks."""
    if settings.fernet_key or settings.fernet_key_file:
        _ = keys_of(settings).key_ids


def _key_id(text: str) -> str:
    return hashlib.sha256(b"asynsched:" + base64.urlsafe_b64decode(text)).hexdigest()[:16]
