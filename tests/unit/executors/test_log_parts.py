"""How two parts of a log relate, and their lines in the order of their times."""

import io

import pytest

from asynsched.executors.log_parts import joined, relation_of
from asynsched.executors.log_stores import FolderLogs


@pytest.mark.parametrize(
    ("local", "stored", "relation"),
    [
        ("ab", "ab", "contained"),
        ("ab", "abc", "contained"),
        ("bc", "abc", "contained"),
        ("abc", "ab", "extends"),
        ("abc", "", "extends"),
        ("", "abc", "contained"),
        ("c", "ab", "differs"),
        ("cab", "ab", "differs"),
    ],
)
def test_a_log_extends_the_stored_one_is_contained_in_it_or_differs(local, stored, relation):
    assert relation_of(io.BytesIO(local.encode()), io.BytesIO(stored.encode())) == relation


def at(second: int, text: str) -> str:
    return f"[2026-05-01T12:00:{second:02}.000Z] {text}\n"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([at(1, "a"), at(4, "d")], [at(2, "b"), at(3, "c")], [at(1, "a"), at(2, "b"), at(3, "c"), at(4, "d")]),
        ([at(1, "a"), at(2, "b")], [at(1, "a"), at(2, "b"), at(3, "c")], [at(1, "a"), at(2, "b"), at(3, "c")]),
        ([at(1, "a"), at(1, "a")], [at(1, "a")], [at(1, "a"), at(1, "a")]),
        ([at(1, "a"), "*** cut\n"], [at(1, "b"), at(2, "c")], [at(1, "a"), "*** cut\n", at(1, "b"), at(2, "c")]),
        ([at(5, "a"), at(3, "set back")], [at(4, "b")], [at(4, "b"), at(5, "a"), at(3, "set back")]),
        ([at(1, "a").strip()], [at(1, "a"), at(2, "b")], [at(1, "a"), at(2, "b")]),
    ],
    ids=["between", "grown", "said twice", "without a time", "clock set back", "no line end"],
)
def test_parts_are_joined_by_the_times_of_their_lines_and_each_line_comes_once(first, second, expected):
    some, others = ([line.encode() for line in part] for part in (first, second))
    whole = list(joined(some, others))
    assert [line.decode() for line in whole] == expected
    assert sorted(joined(others, some)) == sorted(whole)
    assert list(joined(whole, some)) == whole


def test_the_line_that_stands_for_what_came_before_goes_once_that_is_there(tmp_path):
    before = at(1, "a" * 200).encode()
    FolderLogs(tmp_path).append("log", len(before), 0, at(2, "b").encode())
    with (tmp_path / "log").open("rb") as later:
        assert list(joined([before], later)) == [before, at(2, "b").encode()]
