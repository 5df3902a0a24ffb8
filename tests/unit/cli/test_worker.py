"""`asynsched worker run`, between its tickets."""

import pytest

from asynsched.cli.worker import _work
from asynsched.protocol.worker_messages import Ticket
from asynsched.worker.agent import RETURNED, Outcome, refused

DONE, FAILED = Outcome("done", "success"), Outcome("failed", "failed")


class Agent:
    """Has the outcomes of its tickets, and always another ticket."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)

    async def work(self, ticket: Ticket) -> Outcome:
        return self.outcomes.pop(0)

    async def next(self, last: Ticket) -> Ticket | None:
        return last if self.outcomes else None


@pytest.mark.parametrize(
    ("outcomes", "n_left"),
    [([DONE, FAILED], 0), ([DONE, refused("it has begun elsewhere"), DONE], 1), ([DONE, RETURNED, DONE], 1)],
)
async def test_a_warm_worker_asks_for_no_ticket_after_one_that_was_refused(outcomes, n_left):
    agent = Agent(*outcomes)
    await _work(agent, Ticket("token", "secret", (), "dag", "run", "task", try_number=1))
    assert len(agent.outcomes) == n_left
