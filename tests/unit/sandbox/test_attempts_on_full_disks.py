"""The journal of tries where writes fail half way, and how it stays small."""

import errno
import os
import random
import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sandbox.supervision import attempts
from sandbox.supervision.attempts import NEW, AttemptRecords
from tests.unit.sandbox.test_attempts import VALUE, ended, known, launch

LARGE = b'"%s"' % (b"x" * 5000)
ROOM = 10_000


class Killed(BaseException):
    """The keeper gets no further."""


def no_space(*_, **_folders):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def records(opened) -> AttemptRecords:
    """Records with one try that has ended, and one that has not."""
    records = opened()
    for token in ("ended", "begun"):
        records.create(launch(token))
    records.end(ended("ended"))
    return records


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def disk_that_fails(monkeypatch, n_bytes: int, code: int, *, cuts: bool = True) -> Iterator[None]:
    """Simulate a disk that takes this many more bytes, some at a time."""
    room, pwrite = n_bytes, os.pwrite

    def write(descriptor, data, offset):
        nonlocal room
        if room == 0:
            raise OSError(code, os.strerror(code))
        n_written = pwrite(descriptor, data[: min(room, 7)], offset)
        room -= n_written
        return n_written

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", write)
        if not cuts:
            broken.setattr(os, "ftruncate", no_space)
        yield


def test_a_line_that_the_disk_takes_in_pieces_is_whole(tmp_path, records, monkeypatch):
    with disk_that_fails(monkeypatch, 1000, errno.EIO):
        records.end(ended("begun"))
    assert known(tmp_path) == {"ended": VALUE, "begun": VALUE}


def test_a_file_that_may_not_grow_keeps_its_whole_lines(tmp_path, journal, records):
    before = journal.read_bytes()
    with largest_file(len(before) + 20):
        with pytest.raises(OSError, match="File too large"):
            records.end(ended("begun"))
        assert journal.read_bytes() == before
        with pytest.raises(OSError, match="File too large"):
            records.create(launch("next"))
    assert journal.read_bytes() == before
    assert records.create(launch("next")), "it has not begun"
    records.end(ended("begun", LARGE))
    assert known(tmp_path) == {"ended": VALUE, "begun": LARGE, "next": None}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG, errno.EIO])
@pytest.mark.parametrize("n_bytes", range(0, 60, 4))
@pytest.mark.parametrize("cuts", [True, False])
def test_what_was_written_of_a_line_garbles_none_after_it(tmp_path, journal, records, monkeypatch, code, n_bytes, cuts):
    before = journal.read_bytes()
    with disk_that_fails(monkeypatch, n_bytes, code, cuts=cuts), pytest.raises(OSError, match=os.strerror(code)):
        records.end(ended("begun", LARGE))
    assert journal.stat().st_size == len(before) + (0 if cuts else n_bytes)
    whole = journal.read_bytes()
    assert known(tmp_path) == {"ended": VALUE, "begun": None}
    journal.write_bytes(whole)
    records.create(launch("n"))
    assert known(tmp_path) == {"ended": VALUE, "begun": None, "n": None}
    records.end(ended("begun"))
    records.create(launch("another"))
    assert known(tmp_path) == {"ended": VALUE, "begun": VALUE, "n": None, "another": None}


def test_an_end_that_cannot_be_forgotten_on_disk_is_reported_again(tmp_path, records, monkeypatch, warnings):
    with disk_that_fails(monkeypatch, 5, errno.ENOSPC):
        records.forget(["ended"])
    assert ["that the ends of 1 tries are stored: [Errno 28]" in warning for warning in warnings] == [True]
    assert known(tmp_path) == {"ended": VALUE, "begun": None}
    records.forget(["begun"])
    assert known(tmp_path) == {}, "nothing is live"


def test_a_value_that_cannot_be_overwritten_now_is_overwritten_later(
    tmp_path, journal, records, monkeypatch, warnings, opened
):
    n_bytes = len(b'{"type":"forgotten","tokens":["ended"]}\n') + 20
    with disk_that_fails(monkeypatch, n_bytes, errno.EIO):
        records.forget(["ended"])
    with disk_that_fails(monkeypatch, 0, errno.EIO):
        opened()
    assert (
        warnings
        == ["Values of tries that have ended are left in the journal of tries: [Errno 5] Input/output error"] * 2
    )
    assert VALUE in journal.read_bytes()
    with disk_that_fails(monkeypatch, 1000, errno.EIO):
        assert known(tmp_path) == {"begun": None}
    assert VALUE not in journal.read_bytes()


