"""The confinement of a DAG file on kernels whose Landlock is older, and the messages about it."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.hostile_files import CORPUS, Hostile, fill
from tests.integration.sandbox.conftest import Parsed, Parser
from tests.integration.sandbox.test_confinement import CALLS
from tests.support.older_kernels import OLDER_ABIS, with_landlock
from tests.support.users import become_ordinary

FILES = ("parse.readable", "write in a task")
"""Words for the restrictions of Landlock alone."""


@pytest.fixture(params=OLDER_ABIS, ids=lambda abi: f"landlock {abi}")
def abi(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def older(abi: int, parse_once: Parser, tmp_path: Path) -> Parser:
    parse_once.env |= with_landlock(abi, tmp_path / "older")
    return parse_once


@pytest.fixture
def victims() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Yield two processes of the user that parses."""
    become = become_ordinary if os.geteuid() == 0 else None
    started = [subprocess.Popen(["sleep", "1000"], preexec_fn=become) for _ in range(2)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_hostile_files_are_contained(
    abi: int, older: Parser, victims: list["subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    home, treasure, secret = tmp_path / "home", tmp_path / "treasure", tmp_path / "secret.txt"
    home.mkdir()
    for path in (home / "asynsched.db", home / "fernet.key", treasure, secret):
        path.write_text("precious")
        path.chmod(0o666)
    scheduler, victim = (process.pid for process in victims)
    known = {"scheduler": scheduler, "victim": victim, "home": home, "users_home": tmp_path, "treasure": treasure}
    older.write(json.dumps(known, default=str), "victims.json")
    fill(older.dags, secret)
    tried = {name: hostile for name, hostile in CORPUS.items() if _concerns(hostile, abi)}
    assert len(tried) >= 30
    told = older.by_one_server(*(f"{name}.py" for name in tried), hidden=[str(home)], max_processes=16)
    wrong = {
        name: parsed.report.errors
        for (name, hostile), parsed in zip(tried.items(), told, strict=True)
        if not _is_told(parsed, hostile)
    }
    assert wrong == {}
    assert [process.poll() for process in victims] == [None, None]
    assert {path.read_text() for path in (home / "asynsched.db", treasure, secret)} == {"precious"}
    assert not [*tmp_path.rglob("was_here"), *tmp_path.rglob("new.py")]


def _concerns(hostile: Hostile, abi: int) -> bool:
    """Whether the confinement forbids it, and does so with this version of Landlock."""
    is_forbidden = any("confinement" in word for word in hostile.words)
    return is_forbidden and (abi > 0 or not any(word in hostile.words for word in FILES))


def _is_told(parsed: Parsed, hostile: Hostile) -> bool:
    errors = parsed.report.errors
    return len(errors) == 1 and all(word in errors[0].message for word in hostile.words)


def test_system_calls_that_reach_beyond_the_parse_are_refused(older: Parser) -> None:
    outcomes = older.outcomes(CALLS)
    assert {name for name, outcome in outcomes.items() if outcome not in ("EPERM", "ENOSYS")} == set()


def test_what_an_older_landlock_forbids_more_is_what_is_said_of_it(abi: int, older: Parser) -> None:
    outcomes = older.outcomes(
        """
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        attempt("kill a child", child.kill)
        attempt("kill oneself", lambda: os.kill(os.getpid(), 0))
        child.stdin.close()
        print(f"wait: {child.wait()}")
        os.mkdir("first"), os.mkdir("second"), os.mkdir("first/inner")
        attempt("move", lambda: os.rename("first/inner", "second/inner"))
        """
    )
    moved = "EXDEV" if abi == 1 else "done"
    assert outcomes == {"kill a child": "EPERM", "kill oneself": "done", "wait": "0", "move": moved}


def test_report_says_which_landlock_was_enforced(abi: int, older: Parser) -> None:
    assert older("").report.confinement == (*([f"landlock {abi}"] if abi else []), "seccomp", "limits")
