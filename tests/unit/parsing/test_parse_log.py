"""The log of files that could be parsed or not."""

from datetime import timedelta

from structlog.testing import capture_logs

from asynsched.metrics.base import NoMetrics
from asynsched.parsing.progress import ParseLog
from asynsched.store.dags.parse_results import StoredFile, StoredReport
from asynsched.store.schema import DagFileRow, ImportErrorRow
from tests.unit.parsing.dispatching import START


def row(kind: str) -> ImportErrorRow:
    return ImportErrorRow("dag.py", kind, f"dag.py:3: {kind}", "", 3, None, "", is_warning=True, created_at=START)


def test_of_warnings_only_doubtful_ones_are_logged_and_once():
    log = ParseLog(timedelta(), START)
    with capture_logs() as logs:
        for _ in range(2):
            log.remember({"dag.py": (row("warning"), row("doubtful"))})
            log.still_failing("dag.py")
    assert [(told["event"], told["message"]) for told in logs] == [("file.doubtful", "dag.py:3: doubtful")]


def test_arguments_without_effect_are_logged_at_a_parse_not_at_a_start():
    log, found = ParseLog(timedelta(), START), (row("no_effect"),)
    file = DagFileRow("dag.py", "", 0, 0, [], START, 0.1, n_dags=1, n_errors=0)
    with capture_logs() as logs:
        log.remember({"dag.py": found})
        log.still_failing("dag.py")
        for _ in range(2):
            log.stored(StoredFile("dag.py", StoredReport(), file, found), NoMetrics())
    told = [line["message"] for line in logs if line["event"] == "file.arguments_ignored"]
    assert told == ["dag.py:3: no_effect"]
