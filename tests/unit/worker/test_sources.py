"""The code that a worker keeps."""

import hashlib
import os

import pytest

from asynsched.worker.sources import SourceCache, WrongSource


def test_a_worker_keeps_verified_code_up_to_a_number_of_bytes(tmp_path):
    texts = [f"x = {n}  # {'é' * 45}" for n in range(4)]
    hashes = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    cache = SourceCache(tmp_path, most_bytes=250)
    assert cache.missing([*hashes, hashes[0]]) == hashes
    for n, (content_hash, text) in enumerate(zip(hashes, texts, strict=True)):
        cache.add(content_hash, text)
        os.utime(tmp_path / f"{content_hash}.py", (n, n))
    assert cache.missing(hashes[:1]) == [], "the first is used again"
    with pytest.raises(WrongSource):
        cache.add(hashes[0], "import evil")
    (tmp_path / f"{hashes[3]}.py").write_text("import evil")
    assert cache.missing(hashes[3:]) == [hashes[3]], "a damaged one is fetched again"
    cache.add(hashes[3], texts[3])
    cache.trim({hashes[1]})
    # Each has about 100 bytes; two fit beside the one in use, and the one that was not used for longest is gone.
    assert cache.missing(hashes) == [hashes[2]]
