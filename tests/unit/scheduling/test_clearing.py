"""How many tries a cleared task instance has had."""

import pytest

from asynsched.scheduling.rules.clearing import tries_after_clear
from asynsched.states import TaskInstanceState

State = TaskInstanceState
EARLIER = {"first": 1, "second": 2}


@pytest.mark.parametrize(
    ("state", "try_number", "token", "earlier", "n_tries"),
    [
        (State.SUCCESS, 3, "third", EARLIER, 3),
        (State.RUNNING, 3, "third", EARLIER, 3),
        (State.UP_FOR_RETRY, 2, "second", EARLIER, 2),
        (State.UPSTREAM_FAILED, 0, None, {}, 0),
        # What only paused uses its number up as it is cleared, or was skipped first: no two tries have one number.
        (State.DEFERRED, 0, "first", {}, 1),
        (State.UP_FOR_RESCHEDULE, 2, "third", EARLIER, 3),
        (State.SKIPPED, 2, "third", EARLIER, 3),
        # What was interrupted begins the same try anew.
        (State.SCHEDULED, 2, "third", EARLIER, 2),
    ],
)
def test_each_try_of_a_cleared_task_has_a_number_of_its_own(state, try_number, token, earlier, n_tries):
    assert tries_after_clear(state, try_number, token, earlier) == n_tries
