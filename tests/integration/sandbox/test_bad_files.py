"""The error of an unusable DAG file: its kind, its place, and its advice."""

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from tests.integration.sandbox.conftest import Parser

DAG = "from asynsched import DAG, EmptyOperator\n"

MISTAKES = {
    "syntax error": ("x = 1\ndef broken(:\n", "syntax", "dag.py:2: SyntaxError"),
    "indentation": ("if True:\nx = 1\n", "syntax", "dag.py:2: IndentationError"),
    "null byte": ("x = 1\n\0", "syntax", "null byte"),
    "missing module": ("\nimport no_such_module\n", "import", "dag.py:2: ModuleNotFoundError: No module named 'no"),
    "module of airflow": (
        "import airflow.www", "import",
        "dag.py:1: ModuleNotFoundError: No module named 'airflow.www'; asynsched does not have this module",
    ),
    "name of airflow": (
        "from airflow.sdk import TaskGroups", "import",
        "cannot import name 'TaskGroups' from 'airflow.sdk'; ",
    ),
    "provider of airflow": (
        "\nfrom airflow.providers.postgres.hooks.postgres import (\n  PostgresHook,\n)\n", "import",
        "dag.py:2: ModuleNotFoundError: No module named 'airflow.providers.postgres'; install its provider: ",
    ),
    "name that asynsched has not": (
        "from asynsched import AirflowSkipException\n", "import",
        "dag.py:1: ImportError: asynsched has no name 'AirflowSkipException'; did you mean AsynschedSkipException",
    ),
    "missing name": ("from os import no_such_name\n", "import", "dag.py:1: ImportError"),
    "exception": ("\n\n1 / 0\n", "exception", "dag.py:3: ZeroDivisionError: division by zero"),
    "recursion": ("def f(): f()\nf()\n", "exception", "dag.py:1: RecursionError"),
    "exception that hides": ("class E(Exception):\n  def __str__(self): 1/0\nraise E", "exception", "cannot be shown"),
    "keyboard interrupt": ("raise KeyboardInterrupt\n", "exception", "dag.py:1: KeyboardInterrupt"),
    "sys.exit": ("import sys\nsys.exit(3)\n", "exit", "dag.py:2: called sys.exit(3)"),
    "cycle": (
        DAG + "with DAG('a'):\n  x, y = EmptyOperator(task_id='x'), EmptyOperator(task_id='y')\n  x >> y >> x\n",
        "dag", "in a cycle",
    ),
    "task_id twice": (
        DAG + "with DAG('a'):\n  EmptyOperator(task_id='x')\n  EmptyOperator(task_id='x')\n", "dag", "'x' is taken"
    ),
    "cron": (DAG + "DAG('a', schedule='61 * * * *')\n", "dag", "61 * * * *"),
    "trigger rule": (DAG + "with DAG('a'): EmptyOperator(task_id='x', trigger_rule='never')\n", "dag", "never"),
    "odd dag_id": (DAG + "\nDAG('a b/c')\n", "dag", "dag.py:3"),
}  # fmt: skip

