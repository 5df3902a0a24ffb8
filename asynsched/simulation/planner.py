"""Asks authors' own timetables for more runs while virtual time stands still."""

from collections.abc import Callable
from datetime import datetime

from asynsched.channels import Channels, DagChanged, FileChanged
from asynsched.clock import Clock
from asynsched.serialization.schema import ParseQuestions, ParseReport
from asynsched.service import Service
from asynsched.store.dags.dags import questions_for_file
from asynsched.store.dags.parse_results import DagDefaults, FileStamp, store_report
from asynsched.store.database import Database

Ask = Callable[[str, ParseQuestions], ParseReport]
"""Parses a file with questions for its timetables, and returns when that is done."""
NO_STAMP = FileStamp(content_hash="", modified_ns=0, size=0, runtime="")


class Planner(Service):
    """Takes the place of the parse dispatcher: files are parsed only because somebody needs an answer of theirs.

    Args:
        ask: Blocks the event loop, whose time is virtual: so nothing else happens meanwhile, and the order of events
            does not depend on how long a parse takes.
        defaults: What holds for a DAG that does not say it.
    """

    name = "planner"

    def __init__(
        self, *, channels: Channels, database: Database, clock: Clock, ask: Ask, defaults: DagDefaults
    ) -> None:
        super().__init__(clock)
        self._channels = channels
        self._database = database
        self._ask = ask
        self._defaults = defaults
        channels.file_changes.wakes(self.wake)

    async def tick(self, now: datetime) -> None:
        """Have those files parsed that were asked for."""
        for message in self._channels.file_changes.take():
            if not isinstance(message, FileChanged):
                continue
            questions = await self._database.read(questions_for_file, message.path, now)
            report = self._ask(message.path, questions)
            stored = await self._database.write(store_report, report, NO_STAMP, now=now, defaults=self._defaults)
            for dag_id in (*stored.new, *stored.changed, *stored.removed):
                await self._channels.dag_changes.put(DagChanged(dag_id))
