"""Tokens of tries, which tell in which boot of the machine a try was submitted.

The keeper writes down each token before user code starts, so that a token starts once, whatever is killed. It does not
wait for the disk: a power cut may lose its last lines, and then no process knows which tries had begun. So a try that
was submitted before the machine was started is never started after that: see `lost_tries`.
"""

import hashlib

import msgspec

from asynsched.clock import new_token
from asynsched.protocol.messages import CodeVersion

_MARK_LENGTH = 8


def boot_mark(boot: str) -> str:
    """Return how the tokens of a boot begin; empty, as all tokens begin, where the system does not name its boots."""
    return hashlib.sha256(boot.encode()).hexdigest()[:_MARK_LENGTH] if boot else ""


def new_try_token(mark: str) -> str:
    """Return a new identifier: a boot's mark, and 96 random bits at least."""
    return mark + new_token()[len(mark) :]


_CALLBACK_PREFIX = "callback-"


def new_callback_token() -> str:
    """Return a new random identifier: 92 bits, as long as a task's token, so that it fits into the same columns."""
    token = new_token()
    return _CALLBACK_PREFIX + token[len(_CALLBACK_PREFIX) :]


def is_callback_token(token: str) -> bool:
    """Return whether a token was given to a callback."""
    return token.startswith(_CALLBACK_PREFIX)


_HOST_PREFIX = "triggers-"
_KEY_LENGTH = 24
OWN_TRIGGERS = "asynsched."
"""Beginning of the class paths of asynsched's own triggers. They need no code of a DAG file, so one host runs all."""


def code_of_trigger(classpath: str, code: CodeVersion) -> CodeVersion:
    """Return the code that a host needs for a trigger: the sources of the DAG file's version, or none at all."""
    if classpath.startswith(OWN_TRIGGERS):
        return CodeVersion("", "")
    return CodeVersion("", code.dags_folder, code.sources)


def host_key(code: CodeVersion) -> str:
    """Return what hosts of the same code have in common."""
    return hashlib.sha256(msgspec.json.encode(code)).hexdigest()[:_KEY_LENGTH]


def new_host_token(key: str) -> str:
    """Return a new token for a host of this key."""
    return f"{_HOST_PREFIX}{key}-{new_token()[:12]}"


def key_of_token(token: str) -> str | None:
    """Return the key of a host; None for a token that is of none."""
    return token.removeprefix(_HOST_PREFIX)[:_KEY_LENGTH] if token.startswith(_HOST_PREFIX) else None
