"""The filter's program, run by a small interpreter, as on other machines and on older kernels."""

import errno
import os
import struct

import pytest

from sandbox.confinement import seccomp

MACHINES = {"x86_64": (0xC000003E, seccomp.X86_64), "aarch64": (0xC00000B7, seccomp.AARCH64)}


class Machine:
    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch, pid: int | None = None, **options: object) -> None:
        self.architecture, self.numbers = MACHINES[name]
        names = os.uname()
        faked = os.uname_result((names.sysname, names.nodename, names.release, names.version, name))
        monkeypatch.setattr(os, "uname", lambda: faked)
        rules = (
            seccomp.refusals(**{"may_fork": True, "network": False} | options)
            if pid is None
            else seccomp.signals_to_others(pid)
        )
        assert len({rule.call for rule in rules}) == len(rules), "of two rules for a call, one would be lost"
        self.program = list(struct.iter_unpack("=HBBI", seccomp.assemble(rules)))

    def call(self, name: str | int, *arguments: int, architecture: int | None = None) -> str:
        """Return `ok`, `nothing` for a success without an effect, or the name of the error, of a system call."""
        number = self.numbers[name] if isinstance(name, str) else name
        padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
        data = struct.pack("=IIQ6Q", number, architecture or self.architecture, 0, *padded)
        at, value = 0, 0
        while True:
            code, when_true, when_false, operand = self.program[at]
            at += 1
            match code:
                case 0x20:
                    value = struct.unpack_from("=I", data, operand)[0]
                case 0x05:
                    at += operand
                case 0x54:
                    value &= operand
                case 0x15:
                    at += when_true if value == operand else when_false
                case 0x25:
                    at += when_true if value > operand else when_false
                case 0x35:
                    at += when_true if value >= operand else when_false
                case 0x06:
                    return "ok" if operand == 0x7FFF0000 else errno.errorcode.get(operand & 0xFFFF, "nothing")


