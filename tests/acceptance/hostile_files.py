"""The corpus of hostile DAG files, with the message that each author gets. `P` names the victims."""

import io
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox.confinement import seccomp

HEAD = """
import ctypes, fcntl, json, os, resource, signal, socket, struct, sys, time
from asynsched import DAG, EmptyOperator, Param
here = os.path.dirname(os.path.abspath(__file__))
P = json.load(open(os.path.join(here, "victims.json")))
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def kill_by_owner(make_owner):
    mine, other = socket.socketpair()
    make_owner(mine)
    fcntl.fcntl(mine, 10, signal.SIGKILL)  # F_SETSIG
    fcntl.fcntl(mine, fcntl.F_SETFL, fcntl.fcntl(mine, fcntl.F_GETFL) | os.O_ASYNC)
    other.send(b"x")
def refused(action):
    try:
        action()
    except OSError:
        return
    raise SystemExit("this was possible")
"""
CALLS = {"x86_64": seccomp.X86_64, "aarch64": seccomp.AARCH64}[os.uname().machine]


@dataclass(frozen=True)
class Hostile:
    """A file's code, the allowed kinds of its error (none: it is a file like others), and words of the message."""

    text: str
    kinds: tuple[str, ...] = ("exception",)
    words: tuple[str, ...] = ()


def _may_not(text: str, *words: str) -> Hostile:
    return Hostile(text, words=("DAG files are parsed in confinement", *words))


_NETWORK = "they have no network"
_FORBIDDEN = "they may not do this"
_WRITE = "write in a task"
_READ = "parse.readable"
_TIMEOUT = ("timeout",)
_SPENT = ("timeout", "memory", "output")

