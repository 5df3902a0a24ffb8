"""Machines of their own on this one: namespaces that hide a folder, and a cable in user space that leads there.

A cable is two TUN devices, and a thread that carries packets between them: so it delays, loses and cuts as it is told
to on every kernel, while many lack netem. Nothing has a name that could be left behind: the kernel removes a namespace
with its last process, and devices and addresses with this one.
"""

import asyncio
import fcntl
import os
import random
import shutil
import socket
import struct
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal

import pytest

from tests.support.missing import skip_outside_ci

Way = Literal["to machine", "from machine"]
BOTH: frozenset[Way] = frozenset({"to machine", "from machine"})
TUN = Path("/dev/net/tun")
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PACKET_BYTES = 65536
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
TESTING_NETWORK = int(IPv4Address("198.18.0.0"))
"""Of 2**17 addresses, which RFC 2544 reserves for tests of networks."""
ADDRESSES = 16
"""Of one network: this machine's, and those of others."""
HIDE = """
exec 8<"$2" 9<"$3"
mount -t tmpfs -o mode=755 machine "$1"
mount -t tmpfs memory /dev/shm
mkdir -p "$1/tmp" "$2" "$3"
mount --no-canonicalize --bind /proc/self/fd/8 "$2"
mount --no-canonicalize --bind /proc/self/fd/9 "$3"
exec 8<&- 9<&-
echo hidden
exec cat
"""


def require_separation() -> None:
    """Skip a test where there can be no machine of its own. In CI, root's tests fail for a program that is missing."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a machine of its own: network and mount namespaces")
    for program, package in {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}.items():
        if shutil.which(program, path=PATH) is None:
            skip_outside_ci(f"{program} is not installed: apt-get install {package}")
    if not TUN.exists():
        pytest.skip(f"there is no {TUN}, which a cable needs")
    made = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"namespaces cannot be made: {made.stderr.strip()}")


@dataclass(eq=False)
class Cable:
    """A way to a machine and back.

    Attributes:
        address: The machine's.
        delay_seconds: Longest that a packet is under way.
        loss: Share of the packets that get lost.
        cut: The ways on which all packets get lost.
        n_lost: Packets that got lost so far.
    """

    address: str
    chance: random.Random
    delay_seconds: float = 0.0
    loss: float = 0.0
    cut: frozenset[Way] = frozenset()
    n_lost: int = 0
    devices: tuple[int, ...] = ()

    def join(self, loop: asyncio.AbstractEventLoop, here: int, there: int) -> None:
        """Carry packets between two devices."""
        self.devices = (here, there)
        loop.add_reader(here, self._carry, loop, here, there, "to machine")
        loop.add_reader(there, self._carry, loop, there, here, "from machine")

    def _carry(self, loop: asyncio.AbstractEventLoop, source: int, target: int, way: Way) -> None:
        with suppress(OSError):
            packet = os.read(source, PACKET_BYTES)
            if way in self.cut or self.chance.random() < self.loss:
                self.n_lost += 1
            else:
                delay = self.delay_seconds * self.chance.uniform(0.5, 1.0)
                loop.call_later(delay, _write, target, packet)


def _write(device: int, packet: bytes) -> None:
    with suppress(OSError):  # it is down
        os.write(device, packet)


class Network:
    """This machine's end of cables. It has one address, at which all machines reach it."""

    def __init__(self) -> None:
        self._first = _free_addresses()
        self.address = str(IPv4Address(self._first + 1))
        self.cables: list[Cable] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        name, self._anchor = _open_device()  # the address is there before the first cable, for servers
        _ip("address", "add", self.address, "dev", name)
        _ip("link", "set", name, "up")

    def lay(self, pid: int) -> Cable:
        """Lay a cable to the network namespace of a process."""
        cable = Cable(str(IPv4Address(self._first + 2 + len(self.cables))), random.Random(len(self.cables)))
        (here, here_device), (there, there_device) = _open_device(), _open_device()
        _ip("link", "set", there, "netns", str(pid), "name", "cable")
        _ip("address", "add", self.address, "peer", cable.address, "dev", here)
        _ip("link", "set", here, "up")
        _ip("address", "add", cable.address, "peer", self.address, "dev", "cable", pid=pid)
        for device in ("lo", "cable"):
            _ip("link", "set", device, "up", pid=pid)
        self._loop.call_soon_threadsafe(cable.join, self._loop, here_device, there_device)
        self.cables.append(cable)
        return cable

    def close(self) -> None:
        """Remove all cables."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for device in (self._anchor, *(one for cable in self.cables for one in cable.devices)):
            os.close(device)


@dataclass(eq=False)
class Enclosure:
    """The namespaces of a machine.

    Args:
        network: To which its cable leads.
        folder: Empty on this machine, but for a folder `tmp`, and those that are shown.
        shown: Folders below it that this machine has in common with the others.

    Attributes:
        entrance: What precedes a command that is to run on this machine.
    """

    network: Network
    folder: Path
    shown: tuple[Path, Path]
    entrance: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        command = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-ec", HIDE, "sh", self.folder]
        self._holder = subprocess.Popen([*command, *self.shown], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"hidden\n", "the folder cannot be hidden"
        self.cable = self.network.lay(self._holder.pid)
        self.entrance = ("nsenter", "--target", str(self._holder.pid), "--net", "--mount", "--")

    def switch_device(self, state: Literal["up", "down"]) -> None:
        """Switch the machine's network device: while it is down, all that would use it fails at once."""
        _ip("link", "set", "cable", state, pid=self._holder.pid)

    def close(self) -> None:
        """End the process that holds the namespaces, which go with their last process."""
        self._holder.communicate()


def _free_addresses() -> int:
    """Return the first of some addresses that no other test of this machine uses."""
    while True:
        first = TESTING_NETWORK + ADDRESSES * random.SystemRandom().randrange(2**17 // ADDRESSES)
        with socket.socket() as probe:
            try:
                probe.bind((str(IPv4Address(first + 1)), 0))
            except OSError:
                return first


def _open_device() -> tuple[str, int]:
    """Return the name and the descriptor of a new TUN device."""
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    request = struct.pack("16sH22x", b"cable%d", IFF_TUN | IFF_NO_PI)
    return fcntl.ioctl(descriptor, TUNSETIFF, request)[:16].rstrip(b"\0").decode(), descriptor


def _ip(*words: str, pid: int | None = None) -> None:
    """Run `ip`, in the network namespace of a process if one is given."""
    entrance = [] if pid is None else ["nsenter", "--target", str(pid), "--net", "--"]
    done = subprocess.run(
        [*entrance, "ip", *words], env={"PATH": PATH}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