@pytest.fixture(params=MACHINES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_numbers_are_distinct_and_known(name: str) -> None:
    numbers = MACHINES[name][1]
    assert len(set(numbers.values())) == len(numbers)
    assert max(numbers.values()) == seccomp.LAST_KNOWN


def test_ordinary_work_is_allowed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(name, monkeypatch)
    read = {"x86_64": 0, "aarch64": 63}[name]
    assert machine.call(read, 3, 0x7FFF, 100) == "ok"
    assert machine.call("clone", 0x3D0F00) == "ok"
    assert machine.call("socketpair", 1, 1 | 0o2000000) == "ok"
    assert machine.call("prlimit64", 0, 7, 0x7FFF_0000_0000) == "ok"
    assert machine.call("prlimit64", 99, 7, 0) == "ok"
    assert machine.call("kill", 99, 9) == "ok"
    assert machine.call("ioctl", 1, 0x5401) == "ok"
    assert machine.call("fcntl", 1, 1030, 0) == "ok"
    assert machine.call("openat", 0, 0, os.O_WRONLY | os.O_TRUNC) == "ok"
    assert machine.call("openat", 0, 0, os.O_RDWR | os.O_TRUNC) == "ok"
    assert machine.call("openat", 0, 0, os.O_RDONLY | os.O_CLOEXEC) == "ok"
    assert machine.call("sendto", 3, 1, 1, 0, 0) == "ok"


def test_pointers_are_compared_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(name, monkeypatch)
    assert machine.call("prlimit64", 99, 7, 1 << 32) == "EPERM"
    assert machine.call("sendto", 3, 1, 1, 0, 1 << 32) == "EPERM"


def test_other_architectures_and_newer_calls_do_not_exist(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(name, monkeypatch)
    assert machine.call(1, architecture=0x40000003) == "ENOSYS"
    assert machine.call(seccomp.LAST_KNOWN + 1) == "ENOSYS"
    assert machine.call(0x40000000 | 1) == "ENOSYS"


def test_without_forks_only_threads_are_cloned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(name, monkeypatch, may_fork=False)
    assert machine.call("clone", 17) == "EPERM"
    assert machine.call("clone", 0x3D0F00) == "ok"
    assert machine.call("clone", 0x3D0F00 | 0x10000000) == "EPERM"


def test_a_network_is_connections_by_tcp_and_udp_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(name, monkeypatch, network=True)
    unix, ipv4, netlink, ipv6 = 1, 2, 16, 10
    stream, datagram, raw, close_on_exec = 1, 2, 3, 0o2000000
    for family in (ipv4, ipv6):
        assert machine.call("socket", family, stream | close_on_exec, 0) == "ok"
        assert machine.call("socket", family, datagram, 17) == "ok"
        assert machine.call("socket", family, raw, 1) == "EPERM"
    for family in (unix, netlink):
        assert machine.call("socket", family, stream, 0) == "EPERM"
        assert machine.call("socketpair", family, datagram) == "EPERM"
    assert machine.call("connect", 3, 1, 16) == "ok"
    assert machine.call("sendto", 3, 1, 1, 0, 1) == "ok"
    for call in ("bind", "listen", "accept", "accept4"):
        assert machine.call(call, 3, 1, 16) == "EPERM", call


def test_every_call_of_the_table_is_decided_as_its_rules_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(name, monkeypatch)
    rules = {rule.call: rule for rule in seccomp.refusals(may_fork=True, network=False)}
    for call in machine.numbers:
        if call in rules and not rules[call].when:
            assert machine.call(call) == errno.errorcode.get(rules[call].error, "nothing"), call
        elif call not in rules:
            assert machine.call(call) == "ok", call
    for number in set(range(seccomp.LAST_KNOWN)).difference(machine.numbers.values()):
        assert machine.call(number) == "ok", number


def test_modes_and_times_stay_and_only_the_present_time_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(name, monkeypatch)
    assert {machine.call(call, 3, 0o777) for call in ("fchmod", "fchmodat", "fchmodat2")} == {"nothing"}
    for times in (0x7FFF00000000, 0xFFFF):
        assert machine.call("utimensat", 3, 1, times) == "nothing"
    assert machine.call("utimensat", 3, 1, 0) == "EPERM"


def test_files_are_opened_to_read_or_write_and_emptied_only_to_write(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(name, monkeypatch)
    for flags in (3, 3 | os.O_TRUNC, 3 | os.O_CLOEXEC, os.O_RDONLY | os.O_TRUNC, os.O_TRUNC | os.O_CREAT):
        assert machine.call("openat", 0, 0, flags) == "EPERM", flags
    assert machine.call("truncate", 1, 0) == "EPERM"
    assert machine.call("openat2", 1, 0) == "ENOSYS"


def test_no_signal_is_had_of_a_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(name, monkeypatch)
    set_owner, set_signal, set_owner_ex, set_lease, notify, set_delegation = 8, 10, 15, 1024, 1026, 1040
    for command in (set_owner, set_signal, set_owner_ex, set_lease, notify, set_delegation):
        assert machine.call("fcntl", 3, command, 99) == "EPERM", command
    set_owner, set_group, fake_input, signal_terminal = 0x8901, 0x8902, 0x5412, 0x40045436
    for command in (set_owner, set_group, fake_input, signal_terminal, set_owner | 1 << 40):
        assert machine.call("ioctl", 3, command, 99) == "EPERM", command


def test_without_scopes_of_landlock_a_parse_signals_only_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(name, monkeypatch, pid=42)
    assert machine.call("kill", 42, 9) == "ok"
    assert machine.call("tgkill", 42, 43, 6) == "ok"
    for call in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "tkill", "pidfd_send_signal"):
        for pid in (43, 0, -1 & 0xFFFFFFFF, -42 & 0xFFFFFFFF):
            assert machine.call(call, pid, 0) == "EPERM", call
    assert machine.call("openat", 0, 0, 3) == "ok", "that is the other program's"
