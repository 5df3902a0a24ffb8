"""Bundles of data files: whole, as a scheduler lists them, and not more than a worker may keep."""

import hashlib
from types import SimpleNamespace

import anyio
import pytest

from asynsched.protocol.worker_messages import DataFile, DataFileList, Proof
from asynsched.worker import bundles
from asynsched.worker.bundles import Bundles
from asynsched.worker.schedulers import Refused, Unreachable


class Folder:
    """A scheduler with these files. `fetched`: which ones it has sent. `changes`: called before each is sent."""

    def __init__(self, **files: bytes) -> None:
        self.files = {name.replace("_", "/"): data for name, data in files.items()}
        self.fetched: list[str] = []
        self.changes = lambda: None

    async def send(self, addresses, path, message, answer):
        assert (path, answer) == ("/files", DataFileList)
        found = [DataFile(name, hashlib.sha256(data).hexdigest()) for name, data in sorted(self.files.items())]
        return DataFileList(tuple(found))

    async def fetch_file(self, ticket, path, start):
        if start == 0:
            self.fetched.append(path)
            self.changes()
        if path not in self.files:
            raise Refused("there is no such file", is_over=False)
        return self.files[path][start : start + bundles.MOST_FILE_BYTES]

    async def insist(self, send):
        return await send()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Files come in parts of three bytes."""
    monkeypatch.setattr(bundles, "MOST_FILE_BYTES", 3)


def ticket(token="one"):
    return SimpleNamespace(token=token, addresses=("http://here",), proof=Proof(token, "secret"))


async def test_only_files_that_no_bundle_has_are_fetched(tmp_path):
    folder = Folder(a=b"first", sub_b=b"second")
    kept = Bundles(tmp_path, 1000, folder)
    first = kept.path(await kept.fetch(ticket()))
    folder.files |= {"a": b"changed", "moved": b"second"}
    second = kept.path(await kept.fetch(ticket("two")))
    assert await kept.fetch(ticket("three")) == second.name
    assert folder.fetched == ["a", "sub/b", "a"]
    assert [(first / name).read_bytes() for name in ("a", "sub/b")] == [b"first", b"second"]
    assert [(second / name).read_bytes() for name in ("a", "sub/b", "moved")] == [b"changed", b"second", b"second"]


async def test_a_file_that_changes_while_it_is_fetched_is_fetched_again(tmp_path):
    folder = Folder(a=b"first")

    def change_once():
        folder.files["a"] = b"second"
        folder.changes = lambda: None

    folder.changes = change_once
    kept = Bundles(tmp_path, 1000, folder)
    assert (kept.path(await kept.fetch(ticket())) / "a").read_bytes() == b"second"


async def test_a_file_that_is_removed_while_it_is_fetched_is_not_missed(tmp_path):
    folder = Folder(a=b"first", b=b"second")
    folder.changes = lambda: folder.files.pop("b", None)
    kept = Bundles(tmp_path, 1000, folder)
    path = kept.path(await kept.fetch(ticket()))
    assert [file.name for file in path.iterdir()] == ["a"]


async def test_a_try_whose_schedulers_are_away_does_not_hold_up_others(tmp_path):
    away, here = Folder(a=b"first"), Folder(b=b"second")

    class Both:
        """The schedulers of two installations; those of one do not answer."""

        async def send(self, addresses, *others):
            return await (away if addresses == ("http://away",) else here).send(addresses, *others)

        async def fetch_file(self, ticket, path, start):
            if ticket.addresses == ("http://away",):
                raise Unreachable
            return await here.fetch_file(ticket, path, start)

        async def insist(self, send):
            while True:
                try:
                    return await send()
                except Unreachable:
                    waiting.set()
                    await anyio.sleep_forever()

    kept, waiting = Bundles(tmp_path, 1000, Both()), anyio.Event()
    lost = SimpleNamespace(token="lost", addresses=("http://away",), proof=Proof("lost", "secret"))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kept.fetch, lost)
            await waiting.wait()
            assert (kept.path(await kept.fetch(ticket())) / "b").read_bytes() == b"second"
            tasks.cancel_scope.cancel()


async def test_a_file_that_never_stays_as_it_is_listed_is_named(tmp_path):
    folder = Folder(a=b"0")
    folder.changes = lambda: folder.files.update(a=folder.files["a"] + b"0")
    with pytest.raises(Refused, match="the data file a changes"):
        await Bundles(tmp_path, 1000, folder).fetch(ticket())


async def test_a_bundle_that_was_damaged_while_no_worker_ran_is_made_again(tmp_path):
    folder = Folder(a=b"first")
    kept = Bundles(tmp_path, 1000, folder)
    path = kept.path(await kept.fetch(ticket())) / "a"
    path.chmod(0o600)
    path.write_bytes(b"")
    again = Bundles(tmp_path, 1000, folder)
    assert (again.path(await again.fetch(ticket())) / "a").read_bytes() == b"first"


async def test_bundles_in_use_stay_and_of_the_others_the_least_recently_used_go(tmp_path):
    folder = Folder(a=b"0" * 600)
    kept = Bundles(tmp_path, 1000, folder)
    names = []
    for number in range(4):
        folder.files["a"] = str(number).encode() * 600
        names.append(await kept.fetch(ticket(str(number))))
        if number:
            kept.release(str(number))
    await kept.fetch(ticket("last"))
    assert [kept.path(name).exists() for name in names] == [True, False, True, True]


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../../b"])
async def test_no_file_is_written_outside_of_its_bundle(tmp_path, path):
    folder = Folder()
    folder.files[path] = b"x"
    with pytest.raises(Refused, match="no path of a data file"):
        await Bundles(tmp_path / "bundles", 1000, folder).fetch(ticket())
    assert not (tmp_path / "outside").exists()
