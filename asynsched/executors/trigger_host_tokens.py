"""Tokens of trigger hosts: they tell which code a host has loaded, also to a scheduler that did not launch it."""

import hashlib

import msgspec

from asynsched.clock import new_token
from asynsched.protocol.messages import CodeVersion

_PREFIX = "triggers-"
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
    return f"{_PREFIX}{key}-{new_token()[:12]}"


def key_of_token(token: str) -> str | None:
    """Return the key of a host; None for a token that is of none."""
    return token.removeprefix(_PREFIX)[:_KEY_LENGTH] if token.startswith(_PREFIX) else None
