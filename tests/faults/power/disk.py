"""A disk that loses unsynced data: the states that a power cut may leave after recorded operations.

A file's content is on the disk once the file was synced, and a name once its folder was: nothing else is promised, so
nothing else is assumed. Unsynced data may be there all the same, in part, in another order, or as zeros.
"""

import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.faults.power.recording import Operation

SECTOR = 512
Change = Callable[[bytearray], None]


@dataclass
class File:
    """A file's content on the disk, and the later operations on it, oldest first."""

    stable: bytes = b""
    pending: list[tuple[int, Operation]] = field(default_factory=list)
    now: bytearray = field(default_factory=bytearray)

    def change(self, one: Operation) -> None:
        # A write that names no place goes to the end: to append is all that is done so.
        place = len(self.now) if one.offset is None else one.offset
        done = one._replace(offset=place)
        _apply(self.now, done)
        self.pending.append((one.ended, done))

    def sync(self, began: int) -> None:
        data = bytearray(self.stable)
        for _, done in (found for found in self.pending if found[0] < began):
            _apply(data, done)
        self.stable = bytes(data)
        self.pending = [found for found in self.pending if found[0] >= began]

    def after_cut(self, chance: Random | None) -> bytes:
        """Return the remaining content: only synced data, or by chance more."""
        if chance is None or not self.pending:
            return self.stable
        way = chance.choice(("nothing", "all", "first", "some", "zeros"))
        data = bytearray(self.stable)
        if way == "zeros":
            # The length is on the disk, and the blocks are not.
            return bytes(data) + bytes(max(0, len(self.now) - len(data)))
        kept = [done for _, done in self.pending]
        if way == "nothing":
            kept = []
        elif way == "first":
            kept = kept[: chance.randint(0, len(kept))]
            if kept:
                kept[-1] = _torn(kept[-1], chance)
        elif way == "some":
            kept = [_torn(done, chance) for done in kept if chance.random() < 0.5]
        for done in kept:
            _apply(data, done)
        return bytes(data)


@dataclass
class Folder:
    """Which names a folder has on the disk, and which changes of names were made since, oldest first."""

    stable: "dict[str, File | Folder]" = field(default_factory=dict)
    pending: "list[tuple[int, dict[str, File | Folder | None]]]" = field(default_factory=list)
    now: "dict[str, File | Folder]" = field(default_factory=dict)

    def change(self, ended: int, names: "dict[str, File | Folder | None]") -> None:
        _rename(self.now, names)
        self.pending.append((ended, names))

    def sync(self, began: int) -> None:
        for _, names in (found for found in self.pending if found[0] < began):
            _rename(self.stable, names)
        self.pending = [found for found in self.pending if found[0] >= began]

    def after_cut(self, chance: Random | None) -> "dict[str, File | Folder]":
        left = dict(self.stable)
        n_kept = chance.choice((0, len(self.pending), chance.randint(0, len(self.pending)))) if chance else 0
        for _, names in self.pending[:n_kept]:
            _rename(left, names)
        return left


class Disk:
    """A folder that is empty at first, and the operations below it.

    Args:
        safe: Folders below it that are on another disk, as it were: operations there are durable at once.
    """

    def __init__(self, root: Path, safe: Iterable[str] = ()) -> None:
        self._root = str(root)
        self._safe = tuple(f"{root}/{name}" for name in safe)
        self.top = Folder()

    def do(self, one: Operation) -> None:
        """Repeat one operation."""
        match one.name:
            case "open":
                self._open(one)
            case "write" | "truncate":
                self._file(one.path).change(one)
            case "sync":
                self._find(one.path).sync(one.began)
            case "mkdir":
                self._link(one, one.path, Folder())
            case "rename":
                moved = self._find(one.path)
                assert posixpath.dirname(one.path) == posixpath.dirname(one.target), one
                names = {posixpath.basename(one.path): None, posixpath.basename(one.target): moved}
                self._folder(one.path).change(one.ended, names)
            case "link":
                self._link(one, one.target, self._find(one.path))
            case "unlink" | "rmdir":
                self._folder(one.path).change(one.ended, {posixpath.basename(one.path): None})
            case _:
                raise AssertionError(f"the effect of this on a disk is not known: {one}")
        if one.path.startswith(self._safe):
            self._folder(one.path).sync(one.ended + 1)
            found = self._folder(one.path).now.get(posixpath.basename(one.path))
            if found is not None:
                found.sync(one.ended + 1)

    def write_out(self, target: Path, chance: Random | None, folder: Folder | None = None) -> None:
        """Write a state that a power cut at this moment may leave; None for chance: only synced data."""
        target.mkdir(mode=0o700)
        for name, found in (folder or self.top).after_cut(chance).items():
            if isinstance(found, Folder):
                self.write_out(target / name, chance, found)
            else:
                (target / name).touch(mode=0o600)
                (target / name).write_bytes(found.after_cut(chance))

    def files(self, folder: Folder | None = None, path: str = "") -> dict[str, bytes]:
        """Return the content of every file without a power cut, by its path."""
        found: dict[str, bytes] = {}
        for name, one in (folder or self.top).now.items():
            below = f"{path}{name}"
            found |= self.files(one, f"{below}/") if isinstance(one, Folder) else {below: bytes(one.now)}
        return found

    def _open(self, one: Operation) -> None:
        name = posixpath.basename(one.path)
        folder = self._folder(one.path)
        if name not in folder.now:
            folder.change(one.ended, {name: File()})
        elif "O_TRUNC" in one.flags:
            self._file(one.path).change(one._replace(name="truncate", offset=0))

    def _link(self, one: Operation, path: str, found: File | Folder) -> None:
        self._folder(path).change(one.ended, {posixpath.basename(path): found})

    def _folder(self, path: str) -> Folder:
        found = self._find(posixpath.dirname(path))
        assert isinstance(found, Folder), path
        return found

    def _file(self, path: str) -> File:
        found = self._find(path)
        assert isinstance(found, File), path
        return found

    def _find(self, path: str) -> File | Folder:
        found: File | Folder = self.top
        for name in path.removeprefix(self._root).strip("/").split("/") if path != self._root else ():
            assert isinstance(found, Folder), path
            found = found.now[name]
        return found


def _rename(names: "dict[str, File | Folder]", changed: "dict[str, File | Folder | None]") -> None:
    for name, found in changed.items():
        if found is None:
            names.pop(name, None)
        else:
            names[name] = found


def _apply(data: bytearray, done: Operation) -> None:
    place = done.offset or 0
    if done.name == "truncate":
        data[:] = data[:place] + bytes(max(0, place - len(data)))
        return
    data.extend(bytes(max(0, place - len(data))))
    data[place : place + len(done.data)] = done.data


def _torn(done: Operation, chance: Random) -> Operation:
    """Return the first sectors of a write."""
    if done.name != "write" or chance.random() < 0.5:
        return done
    n_sectors = len(done.data) // SECTOR
    return done._replace(data=done.data[: SECTOR * chance.randint(0, n_sectors)])
