"""The records of tries, after a keeper was killed at any byte, and after damage to the file."""

import os
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime

import msgspec
import pytest

from asynsched.protocol.messages import CodeVersion, Ended, Launch, RunContext
from sandbox.supervision.attempts import JOURNAL, Attempt, AttemptRecords

NOW = datetime(2030, 1, 1, tzinfo=UTC)
VALUE = b'{"text":"line\\nbreak"}'


def launch(token: str = "token") -> Launch:
    return Launch(token, "t", -1, 1, 0, RunContext("d", "r", "manual", NOW), CodeVersion("v", "/"), f"{token}.log")


def ended(token: str = "token", value: bytes = VALUE) -> Ended:
    return Ended(token, "success", NOW, NOW, return_value=msgspec.Raw(value))


def known(folder) -> dict[str, bytes | None]:
    """Return the next keeper's records: the value of each try that has ended, None for one that has not."""
    found = {}
    with closing(AttemptRecords(folder)) as records:
        for attempt, end in records.load():
            assert attempt.log_path == f"{attempt.token}.log"
            found[attempt.token] = None if end is None else bytes(end.return_value)
    return found


def test_a_token_is_created_once_and_again_only_when_it_is_forgotten(opened):
    records = opened()
    assert [records.create(launch()), records.create(launch())] == [True, False]
    records.forget(["token", "unknown"])
    assert list(records.load()) == []
    assert records.create(launch())


def test_a_token_that_one_keeper_has_started_is_started_by_no_later_one(opened):
    opened().create(launch())
    assert not opened().create(launch())
    opened().end(ended())
    later = opened()
    assert not later.create(launch())
    assert later.create(launch("another"))
    later.forget(["token"])
    assert opened().create(launch())


def test_each_keeper_finds_ends_until_forgotten_and_tries_without_one(tmp_path, opened):
    records = opened()
    for token in ("first", "second", "lost"):
        records.create(launch(token))
    for token in ("second", "first"):
        records.end(ended(token))
    assert known(tmp_path) == known(tmp_path) == {"first": VALUE, "second": VALUE, "lost": None}
    records = opened()
    records.forget(["first"])
    assert known(tmp_path) == {"second": VALUE, "lost": None}
    records.end(ended("lost"))
    assert known(tmp_path) == {"second": VALUE, "lost": VALUE}


def test_a_journal_that_is_cut_at_any_byte_keeps_its_whole_lines(tmp_path, journal, opened):
    records, states = opened(), {0: {}}

    def note(**state):
        states[journal.stat().st_size] = state

    records.create(launch("kept"))
    note(kept=None)
    records.create(launch())
    note(kept=None, token=None)
    records.end(ended())
    note(kept=None, token=VALUE)
    remembered = journal.read_bytes()
    records.forget(["token"])
    note(kept=None)
    # That it is forgotten is written before the rest is blank.
    whole = remembered + journal.read_bytes()[len(remembered) :]
    assert len(states) == 5
    for size in range(len(whole) + 1):
        journal.write_bytes(whole[:size])
        end = max(end for end in states if end <= size)
        wanted = states[end]
        assert known(tmp_path) == wanted
        assert journal.stat().st_size == end
        journal.write_bytes(whole[:size])
        with closing(AttemptRecords(tmp_path)) as records:
            records.create(launch("next"))
        assert known(tmp_path) == wanted | {"next": None}


def test_nothing_is_left_of_a_value_that_is_forgotten_while_another_try_runs(tmp_path, journal, warnings, opened):
    records = opened()
    for token in ("runs", "token"):
        records.create(launch(token))
    records.end(ended())
    assert b"break" in journal.read_bytes()
    records.forget(["token"])
    assert b"break" not in journal.read_bytes()
    assert known(tmp_path) == {"runs": None}
    assert warnings == []


def test_a_keeper_killed_while_it_overwrites_a_value_leaves_that_to_the_next(tmp_path, journal, warnings, opened):
    records = opened()
    records.create(launch())
    records.end(ended())
    remembered = journal.read_bytes()
    records.create(launch("runs"))
    records.forget(["token"])
    erased = journal.read_bytes()
    assert VALUE not in erased
    for n_bytes in range(len(remembered)):
        journal.write_bytes(erased[:n_bytes] + remembered[n_bytes:] + erased[len(remembered) :])
        assert known(tmp_path) == {"runs": None}
        assert journal.read_bytes() == erased
    assert warnings == []


