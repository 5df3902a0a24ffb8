"""Tokens of tries, callbacks and trigger hosts. A try's token says in which boot of the machine it was submitted.

The keeper records each token before user code starts, so that no kill makes a token start twice. It does not wait for
the disk: a power cut may lose its last records, and then no process knows which tries had begun. So a try that was
submitted before the machine was started is never started after that: see `lost_tries`.
"""

import hashlib

import msgspec

from asynsched.clock import new_token
from asynsched.protocol.messages import CodeVersion

_MARK_LENGTH = 8


def boot_mark(boot: str) -> str:
    """Return how the tokens of a boot begin; an empty text where the system does not name its boots."""
    return hashlib.sha256(boot.encode()).hexdigest()[:_MARK_LENGTH] if boot else ""


def new_try_token(mark: str) -> str:
    """Return a new token: a boot's mark, and at least 96 random bits."""
    return mark + new_token()[len(mark) :]


_CALLBACK_PREFIX = "callback-"


def new_callback_token() -> str:
    """Return a new token: 92 random bits; it is as long as a task's, to fit into the same columns."""
    token = new_token()
    return _CALLBACK_PREFIX + token[len(_CALLBACK_PREFIX) :]


def is_callback_token(token: str) -> bool:
    """Return whether a token is a callback's."""
    return token.startswith(_CALLBACK_PREFIX)


_HOST_PREFIX = "triggers-"
_KEY_LENGTH = 24
OWN_TRIGGERS = "asynsched."
"""How the class paths of asynsched's own triggers begin. They need no code of a DAG file, so one host runs them all."""


def code_of_trigger(classpath: str, code: CodeVersion) -> CodeVersion:
    """Return the code that a host needs for a trigger: the sources of the DAG file's version, or no code at all."""
    if classpath.startswith(OWN_TRIGGERS):
        return CodeVersion("", "")
    return CodeVersion("", code.dags_folder, code.sources, installation=code.installation)


def host_key(code: CodeVersion) -> str:
    """Return the key that hosts of the same code share."""
    return hashlib.sha256(msgspec.json.encode(code)).hexdigest()[:_KEY_LENGTH]


def new_host_token(key: str) -> str:
    """Return a new token for a host of this key."""
    return f"{_HOST_PREFIX}{key}-{new_token()[:12]}"


def key_of_token(token: str) -> str | None:
    """Return the key of a host's token; None for any other token."""
    return token.removeprefix(_HOST_PREFIX)[:_KEY_LENGTH] if token.startswith(_HOST_PREFIX) else None


_WATCHER_PREFIX = "watcher-"


def watcher_id(row_id: int) -> str:
    """Return the id of a watcher's trigger; others are tokens of tries."""
    return f"{_WATCHER_PREFIX}{row_id}"


def row_of_watcher(trigger_id: str) -> int | None:
    """Return the row id of a watcher's trigger; None for the trigger of a task."""
    return int(trigger_id.removeprefix(_WATCHER_PREFIX)) if trigger_id.startswith(_WATCHER_PREFIX) else None
