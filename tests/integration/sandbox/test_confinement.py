"""The confinement of a DAG file while it is parsed: refused and allowed actions."""

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from sandbox.confinement import seccomp
from tests.integration.sandbox.conftest import Parser

NUMBERS = {"x86_64": seccomp.X86_64, "aarch64": seccomp.AARCH64}[os.uname().machine]

CALLS = f"""
numbers = {NUMBERS!r}
parent = os.getppid()
attempt("udp socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
attempt("unix socket", lambda: socket.socket(socket.AF_UNIX))
attempt("netlink socket", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("datagram pair", lambda: socket.socketpair(type=socket.SOCK_DGRAM))
attempt("bind a pair", lambda: socket.socketpair()[0].bind("x"))
attempt("chown", lambda: os.chown(__file__, os.getuid(), os.getgid()))
attempt("setxattr", lambda: os.setxattr(__file__, "user.x", b""))
attempt("truncate", lambda: os.truncate(__file__, 0))
attempt("open for ioctls alone", lambda: os.open(__file__, 3))
attempt("hide memory", lambda: call(numbers["prctl"], 4, 0, 0, 0, 0))
attempt("mknod", lambda: os.mknod("fifo", 0o10600))
attempt("limits of the parent", lambda: resource.prlimit(parent, resource.RLIMIT_CORE, (0, 0)))
attempt("priority of the parent", lambda: os.setpriority(os.PRIO_PROCESS, parent, 19))
attempt("priority of the user", lambda: os.setpriority(os.PRIO_USER, 0, 19))
attempt("processors of the parent", lambda: os.sched_setaffinity(parent, {{0}}))
attempt("signal to the parent", lambda: os.kill(parent, 0))
attempt("signal to init", lambda: os.kill(1, 0))
attempt("new session", os.setsid)
attempt("new group", lambda: os.setpgid(0, 0))
attempt("life after the parent", lambda: call(numbers["prctl"], 1, 0))
attempt("user namespace", lambda: call(numbers["unshare"], 0x10000000))
attempt("child in a user namespace", lambda: call(numbers["clone"], 0x10000000 | 17, 0, 0, 0, 0))
attempt("clone3", lambda: call(numbers["clone3"], 0, 0))
for name in ("ptrace", "process_vm_readv", "mount", "setns", "chroot", "io_uring_setup", "bpf", "perf_event_open",
             "userfaultfd", "keyctl", "open_by_handle_at", "pidfd_getfd", "shmget", "mq_open", "personality", "reboot"):
    attempt(name, lambda: call(numbers[name], 0, 0, 0, 0, 0))
attempt("unheard of", lambda: call({seccomp.LAST_KNOWN} + 1))
"""


