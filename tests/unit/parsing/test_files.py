"""The place of a file between a look and the database, and the requests about it meanwhile."""

from datetime import timedelta

import pytest

from asynsched.errors import InvalidTransition
from asynsched.parsing.files import Files
from asynsched.parsing.looks import LookRequest
from asynsched.store.dags.parse_results import Stored, StoredReport
from asynsched.store.schema import DagFileRow
from tests.unit.parsing.dispatching import START


def asked(files: Files) -> list[str]:
    return [request.path for request in files.to_look(START)]


def test_what_is_asked_about_a_busy_file_is_kept_until_it_is_stored():
    files = Files(timedelta())
    row = DagFileRow("a.py", "", 0, 0, [], START, 0.1, n_dags=1, n_errors=0)
    files.queue("a.py")
    files.ask(LookRequest("a.py"))
    assert asked(files) == ["a.py"], "a queued file may be looked at again"
    for step in (files.claim, files.parse, files.conclude):
        step("a.py")
        files.ask(LookRequest("a.py", is_urgent=True))
        assert (asked(files), files.hurried, files.is_idle) == ([], ["a.py"], False)
    files.stored(["a.py"], [Stored("a.py", StoredReport(), row, ())], START)
    assert (asked(files), files.is_idle, files.known.get("a.py")) == (["a.py"], True, row)


def test_an_outcome_that_another_scheduler_took_over_is_waited_for():
    files = Files(timedelta())
    files.conclude("a.py")
    files.stored(["a.py"], [], START)
    assert (asked(files), files.known.get("a.py")) == (["a.py"], None)


def test_a_file_moves_as_its_places_allow():
    files = Files(timedelta())
    files.queue("a.py")
    with pytest.raises(InvalidTransition, match=r"place of the file a\.py"):
        files.parse("a.py")
    files.claim("a.py")
    files.release("a.py")
    assert files.is_idle
