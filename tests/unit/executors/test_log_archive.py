"""Logs in a file system of fsspec: whole, repeated, continued, and without secrets in errors."""

import io
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from asynsched.errors import LogStoreUnavailable, SettingsError
from asynsched.executors.log_archive import LogArchive, archive_of, joined, relation_of
from asynsched.executors.log_removal import remove_logs, remove_unwanted
from asynsched.executors.log_stores import FolderLogs
from asynsched.keys import DagRunKey
from asynsched.settings import LogSettings

PATH = "dag_id=d/run_id=r/attempt=1.log"


@pytest.fixture(params=["memory", "file"])
def archive(request, tmp_path):
    (tmp_path / "store").mkdir()
    return LogArchive(f"{request.param}://{tmp_path}/store", {})


def test_a_log_is_stored_whole_however_often_and_in_whatever_parts_it_comes(archive, tmp_path):
    file = tmp_path / "log"

    def put(text: str) -> str:
        file.write_text(text)
        size = archive.put(PATH, file, tmp_path)
        assert archive.size(PATH) == size
        return archive.read(PATH, 0, size).decode()

    assert archive.size(PATH) is None
    assert put("one\n") == "one\n"
    assert put("one\n") == "one\n"
    assert put("one\ntwo\n") == "one\ntwo\n"
    assert put("one\n") == "one\ntwo\n", "an old copy cuts nothing off"
    assert put("three\n") == "one\ntwo\nthree\n", "another home went on with the try"
    assert put("three\n") == "one\ntwo\nthree\n"
    assert archive.read(PATH, 4, 8) == b"two\n"
    assert archive.read(PATH, 8, 8) == b""
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("log-")] == []


def test_parts_of_several_homes_are_read_in_the_order_of_their_times(archive, tmp_path):
    def part(name: str, *seconds: int) -> Path:
        file = tmp_path / name
        file.write_text("".join(f"[2026-05-01T12:00:{second:02}.000Z] at {second}\n" for second in seconds))
        return file

    first, second = part("first", 1, 2, 5), part("second", 3, 4)
    whole = part("whole", 1, 2, 3, 4, 5, 6).read_bytes()
    for file in (second, first, second, part("first", 1, 2, 5, 6), first, second):
        size = archive.put(PATH, file, tmp_path)
        assert size == archive.size(PATH)
    assert archive.read(PATH, 0, size) == whole


@pytest.fixture
def folder_archive(tmp_path):
    (tmp_path / "store").mkdir()
    return LogArchive(f"file://{tmp_path}/store", {})


@pytest.mark.parametrize("moves_to_the_place_of_another", [True, False])
def test_a_crash_while_a_log_is_written_to_a_folder_leaves_the_stored_one_whole(
    folder_archive, tmp_path, monkeypatch, moves_to_the_place_of_another
):
    archive, file = folder_archive, tmp_path / "log"
    file.write_text("one\n")
    archive.put(PATH, file, tmp_path)
    file.write_text("one\ntwo\n")

    def crash(_: str, target: str) -> None:
        Path(target).write_text("o")
        raise OSError("it breaks off")

    with monkeypatch.context() as patched:
        patched.setattr(archive._fs, "put_file", crash)
        with pytest.raises(LogStoreUnavailable, match="cannot write a log: it breaks off"):
            archive.put(PATH, file, tmp_path)
    assert archive.read(PATH, 0, 4) == b"one\n"
    archive._is_keeping = not moves_to_the_place_of_another
    assert archive.put(PATH, file, tmp_path) == 8
    folder = (tmp_path / "store" / PATH).parent
    assert [log.name for log in folder.iterdir()] == ["attempt=1.log"], "no draft stays"


def test_a_folder_that_is_not_there_is_not_made_because_its_mount_may_be_missing(tmp_path):
    archive, file = LogArchive(f"file://{tmp_path}/store", {}), tmp_path / "log"
    file.write_text("one\n")
    for use in (
        archive.check,
        lambda: archive.size(PATH),
        lambda: archive.put(PATH, file, tmp_path),
        lambda: archive.run_folders("dag_id=d"),
        lambda: archive.remove_folder("dag_id=d/run_id=r"),
    ):
        with pytest.raises(LogStoreUnavailable, match=r"there is no folder .*/store; make it, or mount what it is in"):
            use()
    assert not (tmp_path / "store").exists()


