"""Workers and schedulers of neighbouring versions understand each other.

`worker_messages_1.json` has a message of each kind as version 1 writes it, with a value for each field that it writes.
A later version adds a file of its own; this one stays as it is.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asynsched.protocol import worker_messages
from asynsched.protocol.messages import Reply
from asynsched.worker.tickets import KeptTicket

MESSAGES: dict[str, Any] = json.loads((Path(__file__).parent / "worker_messages_1.json").read_text())
KINDS = {**vars(worker_messages), "Reply": Reply, "KeptTicket": KeptTicket}


def read(name: str, message: Any) -> Any:
    return msgspec.json.decode(json.dumps(message), type=KINDS[name])


def written(message: Any) -> Any:
    return json.loads(msgspec.json.encode(message))


def with_more(value: Any) -> Any:
    """Return a message with fields that only a later version knows."""
    match value:
        case dict():
            return {"from_tomorrow": "new", **{key: with_more(one) for key, one in value.items()}}
        case list():
            return [with_more(one) for one in value]
    return value


def without_more(value: Any) -> Any:
    """Return a message without these fields, which dicts of users have kept."""
    match value:
        case dict():
            return {key: without_more(one) for key, one in value.items() if key != "from_tomorrow"}
        case list():
            return [without_more(one) for one in value]
    return value


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_of_version_1_is_read_and_written_as_that_version_does(name):
    again = written(read(name, MESSAGES[name]))
    assert lacking(again, MESSAGES[name]) == [], "what version 1 writes, and may need to read"


def lacking(found: Any, wanted: Any, path: str = "") -> list[str]:
    """Return where a message does not have what another one has. It may have more."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [one for key in wanted for one in lacking(found.get(key), wanted[key], f"{path}.{key}")]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [one for n, item in enumerate(wanted) for one in lacking(found[n], item, f"{path}[{n}]")]
    return [] if found == wanted else [path]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_with_fields_of_a_later_version_is_read_without_them(name):
    again = written(read(name, with_more(MESSAGES[name])))
    assert lacking(without_more(again), MESSAGES[name]) == []
