"""When there is a full zygote, who serves while there is none, and when another one is started.

Its processes are real. What they load, and how they serve, is the test's.
"""

import errno
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from asynsched.protocol.frames import FrameReader
from asynsched.protocol.messages import CodeVersion, SourceRef
from sandbox.supervision import full_zygote
from sandbox.supervision.full_zygote import LOAD_SECONDS, PAUSE_SECONDS, READY, FullZygote, FullZygoteGoneError
from sandbox.template import Born, Loaded
from sandbox.zygote import TEMPLATE, Errand, Zygote, ZygoteStart

# A worker of pytest-xdist has a thread that waits for messages; the forks do not use what it may hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

PATIENCE_SECONDS = 30
NO_PARENT = -1
NOT_PLAIN = CodeVersion("v", "/dags", (SourceRef("a.py", "a", "whose text is not there"),))


class Process:
    """A full zygote, as others see it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def has_ended(self, seconds: float = 0) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def close(self) -> None:
        if not self.has_ended():
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED)
        os.close(self._descriptor)


class Place:
    """Where full zygotes are started: what they do, and what the clock says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.load: Callable[[], None] = lambda: None
        self.serve: Callable[[socket.socket], None] = be_ready
        self.errors: list[str] = []
        self._news, self.lifeline = os.pipe()
        self._processes: list[Process] = []
        self._made: list[FullZygote] = []

    def full(self, kind: type[FullZygote] = FullZygote) -> FullZygote:
        self._made.append(kind(self.lifeline, lambda channel: self.serve(channel), lambda: self.now))
        return self._made[-1]

    def load_all(self) -> None:
        """Tell the test of the process, and load. It has kept the lifeline."""
        os.write(self.lifeline, os.getpid().to_bytes(8, "big"))
        self.load()

    def started(self) -> Process:
        """Wait for the next process to be started."""
        assert select.select([self._news], [], [], PATIENCE_SECONDS)[0], "no process was started"
        self._processes.append(Process(int.from_bytes(os.read(self._news, 8), "big")))
        return self._processes[-1]

    def close(self) -> None:
        for process in self._processes:
            process.close()
        for full in self._made:
            if full._channel is not None:
                full._channel.close()
        os.close(self._news)
        os.close(self.lifeline)


def hang() -> None:
    while True:
        signal.pause()


def be_ready(channel: socket.socket) -> None:
    channel.sendall(READY)
    hang()


def be_ready_and_die(channel: socket.socket) -> None:
    channel.sendall(READY)


def die(_channel: socket.socket) -> None:
    pass


def answer(channel: socket.socket) -> None:
    """Serve one request: say which process this is."""
    channel.sendall(READY)
    _, descriptors, _, _ = socket.recv_fds(channel, 1, len(Errand._fields))
    os.write(Errand(*descriptors).channel, b"%d" % os.getpid())
    hang()


@pytest.fixture
def place(monkeypatch) -> Iterator[Place]:
    place = Place()
    monkeypatch.setattr(full_zygote, "warm_fully", place.load_all)
    monkeypatch.setattr(full_zygote.log, "error", lambda text, *values: place.errors.append(text % values))
    yield place
    place.close()


def test_one_that_hangs_while_it_loads_is_waited_for_then_killed_and_tried_again_after_a_pause(place):
    place.load = hang
    full = place.full()
    assert full.is_there()
    first = place.started()
    place.now += LOAD_SECONDS - 1
    assert full.is_there()
    assert not first.has_ended()
    place.now += 1
    assert not full.is_there()
    assert first.has_ended(PATIENCE_SECONDS)
    assert ["it was not ready in time" in error for error in place.errors] == [True]
    place.now += PAUSE_SECONDS - 1
    assert not full.is_there()
    place.now += 1
    assert full.is_there()
    assert not place.started().has_ended()


def test_one_that_is_ready_while_nobody_looks_is_kept_however_long_that_is(place):
    full = place.full()
    assert full.is_there()
    process = place.started()
    assert select.select([full._connected()], [], [], PATIENCE_SECONDS)[0]
    for _ in range(2):
        place.now += 10 * LOAD_SECONDS
        assert full.is_there()
    assert not process.has_ended()
    assert place.errors == []