CORPUS = {
    # Too much of everything.
    "fork_bomb": _may_not("while True: os.fork()", "parse.max_processes"),
    "memory_bomb": Hostile("x = []\nwhile True: x.append(bytearray(10**7))", ("memory",), ("parse.memory_bytes",)),
    "infinite_loop": Hostile("while True: pass", _TIMEOUT, ("parse.import_timeout",)),
    "endless_output": Hostile("while True: print('x' * 10_000)", _TIMEOUT, ("parse.import_timeout",)),
    "a_million_dags": Hostile("for i in range(10**6): globals()[f'd{i}'] = DAG(f'd{i}')", _SPENT, ("parse.",)),
    "a_task_list_of_100_mb": Hostile(
        "with DAG('huge') as d:\n    for i in range(100): EmptyOperator(task_id=f't{i}', doc_md='x' * 10**6)",
        ("memory", "output"), ("parse.",),
    ),
    "deep_json": Hostile(
        "x = []\nfor _ in range(10**5): x = [x]\nd = DAG('deep', params={'p': x})",
        ("serialization",), ("DAG 'deep' cannot be written as JSON", "nested too deeply"),
    ),
    "nan": Hostile("d = DAG('nan', params={'p': float('nan')})", ("serialization",), ("is not JSON", "nan")),
    "lone_surrogates": Hostile(
        "d = DAG('halves', description='\\ud800', doc_md='\\udfff')", ("serialization",),
        ("DAG 'halves' cannot be written as JSON", "surrogates not allowed"),
    ),
    "numbers": Hostile("with DAG('n') as d: EmptyOperator(task_id='t', retries=10**12)", ("dag",), ("at most",)),
    "descriptors_left_open": Hostile("left = [os.dup(1) for _ in range(100)]\nos.fork()\nd = DAG('left_open')", ()),
    # Writing.
    "write_dag_folder": _may_not("open(here + '/new.py', 'w')", _WRITE),
    "write_itself": _may_not("open(__file__, 'a')", _WRITE),
    "write_home": _may_not("open(P['users_home'] + '/was_here', 'w')", _WRITE),
    "write_state": _may_not("open(P['home'] + '/was_here', 'w')", _WRITE),
    "write_tmp": _may_not("open('/tmp/asynsched_was_here', 'w')", _WRITE),
    # Reading.
    "read_database": _may_not("open(P['home'] + '/asynsched.db', 'rb')", _READ),
    "read_key": _may_not("open(P['home'] + '/fernet.key')", _READ),
    "read_other_users_files": _may_not("open('/etc/shadow')", _READ),
    "read_outside_by_a_link": _may_not("open(here + '/link')", _READ),
    "read_environment": _may_not("open(f'/proc/{P[\"scheduler\"]}/environ')", _READ),
    "read_memory": _may_not("open(f'/proc/{P[\"scheduler\"]}/mem', 'rb')", _READ),
    # The network.
    "tcp": _may_not("socket.create_connection(('127.0.0.1', 9))", _NETWORK),
    "udp": _may_not("socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", _NETWORK),
    "unix_socket": _may_not("socket.socket(socket.AF_UNIX).connect(P['home'] + '/bell.sock')", _NETWORK),
    "abstract_socket": _may_not("socket.socket(socket.AF_UNIX).connect('\\0x')", _NETWORK),
    "raw_socket": _may_not("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", _NETWORK),
    "netlink_socket": _may_not("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", _NETWORK),
    "io_uring": _may_not(f"call({CALLS['io_uring_setup']}, 1, 0)", _FORBIDDEN),
    # Others' processes.
    "kill_scheduler": _may_not("os.kill(P['scheduler'], 9)", _FORBIDDEN),
    "kill_parent": _may_not("os.kill(os.getppid(), 9)", _FORBIDDEN),
    "kill_another": _may_not("os.kill(P['victim'], 9)", _FORBIDDEN),
    "kill_everything": Hostile("d = DAG('kills_nobody')\ntry: os.kill(-1, 9)\nexcept OSError: pass", ()),
    "kill_by_owner_of_a_socket": _may_not("kill_by_owner(lambda s: fcntl.fcntl(s, 8, P['victim']))", _FORBIDDEN),
    "kill_by_owner_of_a_thread": _may_not(
        "kill_by_owner(lambda s: fcntl.fcntl(s, 15, struct.pack('ii', 0, P['victim'])))", _FORBIDDEN
    ),
    "kill_by_ioctl": _may_not(
        "kill_by_owner(lambda s: fcntl.ioctl(s, 0x8901, struct.pack('i', P['victim'])))", _FORBIDDEN
    ),
    "kill_by_another_ioctl": _may_not(
        "kill_by_owner(lambda s: fcntl.ioctl(s, 0x8902, struct.pack('i', P['victim'])))", _FORBIDDEN
    ),
    "kill_by_queue": _may_not(
        f"call({CALLS['rt_sigqueueinfo']}, P['victim'], 9, (ctypes.c_int * 32)(9, 0, -1))", _FORBIDDEN
    ),
    "kill_by_thread": _may_not(f"call({CALLS['tkill']}, P['victim'], 9)", _FORBIDDEN),
    "kill_by_descriptor": _may_not("signal.pidfd_send_signal(os.pidfd_open(P['victim']), 9)", _FORBIDDEN),
    "kill_by_limit": _may_not("resource.prlimit(P['victim'], resource.RLIMIT_CPU, (0, 0))", _FORBIDDEN),
    "kill_by_end_of_a_child": Hostile(
        # CLONE_PARENT: whose child it is, is told by a signal of its end.
        f"if libc.syscall({CALLS['clone']}, 0x8000 | 9, 0, 0, 0, 0) == 0: os._exit(0)\nd = DAG('ends_nobody')", ()
    ),
    "ptrace": _may_not(f"call({CALLS['ptrace']}, 16, P['scheduler'], 0, 0)", _FORBIDDEN),
    "limits_of_the_scheduler": _may_not("resource.prlimit(P['scheduler'], resource.RLIMIT_NOFILE, (0, 0))", _FORBIDDEN),
    "limits_of_the_parent": _may_not("resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))", _FORBIDDEN),
    # Files that it may not even read.
    "modes_and_times": Hostile(
        "before = os.stat(__file__)\nos.chmod(__file__, 0o777)\nos.utime(__file__, (1, 1))\nafter = os.stat(__file__)\n"
        "assert (before.st_mode, before.st_mtime) == (after.st_mode, after.st_mtime)\nd = DAG('changes_no_mode')", ()
    ),
    "chown": _may_not("os.chown(P['home'], os.getuid(), os.getgid())", _FORBIDDEN),
    "xattr": _may_not("os.setxattr('/etc/shadow', 'user.x', b'')", _FORBIDDEN),
    "empty_a_file": _may_not("os.open(P['treasure'], 3 | os.O_TRUNC)", _FORBIDDEN),
    "empty_what_it_reads": _may_not("os.open(__file__, os.O_RDONLY | os.O_TRUNC)", _FORBIDDEN),
    "truncate": _may_not("os.truncate(P['treasure'], 0)", _FORBIDDEN),
    "hidden_memory": Hostile(
        "import mmap\nlibc.prctl(4, 0, 0, 0, 0)\nkept = []\n"
        "for _ in range(10): kept.append(mmap.mmap(-1, 10**8)); kept[-1].write(b'x' * 10**8)\ntime.sleep(2)",
        ("memory",), ("parse.memory_bytes",),
    ),
    # Living on.
    "new_session": _may_not("os.setsid()", _FORBIDDEN),
    "double_fork": Hostile(
        "if os.fork() == 0:\n    refused(os.setsid)\n    if os.fork() == 0: time.sleep(1000)\n    os._exit(0)\n"
        "d = DAG('double_fork')", (),
    ),
    "signals_blocked": Hostile(
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ntime.sleep(1000)", _TIMEOUT, ("parse.import_timeout",)
    ),
    "atexit_hangs": Hostile("import atexit\natexit.register(time.sleep, 1000)\nd = DAG('atexit_hangs')", ()),
    "thread_hangs": Hostile(
        "import threading\nthreading.Thread(target=time.sleep, args=(1000,)).start()\nd = DAG('thread_hangs')", ()
    ),
    # Against the reader.
    "import_hooks": Hostile(
        "class Hook:\n    def find_spec(self, *a): raise OSError('no more')\n"
        "import builtins\nd = DAG('import_hooks')\n"
        "sys.meta_path.insert(0, Hook())\nbuiltins.__import__ = None\n1 / 0",
        words=("ZeroDivisionError", "has changed how Python itself works"),
    ),
    "patched_serializer": Hostile(
        "import asynsched.serialization.encode as e\nfor n in list(vars(e)):\n"
        "    if callable(vars(e)[n]): setattr(e, n, lambda *a, **k: {'dag_id': '../../x'})\nd = DAG('patched')",
        words=("the file has changed how that works",),
    ),
    "forged_result": Hostile(
        "for fd in range(3, 200):\n    try:\n"
        "        os.write(fd, b'{\"type\":\"found\",\"x\":' + b'[' * 10**5 + b'\\n')\n"
        "        os.write(fd, b'{\"type\":\"found\",\"dags\":[{\"dag\":{\"dag_id\":\"../../forged\"}}]}\\n')\n"
        "    except OSError: pass\nos._exit(0)", ("exit",), ("exit code 0",),
    ),
    "exits_for_good": Hostile("os.kill(os.getpid(), signal.SIGSEGV)", ("crash",), ("SIGSEGV",)),
    # Names, which are put into paths, terminals, queries and pages.
    **{
        f"dag_id_{number}": Hostile(f"d = DAG({name!r})", ("dag",), ("has the character",))
        for number, name in enumerate(
            ["a/b", "../../etc/cron.d/x", "a\nb", "a\x1b[2Jb", "x'; DROP TABLE dag; --", "<script>alert(1)</script>",
             "a\0b", "a\u202eb", "a\ud800b"]
        )
    },
    "dots": Hostile("d = DAG('..')\nwith d: EmptyOperator(task_id='..')", ()),
    "error_that_steers_terminals": Hostile(
        "raise ValueError('\\x1b[2J \\x9b31m \\ud800 \\0 <b> {0} %s')", words=("ValueError", "\\ud800", "<b> {0} %s")
    ),
}  # fmt: skip


