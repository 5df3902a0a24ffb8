"""Any bytes that user code writes to the keeper, the parse's watcher or the bell give a message or one clean error."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynsched.bell import decode_hints
from asynsched.errors import SerializationError
from asynsched.protocol.frames import FrameReader, ProtocolError, encode_frame
from asynsched.protocol.messages import Ended, FromKeeper, ToKeeper
from asynsched.protocol.parse_messages import Transcript
from asynsched.scheduling.rules.try_end import after_try
from asynsched.serialization.decode import decode_dag, decode_report
from asynsched.serialization.schema import SCHEMA_VERSION, SerializedTask
from sandbox.supervision.tries import believable
from tests.unit.serialization.test_serialization import serialized

DEEP = b"[" * 50_000
NASTY = [
    b"", b"{}", b"[]", b"null", b"\xff", b'{"type":', b'{"type":' + DEEP, DEEP, b'{"type":"request","x":' + DEEP,
    b'{"type":"request","token":"t","request_id":1,"operation":"\xff"}',
    b'{"type":"request","token":"t","request_id":1e999,"operation":"x"}',
    b'{"type":"request","token":"t","request_id":1,"operation":"x","arguments":{"a":' + b"9" * 5_000 + b"}}",
    b'{"type":"ended","token":"t","state":"success","ended_at":"2026-01-01T00:00:00","return_value":' + DEEP,
    b'{"type":"found","dags":' + DEEP, b'{"type":"confined","enforced":["\xff"]}', b'[{"kind":"ping","dag_id":"\xff"}]',
    b'[{"kind":"ping","more":' + DEEP, b'{"type":"found","errors":[NaN]}', b'"\\ud800"',
]  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
"""NaN, infinities and lone surrogates among them: Python's own JSON has them."""


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Something like a message: fields of ours with foreign values, or bytes, or known nasty inputs."""
    tags = ["request", "ended", "started", "reply", "launch", "inventory", "found", "sourced", "confined", "other"]
    fields = [
        "token", "request_id", "operation", "arguments", "state", "ended_at", "reason", "return_value", "deferral",
        "dags", "errors", "source", "enforced", "schema_version", "outlet_events", "decision",
    ]  # fmt: skip
    made = draw(st.dictionaries(st.sampled_from(fields), json_values, max_size=6)) | {
        "type": draw(st.sampled_from(tags))
    }
    whole = json.dumps(made).encode()
    cut = draw(st.integers(0, len(whole)))
    return draw(st.sampled_from([whole, whole[:cut], whole[:cut] + b"\xff" + whole[cut:]]) | st.sampled_from(NASTY))


def read_frame(body: bytes) -> list[Any]:
    """Read a frame on both sides; a message that was read can be written again."""
    framed = len(body).to_bytes(4, "big") + body
    found = []
    for side in (FromKeeper, ToKeeper):
        with suppress(ProtocolError):
            found += FrameReader(side).feed(framed)
    for message in found:
        encode_frame(message)
    return found


def read_everywhere(body: bytes) -> None:
    read_frame(body)
    transcript = Transcript()
    transcript.feed(body + b"\n")
    assert transcript.refused is None or b"refused" in body
    for read, error in (
        (decode_report, SerializationError),
        (decode_dag, SerializationError),
        (decode_hints, ValueError),
    ):
        with suppress(error):
            read(body)


@given(messages())
def test_bytes_of_user_code_are_a_message_or_one_clean_error(body: bytes):
    read_everywhere(body)


@pytest.mark.parametrize("number", range(len(NASTY)))
def test_nasty_bytes_are_a_message_or_one_clean_error(number: int):
    read_everywhere(NASTY[number])


PLANNED = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}
PLAN = {
    "asked_at": "2026-01-01T00:00:00Z",
    "after": PLANNED,
    "runs": [{"run_after": "2026-01-02T00:00:00Z", "interval": PLANNED, "run_id": "named"}],
}
REPORT = {
    "schema_version": SCHEMA_VERSION,
    "path": "a.py",
    "dags": [{"dag": serialized(), "version_hash": "0" * 64, "manual_run_id": "named", "plan": PLAN}],
    "errors": [{"kind": "dag", "message": "no", "line": 1}],
}


@pytest.mark.parametrize("name", ["a/b", "..", "latest", "line\n", "x" * 251])
@pytest.mark.parametrize("place", ["planned", "triggered"])
def test_a_report_that_names_a_run_as_no_run_can_be_named_is_refused(name: str, place: str):
    report = json.loads(json.dumps(REPORT))
    [found] = report["dags"]
    decode_report(json.dumps(report).encode())
    if place == "planned":
        found["plan"]["runs"][0]["run_id"] = name
    else:
        found["manual_run_id"] = name
    with pytest.raises(SerializationError):
        decode_report(json.dumps(report).encode())


@given(st.data())
def test_a_report_with_anything_in_any_place_is_read_or_refused(data: st.DataObject):
    report = json.loads(json.dumps(REPORT))
    place: Any = report
    while isinstance(place, dict | list) and place:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            place[key] = data.draw(json_values)
            break
        place = place[key]
    read_everywhere(json.dumps(report).encode())


TASK = SerializedTask(task_id="t", task_type="X", retries=1)
BEYOND = st.sampled_from([0.0, -1.0, 1e308, -1e308, 8.7e13, 1e9])


@given(
    state=st.sampled_from(["success", "failed", "up_for_reschedule", "deferred"]),
    instants=st.lists(st.sampled_from(["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-01-01T00:00:00+14:00"]),
                      min_size=3, max_size=3),
    seconds=BEYOND,
    length=st.integers(-(2**63), 2**63),
    value=st.sampled_from([b'"\xff"', b"1e999", b"[1, 2]", b"[" * 500 + b"]" * 500]),
)  # fmt: skip
def test_the_end_that_a_try_reports_has_usable_dates_and_lengths(state, instants, seconds, length, value):
    ended_at, started_at, reschedule_at = instants
    said = {
        "type": "ended", "token": "t", "state": state, "ended_at": ended_at, "started_at": started_at,
        "reschedule_at": reschedule_at, "retry_delay": seconds, "result_length": length,
        "deferral": {"classpath": "x", "trigger_kwargs": {}, "method_name": "m", "timeout": seconds},
    }  # fmt: skip
    body = json.dumps(said).encode()[:-1] + b', "return_value": ' + value + b"}"
    for message in read_frame(body):
        assert isinstance(message, Ended)
        ended = believable(message)
        assert ended.ended_at <= datetime.now(UTC)
        after_try(TASK, ended, jitter_seed="i", try_number=1, max_tries=1, machine_kills=0, max_machine_kills=3)
        if ended.return_value:
            msgspec.json.decode(bytes(ended.return_value).decode())
            assert -1 <= (ended.result_length or 0) < 2**31
        elif ended.state != state:
            assert ended.reason == "its process returned a value that is not valid JSON"
