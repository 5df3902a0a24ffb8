"""Bugs that are planted on purpose: the simulation must find each one, or its silence means nothing.

Each is one small change of the program: something that a developer might forget, or put in the wrong order.
"""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec

from asynsched.channels import Channel, Channels, TaskReady, TriesStored
from asynsched.executors.base import Held
from asynsched.executors.local import LocalExecutor
from asynsched.lease.renewal import LoopRenewal
from asynsched.scheduling import announcements
from asynsched.scheduling.announcements import Announcer
from asynsched.scheduling.callback_runner import CallbackRunner
from asynsched.scheduling.creation.dagrun_creator import DagRunCreator
from asynsched.scheduling.evaluation import decisions
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.evaluation.ready import ReadyQueues
from asynsched.scheduling.evaluation.run import ActiveRun
from asynsched.scheduling.evaluator import MAX_EVENTS, DependencyEvaluator
from asynsched.scheduling.rules.run_end import TaskEnd
from asynsched.states import FINISHED_TASK_STATES
from asynsched.store.runs import transitions
from asynsched.store.runs.callbacks import finish_callback
from asynsched.store.schema import HistoryRow
from asynsched.timers import Timers
from tests.faults.simulated.bug import Bug, Change
from tests.faults.simulated.conditions import CALLBACKS, STORES, Conditions
from tests.faults.simulated.planted_deferrals import BUGS_OF_DEFERRALS
from tests.faults.simulated.planted_edits import BUGS_OF_EDITS
from tests.faults.simulated.planted_elsewhere import BUGS_ELSEWHERE
from tests.faults.simulated.planted_ownership import BUGS_OF_OWNERSHIP
from tests.faults.simulated.planted_parses import BUGS_OF_PARSES
from tests.faults.simulated.planted_results import BUGS_OF_RESULTS


def _early_commit() -> list[Change]:
    store = DependencyEvaluator._store

    async def announce_first(self: Any) -> None:
        for task in self._pending.granted:
            self._announcer.launch(task)
        await store(self)

    return [(DependencyEvaluator, "_store", announce_first)]


def _early_acknowledgement() -> list[Change]:
    take = DependencyEvaluator._take_events

    async def acknowledge_first(self: Any, now: Any) -> bool:
        messages = self._channels.reports.take(MAX_EVENTS)
        for message in messages:
            if hasattr(message, "event"):
                self._channels.ready.put_nowait(TriesStored((message.event.token,)))
            self._channels.reports.put_nowait(message)
        return await take(self, now)

    return [(DependencyEvaluator, "_take_events", acknowledge_first)]


def _lost_wake_up() -> list[Change]:
    init = Channels.__init__

    class Deaf(Channel[Any]):
        def wakes(self, wake: Any) -> None:
            """Forget whom to wake."""

    def deaf_to_ends(self: Any) -> None:
        init(self, finished=Deaf())

    return [(Channels, "__init__", deaf_to_ends)]


def _forgotten_release() -> list[Change]:
    release = ReadyQueues.release

    def release_what_succeeded(self: Any, task: Any, limits: Any) -> None:
        if task.state != "up_for_retry":
            release(self, task, limits)

    return [(ReadyQueues, "release", release_what_succeeded)]


def _forgotten_occupation() -> list[Change]:
    resume = Evaluation.resume_run

    def resume_uncounted(self: Any, *arguments: Any, **named: Any) -> None:
        with patch.object(self.ready, "occupy", lambda *_: None):
            resume(self, *arguments, **named)

    return [(Evaluation, "resume_run", resume_uncounted)]


def _double_adoption() -> list[Change]:
    announce = Announcer.announce_taken_over

    def announce_blindly(self: Any, tasks: Any, held: Held, now: Any) -> None:
        announce(self, tasks, Held(), now)

    return [(Announcer, "announce_taken_over", announce_blindly)]


def _new_token_for_old_try() -> list[Change]:
    launch = announcements.task_launch

    def relaunch(task: Any, length: int) -> Any:
        made = launch(task, length)
        return made if task.state != "running" else replace_token(made)

    def replace_token(made: Any) -> Any:
        return msgspec.structs.replace(made, token=made.token[::-1])

    return [(announcements, "task_launch", relaunch)]


def _dropped_batch() -> list[Change]:
    store = DependencyEvaluator._store

    async def store_once(self: Any) -> None:
        try:
            await store(self)
        except Exception:
            self._pending.clear()
            raise

    return [(DependencyEvaluator, "_store", store_once)]


def _unrepeatable_batch() -> list[Change]:
    announce = Announcer.announce_taken_over

    def announce_held(self: Any, tasks: Any, held: Held, now: Any) -> None:
        if held != Held():
            announce(self, tasks, held, now)

    return [
        (transitions, "_is_applied", lambda *_: False),
        (transitions, "_run_is_applied", lambda *_: False),
        # Launching all queued tries of the runs that are then taken up again would make up for most of it.
        (Announcer, "announce_taken_over", announce_held),
    ]


def _lost_launches() -> list[Change]:
    send_again = LocalExecutor._send_again

    def send_without_launches(self: Any, inventory: Any) -> None:
        with patch.object(self, "_send_launch", lambda _: None):
            send_again(self, inventory)

    return [(LocalExecutor, "_send_again", send_without_launches)]


