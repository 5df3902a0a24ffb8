"""The records of tries: what they are worth after a keeper was killed at any byte."""

from datetime import UTC, datetime

import msgspec
import pytest

from sandbox.protocol import CodeVersion, Ended, Launch, RunContext
from sandbox.supervision.attempts import Attempt, AttemptRecords

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ENDED = Ended("token", "success", NOW, NOW, return_value=msgspec.Raw(b'{"text":"line\\nbreak"}'))


def launch(token: str = "token") -> Launch:
    return Launch(token, "t", -1, 1, 0, RunContext("d", "r", "manual", NOW), CodeVersion("v", "/"), "some.log")


def test_a_token_is_created_once_and_again_only_when_it_is_forgotten(tmp_path):
    records = AttemptRecords(tmp_path)
    assert [records.create(launch()), records.create(launch())] == [True, False]
    records.forget(["token", "unknown"])
    assert list(records.load()) == []
    assert records.create(launch())
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def test_an_end_is_found_again_whole_or_not_at_all(tmp_path):
    records = AttemptRecords(tmp_path)
    records.create(launch())
    begun = (tmp_path / "token").read_bytes()
    records.end(ENDED)
    whole = (tmp_path / "token").read_bytes()
    assert len(whole) > len(begun)
    for size in range(len(whole) + 1):
        (tmp_path / "token").write_bytes(whole[:size])
        ((attempt, ended),) = records.load()
        assert attempt == Attempt("token", "some.log" if size >= len(begun) - 1 else "")
        assert (ended is None) == (size < len(whole))
    assert ended is not None
    assert bytes(ended.return_value) == b'{"text":"line\\nbreak"}'


@pytest.mark.parametrize("token", ["../outside", "", "a/b", ".", "x" * 65])
def test_a_token_that_is_no_file_name_is_refused(tmp_path, token):
    with pytest.raises(ValueError, match="not a token"):
        AttemptRecords(tmp_path).create(launch(token))
