"""What the log says of files that could be parsed or not."""

from datetime import timedelta

from structlog.testing import capture_logs

from asynsched.parsing.parse_log import ParseLog
from asynsched.store.import_errors import ImportErrorRow
from tests.unit.parsing.dispatching import START


def test_what_an_author_hardly_means_is_logged_once_and_other_warnings_are_not():
    def row(kind: str) -> ImportErrorRow:
        return ImportErrorRow("dag.py", kind, f"dag.py:3: {kind}", "", 3, None, "", is_warning=True, created_at=START)

    log = ParseLog(timedelta(), START)
    with capture_logs() as logs:
        for _ in range(2):
            log.remember({"dag.py": (row("warning"), row("doubtful"))})
            log.still_failing("dag.py")
    assert [(told["event"], told["message"]) for told in logs] == [("file.doubtful", "dag.py:3: doubtful")]