@pytest.fixture(params=["process", "server"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_system_calls_that_reach_beyond_the_parse_are_refused(parse: Parser) -> None:
    outcomes = parse.outcomes(CALLS)
    assert {name for name, outcome in outcomes.items() if outcome == "ENOSYS"} == {"clone3", "unheard of"}
    assert {name for name, outcome in outcomes.items() if outcome not in ("EPERM", "ENOSYS")} == set()
    assert len(outcomes) == 41


def test_files_keep_their_modes_and_times_and_copies_of_them_succeed(parse: Parser) -> None:
    outcomes = parse.outcomes(
        """
        import shutil, subprocess, sys
        from pathlib import Path
        before = os.stat(__file__)
        attempt("chmod", lambda: os.chmod(__file__, 0o777))
        attempt("chmod of an open file", lambda: os.fchmod(os.open(__file__, os.O_RDONLY), 0o777))
        attempt("utime", lambda: os.utime(__file__, (1, 1)))
        attempt("copy", lambda: shutil.copy2(__file__, "copied.py"))
        attempt("copy a folder", lambda: shutil.copytree(os.path.dirname(__file__), "folder"))
        attempt("touch", lambda: Path("copied.py").touch())
        attempt("touch a new file", lambda: [Path("new").touch(), Path("new").read_bytes()])
        again = "import shutil; shutil.copy2('copied.py', 'again.py')"
        attempt("copy by a program", lambda: subprocess.run([sys.executable, "-c", again], check=True))
        after = os.stat(__file__)
        assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
        assert Path("copied.py").read_bytes() == Path("again.py").read_bytes() == Path(__file__).read_bytes()
        """
    )
    assert set(outcomes.values()) == {"done"}, outcomes
    assert len(outcomes) == 8


def test_files_outside_are_neither_read_nor_written(parse: Parser, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "dags" / "link").symlink_to(tmp_path / "secret")
    outcomes = parse.outcomes(
        f"""
        from pathlib import Path
        folder = Path({str(tmp_path)!r})
        attempt("a file beside the DAG folder", (folder / "secret").read_bytes)
        attempt("the same by a link", (folder / "dags" / "link").read_bytes)
        attempt("list the folder above", lambda: os.listdir(folder))
        attempt("shadow", Path("/etc/shadow").read_bytes)
        attempt("list processes", lambda: os.listdir("/proc"))
        attempt("the parent's environment", Path("/proc", str(os.getppid()), "environ").read_bytes)
        attempt("its own memory", lambda: open("/proc/self/mem", "rb"))
        attempt("the other parses", lambda: os.listdir(folder / "scratch"))
        attempt("write beside the DAG", lambda: open(folder / "dags" / "new.py", "w"))
        attempt("overwrite the DAG", lambda: open(__file__, "a"))
        attempt("remove the DAG", lambda: os.unlink(__file__))
        attempt("rename the DAG", lambda: os.rename(__file__, "dag.py"))
        attempt("write to /tmp", lambda: open("/tmp/asynsched-was-here", "w"))
        attempt("write to shared memory", lambda: open("/dev/shm/asynsched-was-here", "w"))
        """
    )
    assert set(outcomes.values()) == {"EACCES"} | ({"EXDEV"} & set(outcomes.values())), outcomes
    assert len(outcomes) == 14


def test_home_is_hidden_even_inside_the_dag_folder(parse: Parser) -> None:
    parse.write("secret", "project/.asynsched/asynsched.db")
    parse.write("visible", "project/data.csv")
    parse.write("x = 1", "helper.py")
    home = parse.dags / "project" / ".asynsched"
    outcomes = parse.outcomes(
        f"""
        import helper
        attempt("home", lambda: open({str(home / "asynsched.db")!r}))
        attempt("beside the home", lambda: open({str(parse.dags / "project" / "data.csv")!r}))
        """,
        hidden=[str(home)],
        readable=[str(home), str(home / "asynsched.db")],
    )
    assert outcomes == {"home": "EACCES", "beside the home": "done"}


def test_dag_folder_inside_the_home_is_read(parse: Parser, tmp_path: Path) -> None:
    (tmp_path / "asynsched.db").write_text("secret")
    outcomes = parse.outcomes(
        f"""
        attempt("own file", lambda: open(__file__))
        attempt("home", lambda: open({str(tmp_path / "asynsched.db")!r}))
        """,
        hidden=[str(tmp_path)],
    )
    assert outcomes == {"own file": "done", "home": "EACCES"}


def test_readable_setting_opens_a_folder_for_reading_only(parse: Parser, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "tables.csv").write_text("a,b")
    outcomes = parse.outcomes(
        f"""
        attempt("read", lambda: open({str(tmp_path / "shared" / "tables.csv")!r}))
        attempt("write", lambda: open({str(tmp_path / "shared" / "new.csv")!r}, "w"))
        """,
        readable=[str(tmp_path / "shared")],
    )
    assert outcomes == {"read": "done", "write": "EACCES"}


def test_writable_setting_opens_folders_and_lets_locks_be_made(parse: Parser, tmp_path: Path) -> None:
    shared, around = tmp_path / "shared", tmp_path / "around"
    home = around / "home"
    for folder in (shared, home):
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    outcomes = parse.outcomes(
        f"""
        from multiprocessing import RLock
        attempt("write", lambda: open({str(shared / "new.csv")!r}, "w"))
        attempt("read again", lambda: open({str(shared / "new.csv")!r}))
        attempt("lock", RLock)
        attempt("home", lambda: open({str(home / "new.db")!r}, "w"))
        attempt("elsewhere", lambda: open("/tmp/asynsched-was-here", "w"))
        """,
        writable=[str(shared), str(around), "/dev/shm"],
        hidden=[str(home)],
    )
    assert outcomes == {"write": "done", "read again": "done", "lock": "done", "home": "EACCES", "elsewhere": "EACCES"}


def test_network_setting_lets_a_parse_connect_and_nothing_more(parse: Parser) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server, closing(socket.socket(socket.AF_UNIX)) as unix:
        path = str(parse.dags / "socket")
        unix.bind(path)
        unix.listen()
        text = f"""
            attempt("connect", lambda: socket.create_connection(("localhost", {server.getsockname()[1]}), 5))
            attempt("names of services", lambda: socket.getaddrinfo("127.0.0.1", "http"))
            attempt("udp", lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)))
            attempt("serve", lambda: socket.create_server(("127.0.0.1", 0)))
            attempt("a socket of this machine", lambda: socket.socket(socket.AF_UNIX).connect({path!r}))
            """
        allowed, refused = parse.outcomes(text, network=True), parse.outcomes(text)
    assert {name for name, outcome in allowed.items() if outcome == "done"} == {"connect", "names of services", "udp"}
    assert {name for name, outcome in refused.items() if outcome == "done"} == {"names of services"}


def test_a_link_out_of_the_folder_is_parsed_where_a_parse_may_read(parse_once: Parser, tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "etl.py").write_text("print(__file__)\nthe_word_is_mum")
    (parse_once.dags / "repo").symlink_to(tmp_path / "checkout")
    (parse_once.dags / "alone.py").symlink_to("repo/etl.py")
    for name, link, target in (("repo/etl.py", "repo", "checkout"), ("alone.py", "alone.py", "checkout/etl.py")):
        refused = f"{name}: cannot be read: {link} is a link to {tmp_path / target}, "
        error = parse_once.file(name).error
        assert error.kind == "unreadable"
        assert error.message.startswith(f"{refused}out of the DAG folder")
        assert error.message.endswith(f"add {tmp_path / target}, or a folder that it is in, to parse.readable")
        told = parse_once.file(name, readable=[str(tmp_path / target)])
        assert (told.error.kind, told.report.output.split()) == ("exception", [str(parse_once.dags / name)])
    told = parse_once.file("alone.py", readable=[str(tmp_path)], hidden=[str(tmp_path / "checkout")])
    assert told.error.message == f"{refused}in the scheduler's home, which no parse may read"


def test_dag_file_behind_links_inside_the_folder_is_parsed(parse_once: Parser) -> None:
    dags = parse_once.dags
    parse_once.write("print(__file__)", "..2026_11_22/etl.py")
    (dags / "..data").symlink_to("..2026_11_22")
    (dags / "etl.py").symlink_to("..data/etl.py")
    (dags / ".asynsched").mkdir()
    for hidden in ([], [str(dags / ".asynsched")]):
        assert parse_once.file("etl.py", hidden=hidden).lines == [str(dags / "etl.py")]


def test_secrets_of_the_scheduler_are_not_even_in_memory(parse: Parser) -> None:
    parse.env = {"ASYNSCHED_DATABASE": "postgresql://u:hunter" + "2@db/x", "OTHER": "x" * 40, "AIRFLOW_VAR_A": "1"}
    parsed = parse(
        """
        import ctypes, os
        print(sorted(name for name in os.environ if name not in ("LANG", "PATH", "TZ") and not name.startswith("LC_")))
        for line in open("/proc/self/maps"):
            if "[stack]" in line or "[heap]" in line:
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                print(line.split()[-1], bytes(reversed(b"@2retnuh")) in ctypes.string_at(start, end - start))
        """
    )
    names, *found = parsed.lines
    assert "ASYNSCHED" not in names
    assert "OTHER" not in names
    assert "AIRFLOW_VAR_A" in names
    assert set(found) == {"[heap] False", "[stack] False"}  # a heap may be several regions


def test_report_says_what_was_enforced(parse: Parser) -> None:
    enforced = parse("").report.confinement
    assert enforced[0].startswith("landlock ")
    assert enforced[1:3] == ("seccomp", "limits")
    assert ("own user" in enforced) == parse.as_root


def test_confinement_can_be_turned_off_for_debugging(parse: Parser, tmp_path: Path) -> None:
    (tmp_path / "open").write_text("x")
    parsed = parse(f"print(open({str(tmp_path / 'open')!r}).read())", confinement="off")
    assert parsed.lines == ["x"]
    assert parsed.report.confinement == ()


def test_root_is_left_behind(parse: Parser) -> None:
    parsed = parse(
        """
        import os
        print(os.getuid() == os.geteuid() != 0, os.getgroups() == [] or os.getuid() == 54321)
        print([line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapBnd"))])
        """
    )
    assert parsed.lines[0] == "True True"
    if parse.as_root:
        assert parsed.lines[1] == "['0000000000000004', '0000000000000004']"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of root's")
def test_programs_in_a_folder_of_roots_are_found_by_a_parse_of_root(parse: Parser) -> None:
    program = parse.dags / "private" / "tool"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    program.parent.chmod(0o700)
    parsed = parse(f"import shutil\nprint(shutil.which('tool', path={str(program.parent)!r}) is not None)")
    assert parsed.lines == ["True"]


@pytest.mark.parametrize("statement", ["subprocess.run(['true'], check=True)", "os.fork() or os._exit(0)"])
def test_children_may_be_started_where_their_number_is_limited(statement: str, parse: Parser) -> None:
    assert parse(f"import os, subprocess\n{statement}\nprint('ok')").lines == ["ok"]