def test_a_token_in_use_again_is_not_erased_with_its_earlier_try(tmp_path, journal, opened):
    records = opened()
    for token in ("runs", "token"):
        records.create(launch(token))
    remembered = journal.read_bytes()
    records.forget(["token"])
    records.create(launch())
    records.end(ended())
    journal.write_bytes(remembered + journal.read_bytes()[len(remembered) :])
    assert known(tmp_path) == known(tmp_path) == {"runs": None, "token": VALUE}


def test_a_line_break_between_the_parts_of_a_value_ends_no_line(tmp_path, opened):
    records = opened()
    records.create(launch())
    records.end(ended(value=b'[1,\n{"a":\n2}]'))
    assert known(tmp_path) == {"token": b'[1, {"a": 2}]'}


DAMAGED = [
    b"",
    b"\0\0\0",
    b"\xff{}",
    b"nothing",
    b'{"type":"attempt","token":"damaged","log_path":"","more":' + b"[" * 5000,
    b"{}",
    b'{"type":"attempt","token":"damaged"}',
    b'{"type":"attempt","token":"../damaged","log_path":""}',
    b'{"type":"forgotten","tokens":["first","../damaged"]}',
    b'{"type":"renamed","token":"first"}',
]


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_costs_itself_and_is_told_of(tmp_path, journal, warnings, line, opened):
    records = opened()
    records.create(launch("first"))
    with journal.open("ab") as file:
        file.write(line + b"\n")
    records = opened()
    assert warnings == ["1 damaged lines in the journal of tries are ignored"]
    records.create(launch("second"))
    records.end(ended("first"))
    assert known(tmp_path) == {"first": VALUE, "second": None}


def test_an_end_is_delivered_though_the_line_before_it_is_damaged(journal, opened):
    records = opened()
    records.create(launch())
    begun = journal.read_bytes()
    records.end(ended())
    journal.write_bytes(b"#" + journal.read_bytes()[1:])
    assert len(begun) > 1
    assert list(opened().load()) == [(Attempt("token", ""), ended())]


@pytest.mark.parametrize("token", ["../outside", "", "a/b", ".", "x" * 65, "line\nbreak"])
def test_what_is_no_token_is_refused(tmp_path, token, opened):
    with pytest.raises(ValueError, match="not a token"):
        opened().create(launch(token))
    assert known(tmp_path) == {}


def test_the_journal_is_private_and_no_link_is_followed(tmp_path, opened):
    folder, outside = tmp_path / "attempts", tmp_path / "outside"
    opened(folder)
    journal = folder / JOURNAL
    assert (folder.stat().st_mode & 0o777, journal.stat().st_mode & 0o777) == (0o700, 0o600)
    journal.unlink()
    journal.symlink_to(outside)
    with pytest.raises(OSError, match="attempts/journal"):
        opened(folder)
    assert not outside.exists()


LIST_OPEN_FILES = """
import contextlib, os
for descriptor in range(3, 256):
    with contextlib.suppress(OSError):
        print(os.fstat(descriptor).st_ino)
"""


def test_no_program_that_is_executed_inherits_the_journal(tmp_path, journal, opened):
    opened()
    with (tmp_path / "inherited").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        command = [sys.executable, "-c", LIST_OPEN_FILES]
        listed = subprocess.run(command, close_fds=False, check=True, capture_output=True, text=True).stdout.split()
        assert str(os.fstat(file.fileno()).st_ino) in listed
    assert not {str(tmp_path.stat().st_ino), str(journal.stat().st_ino)} & set(listed)


def test_zeros_of_a_power_cut_cost_only_the_lines_that_they_replace(tmp_path, journal, opened):
    records = opened()
    for token in ("first", "second", "third"):
        records.create(launch(token))
    whole = journal.read_bytes()
    first, second, _ = (len(line) for line in whole.splitlines(keepends=True))
    for size in range(len(whole) + 1):
        journal.write_bytes(whole[:size] + bytes(len(whole) - size))
        left = ["first"] * (size >= first) + ["second"] * (size >= first + second) + ["third"] * (size == len(whole))
        assert known(tmp_path) == dict.fromkeys(left)
        opened().create(launch("next"))
        assert known(tmp_path) == dict.fromkeys([*left, "next"])
