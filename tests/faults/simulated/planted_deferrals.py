"""Bugs that are planted on purpose where tasks are deferred, and their triggers run in hosts."""

from typing import Any

import msgspec

from asynsched.channels import TriggerFired, TriggerUnwanted
from asynsched.protocol.messages import TriggerOutcome
from asynsched.scheduling.evaluation import decisions, evaluation
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.ready import Limit, Pool, ReadyQueues
from asynsched.scheduling.triggerer import Triggerer
from tests.faults.simulated.bug import Bug, Change
from tests.faults.simulated.conditions import Conditions


def _early_answer() -> list[Change]:
    async def answer_at_once(self: Any, request: Any) -> None:
        for outcome in msgspec.convert(request.arguments["outcomes"], list[TriggerOutcome]):
            self._channels.reports.put_nowait(TriggerFired(outcome))

    return [(Triggerer, "_take_outcomes", answer_at_once)]


def _forgotten_event() -> list[Change]:
    after_end = decisions.after_end
    return [(decisions, "after_end", lambda _stored, ended: after_end(None, ended))]


def _endless_wait() -> list[Change]:
    return [(evaluation, "timeout_of", lambda *_: None)]


def _uncounted_deferred() -> list[Change]:
    return [(Pool, "taken", Limit.taken)]


def _uncounted_wait() -> list[Change]:
    limit_of = ReadyQueues._task

    def that_counts_no_wait(*arguments: Any) -> Limit:
        limit = limit_of(*arguments)
        limit.counts_parked = False
        return limit

    return [(ReadyQueues, "_task", that_counts_no_wait)]


def _trigger_for_nobody() -> list[Change]:
    say = PendingBatch.say

    def say_what_is_wanted(self: Any, message: Any) -> None:
        if not isinstance(message, TriggerUnwanted):
            say(self, message)

    return [(PendingBatch, "say", say_what_is_wanted)]


BUGS_OF_DEFERRALS: dict[str, Bug] = {
    "early-answer": Bug("A trigger host may forget an event before it is stored.", _early_answer),
    "forgotten-event": Bug(
        "A try that was resumed and interrupted begins from its beginning.",
        _forgotten_event,
        Conditions(("asked_to_stop",)),
    ),
    "endless-wait": Bug("A deferral does not time out.", _endless_wait),
    "uncounted-deferred": Bug("A pool that is to count deferred tasks does not.", _uncounted_deferred),
    "uncounted-wait": Bug("max_active_tis_per_dag does not count deferred tasks.", _uncounted_wait),
    "trigger-for-nobody": Bug("A trigger whose task no longer waits for it goes on.", _trigger_for_nobody),
}