def test_one_that_cannot_be_forked_is_tried_again_after_a_pause(place, monkeypatch):
    forks = []

    def no_process():
        forks.append(place.now)
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    full, began_at = place.full(), place.now
    with monkeypatch.context() as crowded:
        crowded.setattr(os, "fork", no_process)
        for seconds in (0, PAUSE_SECONDS - 1, PAUSE_SECONDS):
            place.now = began_at + seconds
            assert not full.is_there()
    assert forks == [began_at, began_at + PAUSE_SECONDS]
    assert ["Resource temporarily unavailable" in error for error in place.errors] == [True, True]
    place.now += PAUSE_SECONDS
    assert full.is_there()
    assert not place.started().has_ended()


@pytest.mark.parametrize(("serve", "is_replaced_at_once"), [(be_ready_and_die, True), (die, False)])
def test_one_that_dies_unseen_is_replaced_at_once_if_it_had_said_that_it_is_ready(place, serve, is_replaced_at_once):
    place.serve = serve
    full = place.full()
    assert full.is_there()
    assert place.started().has_ended(PATIENCE_SECONDS)
    with pytest.raises(FullZygoteGoneError):
        full.ask(TEMPLATE, [])
    place.serve = be_ready
    full.lose()
    assert full.is_there() == is_replaced_at_once
    assert len(place.errors) == (not is_replaced_at_once)
    if not is_replaced_at_once:
        place.now += PAUSE_SECONDS
        assert full.is_there()
    assert not place.started().has_ended()


class Keeper:
    """Asks a zygote for processes that load a file that is not plain."""

    def __init__(self, full: FullZygote, lifeline: int, folder: Path) -> None:
        self._channel, self._theirs = socket.socketpair()
        self._code = folder / "code"
        self._code.write_bytes(msgspec.json.encode(NOT_PLAIN))
        # What the zygote itself forks ends at once, for it is no child of its keeper.
        self._zygote = Zygote(ZygoteStart(self._theirs, lifeline, None, folder, NO_PARENT), b"of the test", full)

    def ask(self) -> socket.socket:
        """Have a request served, and return the channel to the process."""
        ours, theirs = socket.socketpair()
        with theirs, self._code.open() as code:
            socket.send_fds(self._channel, [TEMPLATE], [theirs.fileno(), theirs.fileno(), code.fileno()])
        assert self._zygote.serve_one()
        ours.settimeout(PATIENCE_SECONDS)
        return ours

    def close(self) -> None:
        self._channel.close()
        self._theirs.close()


@pytest.fixture
def keeper(place, tmp_path) -> Iterator[Callable[[FullZygote], Keeper]]:
    """A function that makes the keeper of a zygote that has this full one."""
    made: list[Keeper] = []

    def make(full: FullZygote) -> Keeper:
        made.append(Keeper(full, place.lifeline, tmp_path))
        return made[-1]

    yield make
    for keeper in made:
        keeper.close()


def is_born(channel: socket.socket) -> bool:
    """Whether the zygote itself has made the process."""
    [message] = FrameReader(Born | Loaded).feed(channel.recv(4096))
    return isinstance(message, Born)


def test_the_zygote_serves_while_the_full_one_hangs_and_what_that_one_was_asked_for_is_given_up(place, keeper):
    place.load = hang
    keeps = keeper(place.full())
    with keeps.ask() as asked_early:
        process = place.started()
        place.now += LOAD_SECONDS
        with keeps.ask() as asked_late:
            assert is_born(asked_late)
        assert process.has_ended(PATIENCE_SECONDS)
        assert asked_early.recv(1) == b"", "the keeper sees that nothing comes of it"


def test_the_zygote_serves_while_the_full_one_cannot_be_forked(place, keeper, monkeypatch):
    full = place.full()
    keeps = keeper(full)
    fork, n_forks = os.fork, 0

    def fork_but_the_first():
        nonlocal n_forks
        n_forks += 1
        if n_forks == 1:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", fork_but_the_first)
    with keeps.ask() as channel:
        assert is_born(channel)
    place.now += PAUSE_SECONDS
    place.serve = answer
    with keeps.ask() as channel:
        assert channel.recv(32) == b"%d" % place.started().pid


def test_a_request_that_finds_the_full_zygote_dead_is_served_by_the_next_one(place, keeper):
    class DiesUnseen(FullZygote):
        """One whose first process dies between the look whether it is there and the request."""

        def is_there(self) -> bool:
            is_there = super().is_there()
            if place.serve == be_ready_and_die:
                assert place.started().has_ended(PATIENCE_SECONDS)
                place.serve = answer
            return is_there

    place.serve = be_ready_and_die
    keeps = keeper(place.full(DiesUnseen))
    with keeps.ask() as channel:
        assert channel.recv(32) == b"%d" % place.started().pid