def test_a_journal_without_live_tries_is_empty(tmp_path, journal, records, opened):
    records.forget(["ended"])
    assert journal.stat().st_size > 0
    records.forget(["begun"])
    assert journal.stat().st_size == 0
    records.create(launch())
    assert known(tmp_path) == {"token": None}
    journal.write_bytes(journal.read_bytes() + b'{"type":"forgotten","tokens":["token"]}\n')
    opened()
    assert journal.stat().st_size == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_journal_stays_small_and_that_costs_less_than_what_was_written(tmp_path, journal, monkeypatch, seed, opened):
    monkeypatch.setattr(attempts, "ROOM_BYTES", ROOM)
    copied, written, live, chance = [], 0, {}, random.Random(seed)
    write_anew = AttemptRecords._rewrite

    def note(records):
        write_anew(records)
        copied.append(journal.stat().st_size)

    monkeypatch.setattr(AttemptRecords, "_rewrite", note)
    records = opened()
    for number in range(3000):
        token = f"token-{number}"
        records.create(launch(token))
        live[token] = None
        if chance.random() < 0.9:
            live[token] = LARGE if chance.random() < 0.05 else VALUE
            records.end(ended(token, live[token]))
            written += len(live[token])
        if chance.random() < 0.3:
            tokens = chance.sample(sorted(live), min(len(live), chance.randrange(1, 8)))
            records.forget(tokens)
            for one in tokens:
                del live[one]
            room = ROOM + 2 * sum(400 + len(value or b"") for value in live.values())
            assert journal.stat().st_size <= room
        if chance.random() < 0.01:
            records = opened()
    assert len(copied) > 5
    assert sum(copied) < written + 3000 * 100
    assert known(tmp_path) == live
    assert list(tmp_path.iterdir()) == [journal]
    assert journal.stat().st_mode & 0o777 == 0o600


def test_values_are_in_the_file_and_not_in_memory(tmp_path, opened):
    opened()  # files made once exist
    tracemalloc.start()
    try:
        records = opened()
        for number in range(10):
            records.create(launch(f"t{number}"))
            records.end(ended(f"t{number}", b'"%s"' % (b"x" * 100_000)))
        opened()
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    assert sum(map(len, known(tmp_path).values())) > 1_000_000


@pytest.fixture
def full(opened) -> AttemptRecords:
    """Records that will be rewritten when the next try is forgotten."""
    records = opened()
    for token in ("ended", "begun", "dead", "last"):
        records.create(launch(token))
        if token != "begun":
            records.end(ended(token, LARGE if token == "dead" else VALUE))
    records.forget(["dead"])
    return records


def test_a_journal_that_is_written_anew_goes_on_as_before(tmp_path, journal, full, monkeypatch):
    monkeypatch.setattr(attempts, "ROOM_BYTES", 100)
    full.forget(["last"])
    assert journal.stat().st_size < len(LARGE)
    assert not full.create(launch("begun"))
    full.end(ended("begun", LARGE))
    assert {attempt.token: end for attempt, end in full.load()} == {
        "ended": ended("ended"),
        "begun": ended("begun", LARGE),
    }
    assert known(tmp_path) == {"ended": VALUE, "begun": LARGE}


@pytest.mark.parametrize("moment", ["while it is written", "before it is renamed", "after it is renamed"])
def test_a_keeper_killed_while_it_rewrites_the_journal_loses_nothing(tmp_path, journal, full, monkeypatch, moment):
    read, rename = AttemptRecords._read, os.rename

    def killed(*arguments, **folders):
        if moment == "after it is renamed":
            rename(*arguments, **folders)
        raise Killed

    def read_some(self, span):
        if span.offset:
            raise Killed
        return read(self, span)

    with monkeypatch.context() as deadly:
        deadly.setattr(attempts, "ROOM_BYTES", 100)
        if moment == "while it is written":
            deadly.setattr(AttemptRecords, "_read", read_some)
        deadly.setattr(os, "rename", killed)
        with pytest.raises(Killed):
            full.forget(["last"])
    is_new = moment == "after it is renamed"
    assert (tmp_path / NEW).exists() == (not is_new)
    # An end that was not forgotten even in part is delivered once more.
    assert known(tmp_path) == {"ended": VALUE, "begun": None} | ({} if is_new else {"last": VALUE})
    assert list(tmp_path.iterdir()) == [journal]


def test_a_journal_that_cannot_be_rewritten_goes_on_and_is_tried_seldom(tmp_path, journal, full, monkeypatch, warnings):
    monkeypatch.setattr(attempts, "ROOM_BYTES", 100)
    with monkeypatch.context() as no_room:
        no_room.setattr(os, "rename", no_space)
        for number in range(9):
            full.create(launch(f"t{number}"))
            full.forget(["last", f"t{number}"])
    assert warnings == ["The journal of tries could not be made smaller: [Errno 28] No space left on device"]
    assert list(tmp_path.iterdir()) == [journal]
    assert known(tmp_path) == {"ended": VALUE, "begun": None}
    for value in (LARGE + b" " * len(LARGE), LARGE):
        full.create(launch("x"))
        full.end(ended("x", value))
        full.forget(["x"])
        assert journal.stat().st_size < len(LARGE)
    assert known(tmp_path) == {"ended": VALUE, "begun": None}
