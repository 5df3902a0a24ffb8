"""The place of a file between a look and the database, and the requests about it meanwhile."""

from datetime import timedelta

import pytest

from asynsched.errors import InvalidTransition
from asynsched.parsing.files import Files, Place
from asynsched.parsing.looks import LookRequest
from asynsched.store.dags.parse_results import StoredFile, StoredReport
from asynsched.store.schema import DagFileRow
from tests.unit.parsing.dispatching import START


def asked(files: Files) -> list[str]:
    return [request.path for request in files.to_look(START)]


def test_what_is_asked_about_a_busy_file_is_kept_until_it_is_stored():
    files = Files(timedelta())
    row = DagFileRow("a.py", "", 0, 0, [], START, 0.1, n_dags=1, n_errors=0)
    files.move("a.py", Place.QUEUED)
    files.ask(LookRequest("a.py"))
    assert asked(files) == ["a.py"], "a queued file may be looked at again"
    for place in (Place.CLAIMED, Place.PARSING, Place.STORING):
        files.move("a.py", place)
        files.ask(LookRequest("a.py", is_urgent=True))
        assert (asked(files), files.is_hurried("a.py"), files.is_idle) == ([], True, False)
    files.stored(["a.py"], [StoredFile("a.py", StoredReport(), row, ())], START)
    assert (asked(files), files.is_idle, files.known.get("a.py")) == (["a.py"], True, row)


def test_an_outcome_that_another_scheduler_took_over_is_waited_for():
    files = Files(timedelta())
    files.move("a.py", Place.STORING)
    files.stored(["a.py"], [], START)
    assert (asked(files), files.known.get("a.py")) == (["a.py"], None)


def test_a_file_moves_as_its_places_allow():
    files = Files(timedelta())
    files.move("a.py", Place.QUEUED)
    with pytest.raises(InvalidTransition, match=r"place of the file a\.py"):
        files.move("a.py", Place.PARSING)
    files.move("a.py", Place.CLAIMED)
    files.move("a.py", None)
    assert files.is_idle
