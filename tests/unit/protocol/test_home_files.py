"""Scratch folders of parses: a killed process leaves one, and one in use is never removed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from asynsched.protocol.home_files import remove_tree, scratch_folder, sweep

NOBODY = 65534


def test_only_what_nobody_uses_any_more_is_swept(tmp_path):
    with scratch_folder(tmp_path) as used:
        (used / "file").touch()
        left = tmp_path / "parse-0123"
        (left / "inner").mkdir(parents=True)
        (left / "inner").chmod(0)
        other = tmp_path / "other"
        other.mkdir()
        sweep(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([used, other])
        assert (used / "file").exists()
    assert list(tmp_path.iterdir()) == [other]


@contextmanager
def as_a_user() -> Iterator[Path]:
    """Give an empty folder of a user to whom permissions matter, and be that user."""
    with TemporaryDirectory() as folder:
        if os.geteuid() != 0:
            yield Path(folder)
            return
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            yield Path(folder)
        finally:
            os.seteuid(0)


def test_folders_that_nobody_may_write_or_read_are_removed_at_any_depth():
    with as_a_user() as home:
        deepest = home / "parse-0123" / "package" / "cache" / "deeper"
        deepest.mkdir(parents=True)
        (deepest / "file").touch()
        for folder, mode in ((deepest, 0o000), (deepest.parent, 0o555), (deepest.parents[1], 0o500)):
            folder.chmod(mode)
        remove_tree(home / "parse-0123")
        assert list(home.iterdir()) == []


def test_folders_that_are_nested_without_end_are_removed(tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    home = tmp_path / "home"
    home.mkdir()
    with scratch_folder(home) as used:
        left = home / "parse-0123"
        left.mkdir()
        for folder in (used, left):
            monkeypatch.chdir(folder)
            Path("link").symlink_to(outside)
            for _ in range(3_000):
                Path("deeper").mkdir()
                os.chdir("deeper")
            monkeypatch.chdir(tmp_path)
        sweep(home)
        assert not left.exists()
    assert list(home.iterdir()) == []
    assert (outside / "kept").exists()
