"""Files that a power cut leaves as they were said to be, seen from outside; `tests/faults/power` cuts the power."""

import errno
import os
import stat

import pytest

from asynsched.home import make_folder, prepare_home, remember_dags_folder, replace_file, served_dags_folder


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_its_owners_alone_and_those_above_it_are_as_usual(tmp_path):
    usual = tmp_path / "usual"
    usual.mkdir()
    make_folder(tmp_path / "above" / "home")
    make_folder(tmp_path / "above" / "home")
    assert (mode(tmp_path / "above"), mode(tmp_path / "above" / "home")) == (mode(usual), 0o700)


def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it(tmp_path):
    file = tmp_path / "file"
    for data, outlasts in ((b"old", True), (b"new", True), (b"newer", False)):
        replace_file(file, data, outlasts_power_cut=outlasts)
        assert (file.read_bytes(), mode(file), list(tmp_path.iterdir())) == (data, 0o600, [file])


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_a_file_system_without_folder_sync_is_no_error_but_a_bad_disk_is(tmp_path, monkeypatch, code):
    sync = os.fsync

    def sync_files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, "as this file system says")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_files_only)
    if code == errno.EIO:
        with pytest.raises(OSError, match="as this file system says"):
            replace_file(tmp_path / "file", b"text")
    else:
        replace_file(tmp_path / "file", b"text")
        assert (tmp_path / "file").read_bytes() == b"text"


def test_a_full_disk_leaves_the_old_file_and_no_draft_beside_it(tmp_path, monkeypatch):
    file = tmp_path / "file"
    replace_file(file, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no room"):
        replace_file(file, b"new")
    assert (file.read_bytes(), list(tmp_path.iterdir())) == (b"old", [file])


def test_a_name_of_the_served_folder_that_a_power_cut_has_emptied_is_none(tmp_path):
    home = tmp_path / "home"
    prepare_home(home)
    remember_dags_folder(home, tmp_path / "dags")
    assert served_dags_folder(home) == tmp_path / "dags"
    (home / "dags_folder").write_bytes(b"")  # as an older version may have left it
    assert served_dags_folder(home) is None