ATTACKS = {
    "os._exit": ("import os\nos._exit(0)\n", "exit", "dag.py: ended its process with exit code 0"),
    "segfault": ("import ctypes\nctypes.string_at(0)\n", "crash", "dag.py:2: crashed its process: SIGSEGV"),
    "abort": ("import os\n\nos.abort()\n", "crash", "dag.py:3: crashed its process: SIGABRT"),
    "killed": ("import os\nos.kill(os.getpid(), 9)\n", "memory", "dag.py: its process was killed"),
    "sleeps": ("import time\n\ntime.sleep(1000)\n", "timeout", "dag.py:3: its import took longer than 1 s"),
    "closes its pipes": ("import os\nos.closerange(0, 256)\nwhile True: pass\n", "timeout", "longer than 1 s"),
    "patient fork bomb": (
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass\n", "timeout", "longer than 1 s"
    ),
    "forks and leaves": ("import os\nwhile True:\n  if os.fork(): os._exit(0)\n", "exit", "exit code 0"),
    "too many files": ("import os\nf = [os.dup(0) for _ in range(500)]\n", "exception", "parse.open_files"),
    "too large a file": ("open('big', 'wb').write(bytes(10**8))\n", "exception", "parse.file_bytes"),
    "too large a result": (DAG + "d = DAG('a', doc_md='x' * 5_000_000)\n", "output", "parse.result_bytes"),
}  # fmt: skip
FORBIDDEN = {
    "a socket": ("import socket\nsocket.create_connection(('127.0.0.1', 9))\n", "no network"),
    "a name to resolve": ("import socket\nsocket.getaddrinfo('example.com', 80)\n", "no network"),
    "a web page, by a library": ("import urllib.request as r\nr.urlopen('http://127.0.0.1:9')\n", "no network"),
    "a connection of asyncio": ("import asyncio as a\na.run(a.open_connection('127.0.0.1', 9))\n", "no network"),
    "a driver's own words": ("raise Exception('could not translate host name')\n", "no network"),
    "a file to read": ("open('/etc/shadow')\n", "parse.readable"),
    "a folder to list": ("import os\nos.listdir('/root')\n", "parse.readable"),
    "a file to write": ("import os\nopen(os.path.dirname(__file__) + '/new', 'w')\n", "write in a task"),
    "its own file to write": ("open(__file__, 'a')\n", "write in a task"),
    "a folder to make": ("import os\nos.mkdir('/new')\n", "write in a task"),
    "a database to open": ("import sqlite3\nsqlite3.connect('/root/x.db')\n", "open the database in a task"),
    "a database to write": (
        "import sqlite3\nsqlite3.connect(f'file:{__file__}.db?mode=ro', uri=True).execute('CREATE TABLE a(b)')\n",
        "write in a task",
    ),
    "a variable": ("import os\nos.environ['MY_DATABASE']\n", "parse.environment lists; add MY_DATABASE"),
    "a variable of PostgreSQL": ("import os\nos.environ['PGHOST']\n", "use a connection in a task"),
    "a variable that is wrapped": (
        "import os\ntry:\n  os.environ['HER']\nexcept KeyError as exc:\n  raise ValueError(1) from exc\n", "add HER"
    ),
    "the scheduler's variable": ("import os\nos.environ['ASYNSCHED_DATABASE']\n", "to no user code"),
    "another's file": ("import os\nos.chown(__file__, 0, 0)\n", "may not do this; do it in a task"),
    "threads": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n",
        "parse.max_processes",
    ),
}  # fmt: skip
OF_THE_FILE = {
    "a key": "{'a': 1}['MY_DATABASE']\n",
    "a missing file": "open('/no/such/file')\n",
    "an error of its own": "raise PermissionError('not on Sundays')\n",
}
LIMITS = {"memory_bytes": 400_000_000, "result_bytes": 4_000_000, "max_processes": 16}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_gets_one_error_that_says_where_and_why(name: str, parse_once: Parser) -> None:
    _check(parse_once, *MISTAKES[name])


def test_a_file_that_imports_airflow_has_no_error(parse_once: Parser) -> None:
    parsed = parse_once("import airflow.sdk\n\ndag = airflow.sdk.DAG('a')\n")
    assert parsed.dag_ids == ["a"]


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_gets_one_error_and_leaves_nothing(name: str, parse: Parser) -> None:
    _check(parse, *ATTACKS[name])


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_the_confinement_forbids_is_told_with_what_to_do(name: str, parse_once: Parser) -> None:
    text, words = FORBIDDEN[name]
    with contextlib.closing(sqlite3.connect(parse_once.dags / "dag.py.db")):
        message = parse_once(text, **LIMITS).error.message
    _, found, hint = message.partition("; DAG files are parsed in confinement: ")
    assert found, message
    assert words in hint


@pytest.mark.parametrize("name", OF_THE_FILE)
def test_an_error_of_the_file_itself_is_not_put_down_to_the_confinement(name: str, parse_once: Parser) -> None:
    assert "confinement" not in parse_once(OF_THE_FILE[name]).error.message


def _check(parse: Parser, text: str, kind: str, words: str) -> None:
    # Only files that must time out may be short of time.
    parsed = parse(text, import_timeout=1 if kind == "timeout" else 30, **LIMITS)
    assert parsed.error.kind == kind
    assert words in parsed.error.message
    assert "dag.py" in parsed.error.message
    assert "\n" not in parsed.error.message
    assert parsed.exit_code == 1
    assert not list(parse.scratch.iterdir())


def test_error_in_a_helper_names_the_helper_and_the_line_that_imports_it(parse_once: Parser) -> None:
    parse_once.write("x = (\n", "broken.py")
    parsed = parse_once("\nimport broken\n")
    assert parsed.error.kind == "syntax"
    assert parsed.error.message.startswith("broken.py:1:")
    assert parsed.error.line == 2
    assert [source.path for source in parsed.report.sources] == ["dag.py", "broken.py"]


def test_traceback_begins_in_the_dag_file(parse_once: Parser) -> None:
    traceback = parse_once("def f():\n  1 / 0\nf()\n").error.traceback
    assert traceback.count("File ") == 2
    assert "dag.py" in traceback.splitlines()[1]


