"""The stage of a file between a look and the database, and the requests about it meanwhile."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from asynsched.channels import FileChanged, FolderScanned, NameChanged
from asynsched.errors import InvalidTransition
from asynsched.parsing.files import Files, Repeats, Stage
from asynsched.parsing.looks import LookRequest
from asynsched.serialization.asked_names import AskedName
from asynsched.store.dags.parse_results import StoredFile, StoredReport
from asynsched.store.schema import DagFileRow
from tests.unit.parsing.dispatching import START


def asked(files: Files) -> list[str]:
    return [request.path for request in files.to_look(START)]


def test_what_is_asked_about_a_busy_file_is_kept_until_it_is_stored():
    files = Files(timedelta())
    row = DagFileRow("a.py", "", 0, 0, [], START, 0.1, n_dags=1, n_errors=0)
    files.move("a.py", Stage.QUEUED)
    files.ask(LookRequest("a.py"))
    assert asked(files) == ["a.py"], "a queued file may be looked at again"
    for stage in (Stage.CLAIMED, Stage.PARSING, Stage.STORING):
        files.move("a.py", stage)
        files.ask(LookRequest("a.py", is_urgent=True))
        assert (asked(files), files.is_hurried("a.py"), files.is_idle) == ([], True, False)
    files.stored(["a.py"], [StoredFile("a.py", StoredReport(), row, ())], START)
    assert (asked(files), files.is_idle, files.known.get("a.py")) == (["a.py"], True, row)


def test_an_outcome_that_another_scheduler_took_over_is_waited_for():
    files = Files(timedelta())
    files.move("a.py", Stage.STORING)
    files.stored(["a.py"], [], START)
    assert (asked(files), files.known.get("a.py")) == (["a.py"], None)


def test_a_file_moves_as_its_places_allow():
    files = Files(timedelta())
    files.move("a.py", Stage.QUEUED)
    with pytest.raises(InvalidTransition, match=r"stage of the file a\.py"):
        files.move("a.py", Stage.PARSING)
    files.move("a.py", Stage.CLAIMED)
    files.move("a.py", None)
    assert files.is_idle


def stored_after_reading(files: Files, path: str, *asked: AskedName) -> None:
    row = DagFileRow(path, "", 0, 0, [], START, 0.1, n_dags=1, n_errors=0, asked=list(asked))
    files.move(path, Stage.STORING)
    files.stored([path], [StoredFile(path, StoredReport(), row, ())], START)


def test_files_that_have_read_another_value_are_parsed_again():
    files = Files(timedelta())
    stored_after_reading(files, "a.py", AskedName("variable", "x", "1"), AskedName("option", "core.x", "1"))
    stored_after_reading(files, "b.py", AskedName("variable", "x", "2"), AskedName("connection", "x", "1"))
    # Values may have changed during the parses.
    keys = {("variable", "x"), ("connection", "x")}
    assert set(files.to_compare()) == keys
    assert not files.is_idle
    files.note_digests({("variable", "x"): "2", ("connection", "x"): "1"})
    assert (asked(files), files.to_compare(), files.is_idle) == (["a.py"], [], True)
    stored_after_reading(files, "a.py", AskedName("variable", "x", "2"))
    files.note_digests({("variable", "x"): "2"})
    assert (asked(files), files.is_idle) == ([], True)

    files.take([NameChanged("variable", "y"), NameChanged("connection", "y")], START)
    assert files.to_compare() == []
    files.take([NameChanged("connection")], START)
    assert files.to_compare() == [("connection", "x")]
    files.take([FolderScanned(), FileChanged("a.py"), FileChanged("b.py")], START)
    assert set(files.to_compare()) == keys


def test_another_schedulers_parse_counts_if_it_has_read_the_present_values():
    files = Files(timedelta())
    stored_after_reading(files, "a.py", AskedName("variable", "x", "1"))
    files.note_digests({("variable", "x"): "2"})
    known = files.known.get("a.py")
    assert not files.known.has_names_of(known)
    assert files.known.has_names_of(replace(known, asked=[AskedName("variable", "x", "2")]))


def test_files_are_repeated_although_the_clock_was_set_back_since_they_were_parsed():
    file = DagFileRow("a.py", "", 0, 0, [], START + timedelta(hours=1), 0.1, n_dags=1, n_errors=0)
    assert Repeats(timedelta(minutes=5)).due([file], START) == ["a.py"]