def _timers_of_the_dead() -> list[Change]:
    resume = Evaluation.resume_run

    def resume_without_timers(self: Any, *arguments: Any, **named: Any) -> None:
        with patch.object(self, "_timers", Timers()):
            resume(self, *arguments, **named)

    return [(Evaluation, "resume_run", resume_without_timers)]


def _early_end() -> list[Change]:
    def may_have_ended(self: Any) -> bool:
        return all(task.state not in ("queued", "running", "scheduled") for task in self.all_instances())

    def ends(self: Any) -> Any:
        return [
            TaskEnd(task.task_id, task.state, task.task_id in self.structure.deciding, False)
            for task in self.all_instances()
            if task.state in FINISHED_TASK_STATES
        ]

    return [(ActiveRun, "may_have_ended", property(may_have_ended)), (ActiveRun, "ends", ends)]


def _counted_interruption() -> list[Change]:
    after_try = decisions.after_try

    def count(*args: Any, **kwargs: Any) -> Any:
        return replace(after_try(*args, **kwargs), counts=True)

    return [(decisions, "after_try", count)]


def _forgotten_history() -> list[Change]:
    add = PendingBatch._add

    def add_others(self: Any, row: Any) -> None:
        if not isinstance(row, HistoryRow):
            add(self, row)

    return [(PendingBatch, "_add", add_others)]


def _early_callback() -> list[Change]:
    begin = CallbackRunner._begin

    async def finish_first(self: Any, request: Any) -> None:
        await begin(self, request)
        for token, begun in self._running.items():
            if begun.id == request.id:
                await self._database.write(finish_callback, request, token, "success")

    return [(CallbackRunner, "_begin", finish_first)]


def _lost_run() -> list[Change]:
    def forget(self: Any, dag_id: str, due_at: Any) -> None:
        """Arm no timer."""

    return [(DagRunCreator, "_schedule", forget)]


def _ready_is_lost() -> list[Change]:
    put = Channel.put_nowait

    def put_some(self: Any, item: Any) -> None:
        if not (isinstance(item, TaskReady) and item.launch.try_number == 2):
            put(self, item)

    return [(Channel, "put_nowait", put_some)]


def _silent_lease() -> list[Change]:
    async def tell_nobody(self: Any, valid_until: float) -> None:
        """Renew in the database only."""

    return [(LoopRenewal, "_tell_executor", tell_nobody)]


N_SEEDS = 400
"""Each bug is found by one of this many seeds: by one of forty at least, so that a change of the program, which makes
each seed another story, leaves no bug unfound.
"""
CRASH_BEFORE_STORE = Conditions(("crash_before",), STORES)
CRASH_AFTER_STORE = Conditions(("crash_after",), STORES)
BUGS: dict[str, Bug] = {
    "early-commit": Bug("A try is launched before it is stored as queued.", _early_commit, CRASH_BEFORE_STORE),
    "early-acknowledgement": Bug(
        "The keeper may forget an end before it is stored.", _early_acknowledgement, CRASH_BEFORE_STORE
    ),
    "lost-wake-up": Bug("The end of a try wakes no service.", _lost_wake_up),
    "forgotten-release": Bug("A try that failed gives back no slots.", _forgotten_release),
    "forgotten-occupation": Bug(
        "Tries of an earlier scheduler count against no limit.", _forgotten_occupation, CRASH_AFTER_STORE
    ),
    "double-adoption": Bug("Tries that the keeper still runs are taken for lost.", _double_adoption, CRASH_AFTER_STORE),
    "new-token-for-old-try": Bug(
        "A try that was taken over is launched under another token.", _new_token_for_old_try, CRASH_AFTER_STORE
    ),
    "dropped-batch": Bug("Changes that were not stored are forgotten.", _dropped_batch, Conditions(("away_before",))),
    "unrepeatable-batch": Bug(
        "A batch whose commit was not confirmed is taken for stale, and its tries are not launched.",
        _unrepeatable_batch,
        Conditions(("away_after",)),
    ),
    "lost-launches": Bug(
        "Launches that were on their way to a keeper are not sent to the next one.",
        _lost_launches,
        Conditions(("cut",)),
    ),
    "timers-of-the-dead": Bug(
        "Retries that an earlier scheduler has planned are never due.", _timers_of_the_dead, CRASH_AFTER_STORE
    ),
    "early-end": Bug("A run ends while some of its tasks wait for their next try.", _early_end),
    "counted-interruption": Bug(
        "A try that was interrupted uses up its number.", _counted_interruption, Conditions(("asked_to_stop",))
    ),
    "forgotten-history": Bug("A try that is followed by another one is written down nowhere.", _forgotten_history),
    "early-callback": Bug(
        "A callback is taken for done when it is begun.", _early_callback, Conditions(("crash_after",), CALLBACKS)
    ),
    "lost-run": Bug("A schedule is looked at by the slow sweep only.", _lost_run),
    "lost-launch": Bug("Every second try is stored, and not launched.", _ready_is_lost),
    "silent-lease": Bug("The keeper does not hear that the lease goes on.", _silent_lease),
    **BUGS_OF_OWNERSHIP,
    **BUGS_OF_EDITS,
    **BUGS_OF_RESULTS,
    **BUGS_OF_DEFERRALS,
    **BUGS_OF_PARSES,
    **BUGS_ELSEWHERE,
}
