"""A scheduler's own log: one line an event, in a file that is rotated where one is named."""

import json
import logging
import re
import time

import pytest
import structlog

from asynsched.cli.logging import configure_logging
from asynsched.errors import SettingsError
from asynsched.settings import LogSettings


def test_a_log_file_is_rotated_and_only_so_many_old_ones_are_kept(tmp_path):
    path = tmp_path / "scheduler.log"
    configure_logging(LogSettings(format="json", file=str(path), file_bytes=500, file_count=2))
    for number in range(100):
        structlog.get_logger().info("run.ended", number=number)
        structlog.get_logger().debug("not.told")
    logging.getLogger("some.library").warning("it says %s", "this")
    files = [path.with_name(f"scheduler.log{suffix}") for suffix in (".2", ".1", "")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert max(file.stat().st_size for file in files) <= 500
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    *ours, foreign = lines
    assert [line["number"] for line in ours] == list(range(100 - len(ours), 100))
    assert {line["event"] for line in ours} == {"run.ended"}
    assert (foreign["event"], foreign["level"]) == ("it says this", "warning")


def test_what_users_have_named_cannot_steer_a_terminal(capsys):
    configure_logging(LogSettings())
    structlog.get_logger().warning("dag.odd", dag_id="a\x1b[2Jb")
    assert "\x1b" not in capsys.readouterr().err


def test_the_log_for_people_has_local_times_with_their_offset(capsys, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    configure_logging(LogSettings())
    structlog.get_logger().info("run.started")
    monkeypatch.undo()
    time.tzset()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+09:00 \[info", capsys.readouterr().err)


def test_a_log_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"log\.file: .*/none/x\.log cannot be written"):
        configure_logging(LogSettings(file=str(tmp_path / "none" / "x.log")))


def test_people_but_not_programs_see_the_command_that_explains_a_failure(capsys):
    run = {"dag_id": "d", "run_id": "by hand", "state": "failed"}
    for form in ("console", "json"):
        configure_logging(LogSettings(format=form), ("--home", "h"))
        log = structlog.get_logger()
        log.warning("try.failed", **run, task_id="t", map_index=3, try_number=2, reason="no luck")
        log.info("run.ended", **run)
        log.info("run.ended", **run | {"state": "success"})
        log.warning("tries.failed", n_more=3)
    lines = capsys.readouterr().err.splitlines()
    assert [line.strip() for line in lines if "asynsched" in line] == [
        "asynsched tasks logs d 'by hand' t --map-index 3 --try 2 --home h",
        "asynsched why d 'by hand' --home h",
        "asynsched runs list --state failed --home h",
    ]
    assert [json.loads(line)["event"] for line in lines[-4:]] == [
        "try.failed",
        "run.ended",
        "run.ended",
        "tries.failed",
    ]
