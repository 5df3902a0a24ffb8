"""A power cut at any moment: promises are kept, and nothing starts twice.

`python -m tests.faults.power` makes many more cuts. The recording differs from run to run, as processes do.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults.power.cuts import Life, some_cuts
from tests.faults.power.disk import Disk
from tests.faults.power.recording import Operation, why_not
from tests.support.missing import skip_outside_ci

N_CUTS = 4
ROOT = Path("/site")


@pytest.mark.timeout(300)
def test_a_power_cut_loses_nothing_that_was_promised_and_repeats_no_start(tmp_path):
    if obstacle := why_not():
        if os.geteuid() != 0:
            pytest.skip(obstacle)
        skip_outside_ci(obstacle)
    life = Life.record(tmp_path / "site")
    assert life.unlike_the_folder() == {}, "the recording has missed something"
    wrong = {str(cut): found for cut in some_cuts(life, N_CUTS, Random(1)) if (found := list(cut.problems(life)))}
    assert wrong == {}


def operations(*done: str) -> Iterator[Operation]:
    """Return operations in the folder ROOT that are told as `write a/b text`, `rename a/b a/c`, `sync a`, …"""
    for number, words in enumerate(line.split() for line in done):
        name, path = words[0], str(ROOT / words[1]) if words[1] != "." else str(ROOT)
        if name == "write":
            yield Operation(number, number, name, path, words[2].encode())
        else:
            yield Operation(number, number, name, path, target=str(ROOT / words[2]) if words[2:] else "")


MADE = ("mkdir a", "sync .", "open a/b", "sync a")


@pytest.mark.parametrize(
    ("done", "least", "most"),
    [
        (["mkdir a"], {}, {}),
        ([*MADE], {"a/b": b""}, {"a/b": b""}),
        ([*MADE, "write a/b old"], {"a/b": b""}, {"a/b": b"old"}),
        ([*MADE, "write a/b old", "sync a/b", "write a/b new"], {"a/b": b"old"}, {"a/b": b"oldnew"}),
        ([*MADE, "open a/c", "write a/c new", "sync a/c"], {"a/b": b""}, {"a/b": b"", "a/c": b"new"}),
        ([*MADE, "write a/b x", "sync a/b", "rename a/b a/c"], {"a/b": b"x"}, {"a/c": b"x"}),
        ([*MADE, "write a/b x", "rename a/b a/c", "sync a"], {"a/c": b""}, {"a/c": b"x"}),
        ([*MADE, "write a/b x", "sync a/b", "unlink a/b"], {"a/b": b"x"}, {}),
    ],
)
def test_the_disk_keeps_what_was_synced_and_may_lose_the_rest(tmp_path, done, least, most):
    disk = Disk(ROOT)
    for one in operations(*done):
        disk.do(one)
    assert disk.files() == most
    left = []
    for seed in (None, *range(200)):
        folder = tmp_path / str(seed)
        disk.write_out(folder, None if seed is None else Random(seed))
        left.append({str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()})
    assert left[0] == least
    assert least in left[1:]
    assert most in left[1:]
