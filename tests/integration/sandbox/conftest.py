"""`parse` parses a text, by `python -P -m sandbox.parse` or by a parse server, as each user that is possible."""

import os
import socket
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asynsched.protocol.parse_messages import Job
from asynsched.serialization.decode import decode_report
from asynsched.serialization.schema import FileError, ParseQuestions, ParseReport
from tests.support.users import become_ordinary

USERS = ["root", "ordinary user"] if os.geteuid() == 0 else ["ordinary user"]


@dataclass
class Parsed:
    report: ParseReport
    exit_code: int

    @property
    def error(self) -> FileError:
        [error] = self.report.errors
        return error

    @property
    def dag_ids(self) -> list[str]:
        assert not self.report.errors, self.report.errors
        return [parsed.dag.dag_id for parsed in self.report.dags]

    @property
    def lines(self) -> list[str]:
        assert not self.report.errors, self.report.errors
        return self.report.output.splitlines()


@dataclass
class Parser:
    """A DAG folder, a scratch folder, and the command."""

    dags: Path
    scratch: Path
    as_root: bool
    by_server: bool = False
    env: dict[str, str] = field(default_factory=dict)

    def write(self, text: str, name: str = "dag.py") -> Path:
        path = self.dags / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def popen(self, name: str, **limits: Any) -> subprocess.Popen[bytes]:
        return self._popen("sandbox.parse", str(self.dags / name), limits=limits)

    def _popen(self, module: str, *arguments: str, limits: dict[str, Any], descriptors: tuple[int, ...] = ()) -> Any:
        command = [sys.executable, "-P", "-m", module, *arguments]
        command += ["--dags-folder", str(self.dags), "--scratch", str(self.scratch)]
        command += ["--limits", msgspec.json.encode(limits).decode()]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], **self.env},
            pass_fds=descriptors,
            preexec_fn=None if self.as_root or os.geteuid() else become_ordinary,
        )

    def by_one_server(self, *names: str, **limits: Any) -> list[Parsed]:
        """Parse one file after the other in a server of their own."""
        parsed: list[Parsed] = []
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asker, guardian = socket.socketpair()
        with control, theirs, asker, guardian:
            server = self._popen(
                "sandbox.parse_server", "--control", str(theirs.fileno()), limits=limits, descriptors=(theirs.fileno(),)
            )
            socket.send_fds(control, [b"g"], [guardian.fileno()])
            theirs.close()
            guardian.close()
            asker.settimeout(60)
            with asker.makefile("rb") as answers:
                answers.readline()
                for path in names:
                    job = Job(path, ParseQuestions(now=datetime.now(UTC)))
                    asker.sendall(msgspec.json.encode(job) + b"\n")
                    report = decode_report(answers.readline())
                    parsed.append(Parsed(report, 1 if report.errors else 0))
            # Told in both ways: a signal that comes just before a guardian waits for jobs is not heard while it waits.
            asker.close()
            control.close()
            server.communicate(timeout=60)
        return parsed

    def file(self, name: str, **limits: Any) -> Parsed:
        if self.by_server:
            # After another parse, which must leave no trace.
            return self.by_one_server("not there.py", name, **limits)[-1]
        process = self.popen(name, **limits)
        out, _ = process.communicate(timeout=60)
        return Parsed(decode_report(out), process.returncode)

    def __call__(self, text: str, name: str = "dag.py", **limits: Any) -> Parsed:
        self.write(text, name)
        return self.file(name, **limits)

    def outcomes(self, code: str, **limits: Any) -> dict[str, str]:
        """Run a file that calls `attempt(name, function)`; return the errno's name, or `done`, of each attempt."""
        parsed = self(ATTEMPT + textwrap.dedent(code), **limits)
        return dict(line.split(": ", 1) for line in parsed.lines if ": " in line)


ATTEMPT = """
import ctypes, errno, os, resource, signal, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
def attempt(name, function):
    try:
        function()
    except OSError as exc:
        print(f"{name}: {errno.errorcode[exc.errno]}")
    else:
        print(f"{name}: done")
"""


def _parser(folder: Path, user: str, *, by_server: bool = False) -> Parser:
    dags, scratch = folder / "dags", folder / "scratch"
    dags.mkdir()
    scratch.mkdir()
    scratch.chmod(0o777)
    return Parser(dags, scratch, as_root=user == "root", by_server=by_server)


@pytest.fixture
def way() -> str:
    """The way to parse files. Tests of rules that hold for both ways have this fixture with both."""
    return "process"


@pytest.fixture(params=USERS)
def parse(request: pytest.FixtureRequest, way: str, tmp_path: Path) -> Parser:
    return _parser(tmp_path, request.param, by_server=way == "server")


@pytest.fixture
def parse_once(tmp_path: Path) -> Parser:
    """For tests that do not depend on the way to parse."""
    return _parser(tmp_path, USERS[-1])