WITHOUT_LIMITS = {name: hostile for name, hostile in CORPUS.items() if not {"timeout", "memory"} & {*hostile.kinds}}
"""The files that no limit of time or memory ends."""


def fill(folder: Path, secret: Path, corpus: Mapping[str, Hostile] = CORPUS) -> None:
    """Write the corpus into a DAG folder. `secret` is a file beside it whose content must stay secret."""
    (folder / "link").symlink_to(secret)
    (folder / "linked_folder").symlink_to(secret.parent)
    # DAG files that are such files themselves: an attempt to read them as Python would show them in the message.
    (folder / "leak.py").symlink_to(secret)
    (secret.parent / "private.py").write_text(secret.read_text())
    for name, hostile in corpus.items():
        write(folder, name, hostile.text)
    _zip(folder / "bomb.zip", {"dag.py": HEAD + "#" * (17 * 1024 * 1024)})
    _zip(folder / "traversal.zip", {"../../climbed.py": HEAD, "/tmp/climbed.py": HEAD})


def write(folder: Path, name: str, text: str) -> None:
    """Write one file, under another name first, so that no half of it is seen."""
    (folder / f"{name}.tmp").write_text(f"{HEAD}{text}\n", encoding="utf-8", errors="backslashreplace")
    (folder / f"{name}.tmp").rename(folder / f"{name}.py")


def _zip(path: Path, files: dict[str, str]) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    path.write_bytes(content.getvalue())
