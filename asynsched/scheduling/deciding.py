"""Decides all that follows from events, between whose slices the event loop serves other tasks."""

from datetime import datetime

from anyio.lowlevel import checkpoint

from asynsched.scheduling.evaluation.evaluation import Evaluation


async def decide_all(evaluation: Evaluation, now: datetime) -> None:
    """Make all decisions that follow from the events so far, with pauses."""
    while evaluation.has_undecided:
        await checkpoint()
        evaluation.go_on(now)
