"""Asynsched's own events go where the program that embeds it sends its logs."""

import logging

import structlog

from asynsched.loggers import get_logger
from asynsched.states import DagRunState


def test_events_go_to_the_logging_of_a_program_at_its_levels(caplog, capsys):
    caplog.set_level(logging.WARNING)
    caplog.set_level(logging.INFO, "asynsched.one")
    get_logger("asynsched.one").info("run.ended", dag_id="etl", state=DagRunState.FAILED, n_tasks=3)
    get_logger("asynsched.other").info("run.started", dag_id="etl")
    get_logger("asynsched.other").error("executor.failed", exc_info=ValueError("no way"), share="100%s")
    ended, failed = caplog.records
    assert (ended.name, ended.levelname) == ("asynsched.one", "INFO")
    assert ended.getMessage() == "run.ended dag_id='etl' state='failed' n_tasks=3"
    assert failed.getMessage() == "executor.failed share='100%s'"
    assert "ValueError: no way" in caplog.text
    assert capsys.readouterr().out == ""


def test_events_go_through_structlog_once_a_program_has_configured_it(caplog):
    events = []

    def keep(_, level, event):
        events.append((level, event))
        raise structlog.DropEvent

    log = get_logger("asynsched.one")
    structlog.configure(processors=[keep])
    log.warning("run.ended", dag_id="etl")
    assert events == [("warning", {"event": "run.ended", "dag_id": "etl"})]
    assert not caplog.records
