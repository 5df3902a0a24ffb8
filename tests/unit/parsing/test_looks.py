"""Looks at files: whatever a file contains, the scheduler goes on."""

import bz2
import zipfile

import pytest

from asynsched.parsing.looks import look_at

TEXTS = {
    "a codec that is none of texts": b"# coding: rot13\nsebz nflapfpurq vzcbeg QNT\n",
    "a codec of bytes": b"# coding: hex\n00\n",
    "no codec": b"# coding: undefined\nfrom asynsched import DAG\n",
    "an unknown codec": b"# coding: nothing-of-that-name\n",
    "bytes that are no text": b"\xff\xfe\x00\xd8",
}


@pytest.mark.parametrize("data", TEXTS.values(), ids=TEXTS)
def test_a_file_that_cannot_be_decoded_is_a_file_like_any_other(tmp_path, data):
    (tmp_path / "a.py").write_bytes(data)
    look = look_at(tmp_path, "a.py")
    assert look is not None
    assert look.error is None


def test_an_archive_that_is_damaged_anywhere_is_left_to_its_parse(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.py", "x = 1\n" * 50)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert look_at(tmp_path, "a.zip") is not None


def test_an_archive_that_could_fill_the_memory_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(bz2, "BZ2Decompressor", None)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.py", bytes(10**6))
    look = look_at(tmp_path, "a.zip")
    assert look is not None
    assert (look.error, look.mentions_dag) == (None, True)
