"""Scratch folders of parses: a killed process leaves one, and one in use is never removed."""

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