def test_a_log_that_grows_while_it_is_stored_is_put_again(archive, tmp_path, monkeypatch):
    file, put_file = tmp_path / "log", archive._put_file
    file.write_text("one\n")

    def grow(file: Path, path: str) -> None:
        with file.open("a") as log:
            log.write("two\n")
        put_file(file, path)

    with monkeypatch.context() as patched:
        patched.setattr(archive, "_put_file", grow)
        assert archive.put(PATH, file, tmp_path) is None
    assert archive.put(PATH, file, tmp_path) == 8


def test_the_logs_of_deleted_runs_go_from_the_archive_once_it_answers(archive, tmp_path, monkeypatch):
    home, file = tmp_path / "home", tmp_path / "log"
    file.write_text("one\n")
    (home / "logs" / "dag_id=d" / "run_id=r").mkdir(parents=True)
    for run in ("r", "s"):
        archive.put(f"dag_id=d/run_id={run}/attempt=1.log", file, tmp_path)
    assert sorted(archive.run_folders("dag_id=d")) == ["run_id=r", "run_id=s"]
    assert archive.run_folders("dag_id=unknown") == []

    remove_logs(home, [DagRunKey("d", "r"), DagRunKey("d", "never")], are_archived=True)
    assert list((home / "logs" / "dag_id=d").iterdir()) == []
    with monkeypatch.context() as patched:
        patched.setattr(archive._fs, "rm", lambda *_, **__: 1 / 0)
        with pytest.raises(LogStoreUnavailable, match=r"cannot remove logs: division by zero"):
            remove_unwanted(home, archive, at_most=9)
    with pytest.raises(ValueError, match="not the folder of a run: 'dag_id=d'"):
        archive.remove_folder("dag_id=d")
    # Damaged notes, and a note that another process has done meanwhile.
    for name, text in (("empty", ""), ("up", "dag_id=d/.."), ("down", "dag_id=d/run_id=s/attempt=1.log")):
        (home / "logs" / ".unwanted" / name).write_text(text)
    (home / "logs" / ".unwanted" / "done").symlink_to("gone")
    with capture_logs() as logged:
        assert remove_unwanted(home, archive, at_most=9) == 6
    assert [entry["event"] for entry in logged] == ["logs.note_dropped"] * 3
    (home / "logs" / ".unwanted" / "done").unlink()
    assert remove_unwanted(home, archive, at_most=9) == 0
    assert archive.run_folders("dag_id=d") == ["run_id=s"]


def test_an_unusable_store_is_one_message_that_names_the_option_and_no_secret(archive, monkeypatch):
    def fail(*_, **__):
        raise OSError("no rights with\n hunter22, hunter22again")

    hidden = LogArchive(archive.url, {"key": {"token": ["hunter22", "hunter22again"]}})
    monkeypatch.setattr(hidden._fs, "info", fail)
    with pytest.raises(LogStoreUnavailable) as caught:
        hidden.size(PATH)
    assert str(caught.value).endswith(": cannot find a log: no rights with ***, ***")
    assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)
    archive.check()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"store": "nosuch://bucket"}, r"log\.store.*: nosuch://: Protocol not known: nosuch"),
        ({"store": "oci://bucket"}, r"log\.store: oci:// needs a package that is missing .*: pip install ocifs"),
        ({"store": "/logs"}, r"log\.store: must be a URL such as s3://BUCKET/FOLDER"),
        ({"store": "s3://me:secret@bucket"}, r"log\.store: must be a URL .*; secrets are in log\.store_options"),
        ({"store_options": "[1]"}, r"log\.store_options: must be a JSON object"),
        ({"keep_local": 0}, r"log\.keep_local: Expected `float` >= 300"),
    ],
)
def test_a_wrong_store_is_one_message_that_names_the_option_and_the_package(settings, problem):
    with pytest.raises(SettingsError, match=problem) as caught:
        archive_of(LogSettings(**settings))
    assert "secret@" not in str(caught.value)
    assert "hunter22" not in repr(LogSettings(store_options='{"key": "hunter22"}'))


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
