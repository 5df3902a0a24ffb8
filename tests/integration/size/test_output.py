"""The kept part of endless output: of a try, in its keeper, and of a command, in its try."""

import logging

import pytest

from asynsched import DAG, BashOperator
from asynsched.authoring.masking import CUT
from asynsched.authoring.operators import bash
from asynsched.protocol.secrets import Secrets
from sandbox.supervision.reactor import READ_BYTES
from sandbox.supervision.task_log import LONGEST_LINE_HELD, TaskLog

LONGEST = 1000


@pytest.mark.parametrize("block", [b"x" * READ_BYTES, b"x\n" * (READ_BYTES // 2)], ids=["one line", "many lines"])
@pytest.mark.parametrize("knows", [False, True], ids=["no secret", "a secret"])
def test_the_keeper_holds_little_of_a_try_that_writes_without_end(tmp_path, block, knows):
    secrets = Secrets()
    if knows:
        secrets.learn("variable_get", {"key": "password"}, "swordfish")
    log = TaskLog(tmp_path / "log", 1_000_000, secrets)
    held = []
    for _ in range(100):
        log.write(block)
        held.append(len(log._held))
    log.close()
    assert max(held) <= LONGEST_LINE_HELD
    assert 1_000_000 <= (tmp_path / "log").stat().st_size <= 1_000_000 + 1000


@pytest.fixture
def short_lines(monkeypatch):
    monkeypatch.setattr(bash, "LONGEST_LINE", LONGEST)


@pytest.mark.parametrize(
    ("command", "last_line", "is_cut"),
    [
        ("head -c 1000000 /dev/zero | tr '\\0' x", "x" * LONGEST, True),
        ("head -c 5000 /dev/zero | tr '\\0' x; echo; echo last", "last", False),
        (f"head -c {LONGEST - 1} /dev/zero | tr '\\0' x; echo", "x" * (LONGEST - 1), False),
        ("echo one; echo", "", False),
    ],
    ids=["endless", "long before", "just short enough", "empty"],
)
def test_a_try_holds_little_of_a_command_that_writes_one_line_without_end(
    tmp_path, caplog, short_lines, command, last_line, is_cut
):
    caplog.set_level(logging.INFO)
    operator = bash.CommandOperator(task_id="t")
    assert operator.run_command(bash.bash_command_line(command), folder=tmp_path) == 0
    assert (operator.last_line, operator.is_cut) == (last_line, is_cut)
    assert max(len(record.getMessage()) for record in caplog.records) <= LONGEST + 2 * len(CUT)


@pytest.mark.parametrize("n_before", [LONGEST - 10, 2 * LONGEST - 5])
def test_a_secret_at_which_a_long_line_is_cut_shows_in_no_part(tmp_path, caplog, short_lines, n_before):
    caplog.set_level(logging.INFO)
    command = f"head -c {n_before} /dev/zero | tr '\\0' x; echo swordfish-of-the-deep and more"
    assert bash.CommandOperator(task_id="t").run_command(bash.bash_command_line(command), folder=tmp_path) == 0
    secrets = Secrets()
    secrets.learn("variable_get", {"key": "password"}, "swordfish-of-the-deep")
    log = TaskLog(tmp_path / "log", 1_000_000, secrets)
    log.write("".join(f"{{bash.py:1}} INFO - {record.getMessage()}\n" for record in caplog.records).encode())
    log.close()
    written = (tmp_path / "log").read_text()
    assert f"x***{CUT}" in written
    assert f"{CUT}*** and more" in written
    assert "swor" not in written
    assert "deep" not in written


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ({}, "failed"),
        ({"output_processor": len, "do_xcom_push": False}, "failed"),
        ({"do_xcom_push": False}, "success"),
    ],
)
def test_a_line_that_is_too_long_to_be_a_result_fails_the_task_that_wants_it(short_lines, options, state):
    with DAG("d") as dag:
        BashOperator(task_id="t", bash_command=f"printf '%0{LONGEST + 1}d' 7", **options)
    [found] = dag.test().tasks
    assert found.state == state
    assert ("more than 1000 bytes and cannot be the result" in found.reason) == (state == "failed")
