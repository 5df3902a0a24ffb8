"""What a keeper makes of the tries of the one before it."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from asynsched.protocol.messages import Ended
from sandbox.supervision.attempts import AttemptRecords
from sandbox.supervision.task_log import TaskLog

LOST = "the keeper of the task's process died, and the process with it"


def earlier_ends(records: AttemptRecords, open_log: Callable[[str], TaskLog]) -> Iterator[Ended]:
    """Yield how each try ended that an earlier keeper has written down: what it had running died with it.

    Args:
        open_log: Opens the log file of a try, by its path in the log folder.
    """
    for attempt, ended in records.load():
        if ended is None:
            ended = Ended(attempt.token, "failed", datetime.now(UTC), reason=LOST, cause="machine")
            if attempt.log_path:
                task_log = open_log(attempt.log_path)
                task_log.say("ERROR", LOST)
                task_log.close()
            records.end(ended)
        yield ended