def test_file_that_is_not_utf_8_is_told_which_byte(parse_once: Parser) -> None:
    (parse_once.dags / "latin.py").write_bytes(b"# ok\nname = 'caf\xe9'\n")
    error = parse_once.file("latin.py").error
    assert error.kind == "syntax"
    assert "latin.py:2" in error.message
    assert "UTF-8" in error.message


def test_declared_encoding_is_honoured(parse_once: Parser) -> None:
    (parse_once.dags / "latin.py").write_bytes(b"# coding: latin-1\nprint(ascii('caf\xe9'))\n")
    assert parse_once.file("latin.py").lines == ["'caf\\xe9'"]


def _missing(dags: Path) -> None:
    """Leave nothing there."""


def _broken_link(dags: Path) -> None:
    (dags / "dag.py").symlink_to("nowhere.py")


def _link_loop(dags: Path) -> None:
    (dags / "dag.py").symlink_to("dag.py")


def _folder(dags: Path) -> None:
    (dags / "dag.py").mkdir()


@pytest.mark.parametrize("make", [_missing, _broken_link, _link_loop, _folder])
def test_file_that_cannot_be_read_is_unreadable(make: object, parse: Parser) -> None:
    make(parse.dags)
    error = parse.file("dag.py").error
    assert error.kind == "unreadable"
    assert error.message.startswith("dag.py: cannot be read:")


def test_file_that_may_not_be_read_is_unreadable(parse: Parser) -> None:
    error = parse("print('ran')", hidden=[str(parse.dags / "dag.py")]).error
    assert error.kind == "unreadable"
    assert error.message == "dag.py: cannot be read: Permission denied"


def test_module_behind_a_link_that_may_not_be_read_is_told_of_the_setting(parse_once: Parser, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "__init__.py").write_text("")
    (parse_once.dags / "shared").symlink_to(tmp_path / "shared")
    assert "parse.readable" in parse_once("import shared.tables").error.message
    assert not parse_once("import shared", readable=[str(tmp_path / "shared")]).report.errors


def test_slow_serialization_is_ended_by_the_parse_timeout(parse_once: Parser) -> None:
    parsed = parse_once(
        """
        import time
        from asynsched import DAG
        class Slow(DAG):
            def validate(self): time.sleep(100)
        slow = Slow("a")
        """,
        timeout=1,
    )
    assert parsed.error.kind == "timeout"
    assert "parse.timeout" in parsed.error.message


def test_one_bad_dag_leaves_the_others_of_its_file(parse_once: Parser) -> None:
    parsed = parse_once(
        """
        from asynsched import DAG, EmptyOperator
        DAG_ = [DAG("good")]
        good = DAG_[0]
        with DAG("bad"):
            a, b = EmptyOperator(task_id="a"), EmptyOperator(task_id="b")
            a >> b >> a
        """
    )
    assert [dag.dag.dag_id for dag in parsed.report.dags] == ["good"]
    assert parsed.error.dag_id == "bad"


def test_forged_messages_are_no_more_than_a_bad_result(parse: Parser) -> None:
    parsed = parse(
        """
        import os
        for fd in range(3, 256):
            try:
                os.write(fd, b'{"type":"found","dags":[{"dag":{"dag_id":7}}]}\\n{"type":"sourced"}\\ngarbage\\n')
                source = b'{"path":"../x.py","module":"x","content_hash":"","text":""}'
                os.write(fd, b'{"type":"sourced","source":' + source + b'}\\n')
            except OSError:
                pass
        os._exit(0)
        """
    )
    assert parsed.error.kind == "exit"
    assert [source.path for source in parsed.report.sources] == ["dag.py"]


def test_wrong_usage_exits_with_2(parse_once: Parser) -> None:
    parse_once.write("")
    process = parse_once.popen("dag.py", timeout=-1)
    assert process.communicate()[0] == b""
    assert process.returncode == 2


def test_required_confinement_refuses_where_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from asynsched.protocol.parse_messages import ParseLimits
    from sandbox import confine
    from sandbox.confine import ConfinementError

    weak = confine.Strength(("limits",), ("there is no Landlock",))
    monkeypatch.setattr(confine, "available", lambda: weak)
    policy = confine.Policy(ParseLimits(confinement="required"), "/dags", os.devnull)
    with pytest.raises(ConfinementError, match="there is no Landlock"):
        confine.confine(policy)
    assert weak.lines == ("enforced on each parse: limits", "there is no Landlock")
