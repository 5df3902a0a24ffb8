"""`parse` runs `python -P -m sandbox.parse` on a text; its tests run as each kind of user that is possible."""

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asynsched.serialization.decode import decode_report
from asynsched.serialization.schema import FileError, ParseReport
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
    env: dict[str, str] = field(default_factory=dict)

    def write(self, text: str, name: str = "dag.py") -> Path:
        path = self.dags / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def popen(self, name: str, **limits: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "sandbox.parse", str(self.dags / name)]
        command += ["--dags-folder", str(self.dags), "--scratch", str(self.scratch)]
        command += ["--limits", msgspec.json.encode(limits).decode()]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], **self.env},
            preexec_fn=None if self.as_root or os.geteuid() else become_ordinary,
        )

    def file(self, name: str, **limits: Any) -> Parsed:
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


def _parser(folder: Path, user: str) -> Parser:
    dags, scratch = folder / "dags", folder / "scratch"
    dags.mkdir()
    scratch.mkdir()
    scratch.chmod(0o777)
    return Parser(dags, scratch, as_root=user == "root")


@pytest.fixture(params=USERS)
def parse(request: pytest.FixtureRequest, tmp_path: Path) -> Parser:
    return _parser(tmp_path, request.param)


@pytest.fixture
def parse_once(tmp_path: Path) -> Parser:
    """For what does not depend on who parses."""
    return _parser(tmp_path, USERS[-1])
