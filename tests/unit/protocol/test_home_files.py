"""Scratch folders of parses: a killed process leaves one, and one in use is never removed."""

import os
from pathlib import Path

from asynsched.protocol.home_files import scratch_folder, sweep


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
