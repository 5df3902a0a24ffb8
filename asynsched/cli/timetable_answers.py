"""What a timetable that is the author's own answers to a command: its DAG file is parsed for that, not stored."""

import asyncio
from datetime import datetime

from asynsched.cli.session import Session
from asynsched.home import prepare_home
from asynsched.parsing.processes.informed_parser import ask
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.serialization.schema import TimetableQuestion
from asynsched.timetables import DataInterval, PlannedInterval, TimetablePlan


def plan_of(
    session: Session, path: str, dag_id: str, *, last: DataInterval | None, now: datetime, n: int
) -> TimetablePlan | None:
    """Return the next `n` runs after the last one, were it `now`. Raises DagError."""
    question = TimetableQuestion(last=None if last is None else PlannedInterval(*last), n_runs=n)
    if not session.home.is_dir():
        session.use_passing_home(keep_database=True)
    prepare_home(session.home)
    return asyncio.run(ask(SandboxParser(session.settings), path, dag_id, question, now=now)).plan


def manual_interval_of(session: Session, path: str, dag_id: str, *, at: datetime) -> DataInterval | None:
    """Return the data interval of a run that is triggered at an instant. Raises DagError."""
    question = TimetableQuestion(n_runs=1, run_by_hand_at=at)
    prepare_home(session.home)
    answer = asyncio.run(ask(SandboxParser(session.settings), path, dag_id, question, now=at)).manual_interval
    return None if answer is None else answer.value()
