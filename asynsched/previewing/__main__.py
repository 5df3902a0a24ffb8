"""`python -m asynsched.previewing`: previews a commit in a process of its own, for a scheduler that serves."""

from datetime import timedelta

from asynsched.previewing.asking import PreviewWanted
from asynsched.previewing.gathering import Wanted, gather_preview
from asynsched.queries.preview import Preview
from asynsched.simulation.own_process import answer_once


def previewed(question: PreviewWanted) -> Preview:
    """Parse and compare, and simulate. Blocks. Raises AsynschedError."""
    wanted = Wanted(question.where, question.against, timedelta(hours=question.hours), question.pools)
    return gather_preview(question.settings, wanted, place="the scheduler's database", now=question.now)


if __name__ == "__main__":
    answer_once(PreviewWanted, previewed)
