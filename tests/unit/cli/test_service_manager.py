"""systemd gets the messages of sd_notify(3), at the address that it names, and only true ones."""

import socket
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from asynsched.cli.serving import ServiceManager
from asynsched.clock import VirtualClock
from asynsched.errors import NotServing
from asynsched.health import Health, LoopHealth
from asynsched.settings import Settings
from asynsched.simulation.simulation import run_virtual

OURS = 42


@pytest.mark.parametrize("is_abstract", [False, True])
def test_lines_arrive_as_one_datagram_and_tasks_do_not_learn_of_the_socket(tmp_path, is_abstract):
    address = f"\0{tmp_path}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(30)
        environment = {"NOTIFY_SOCKET": address.replace("\0", "@"), "WATCHDOG_USEC": "9000000", "HOME": "/"}
        manager = ServiceManager(environment, OURS)
        manager.tell("READY=1", "STATUS=Serving")
        assert systemd.recv(1000) == b"READY=1\nSTATUS=Serving"
        assert manager.watchdog == timedelta(seconds=9)
        assert environment == {"HOME": "/"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "9000000"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "9000000", "WATCHDOG_PID": "43"},
    ],
)
def test_no_sign_of_life_is_sent_unasked_and_a_lost_socket_does_no_harm(environment):
    manager = ServiceManager(environment, OURS)
    manager.tell("READY=1")
    assert manager.watchdog is None


def test_a_stuck_loop_withholds_the_sign_of_life_and_is_named_once(tmp_path):
    class Heard(ServiceManager):
        def tell(self, *lines: str) -> None:
            heard.extend(lines)

    def health(status: str, **loops: bool) -> Health:
        told = tuple(LoopHealth(name, 1.0, is_stuck=is_stuck) for name, is_stuck in loops.items())
        return Health(status, "me", "1", None, None, None, told)

    heard: list[str] = []
    manager = Heard({}, OURS)
    is_stuck = False
    for status, evaluator in [("healthy", False), ("waiting", False), ("stuck", True), ("stuck", True)]:
        is_stuck = manager._report(health(status, evaluator=evaluator, lease=False), is_stuck)
    assert heard == ["WATCHDOG=1", "WATCHDOG=1", "STATUS=Stuck: evaluator"]


def test_signs_of_life_come_three_times_as_often_as_needed_until_the_stop():
    class Heard(ServiceManager):
        def tell(self, *lines: str) -> None:
            heard.append(lines[0])

    class Serving:
        """A stand-in for a scheduler, which serves for 25 seconds."""

        settings = Settings()
        started = anyio.Event()

        def health(self) -> Health:
            if clock.monotonic() >= 25:
                raise NotServing("it has stopped")
            return Health("healthy", "me", "1", None, None, None, ())

    heard: list[str] = []
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    manager = Heard({"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "30000000"}, OURS)

    async def live() -> None:
        scheduler = Serving()
        scheduler.started.set()
        await manager.accompany(scheduler, clock)

    run_virtual(live, clock)
    assert heard == ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"]
    assert clock.monotonic() == 30
