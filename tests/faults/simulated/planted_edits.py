"""Bugs that are planted on purpose where people clear, mark, cancel, pause, and change pools while tasks run."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from asynsched.channels import Channel, PoolsChanged
from asynsched.scheduling.announcements import Announcer
from asynsched.scheduling.evaluation import decisions
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.evaluation.ready import ReadyQueues
from sandbox.supervision.tries import Turns
from tests.faults.simulated.bug import Bug, Change
from tests.faults.simulated.conditions import Conditions


def _no_turns() -> list[Change]:
    def begin(self: Any, launched: Any) -> None:
        self._begin(launched)

    return [(Turns, "wait", begin), (Turns, "is_over", lambda *_: None)]


def _mark_without_kill() -> list[Change]:
    return [(Announcer, "end_tries", lambda *_: None)]


def _counted_for_ever() -> list[Change]:
    drop = Evaluation.drop_run

    def drop_counted(self: Any, key: Any) -> list[str]:
        with patch.object(ReadyQueues, "release", lambda *_: None):
            return drop(self, key)

    return [(Evaluation, "drop_run", drop_counted)]


def _unheard_growth() -> list[Change]:
    put = Channel.put_nowait

    def put_quietly(self: Any, item: Any) -> None:
        with patch.object(self, "_wake", None) if isinstance(item, PoolsChanged) else nullcontext():
            put(self, item)

    return [(Channel, "put_nowait", put_quietly)]


def _running_on_in_a_pause() -> list[Change]:
    return [(ReadyQueues, "pause", lambda *_, **__: None)]


def _half_a_stop() -> list[Change]:
    stopping = decisions._stopping

    def stop_first_instances(run: Any, *args: Any) -> Any:
        first = [task for task in run.all_instances() if task.map_index <= 0]
        return stopping(SimpleNamespace(all_instances=lambda: first), *args)

    return [(decisions, "_stopping", stop_first_instances)]


BUGS_OF_EDITS: dict[str, Bug] = {
    "no-turns": Bug(
        "A try begins while the one before it, which was marked, still cleans up.",
        _no_turns,
        Conditions(people="mark tasks"),
    ),
    "mark-without-kill": Bug(
        "A task that was marked while it ran goes on.", _mark_without_kill, Conditions(people="mark tasks")
    ),
    "counted-for-ever": Bug(
        "A run that is taken up again keeps the slots that it had.", _counted_for_ever, Conditions(people="clear tasks")
    ),
    "unheard-growth": Bug("A grown pool wakes no service.", _unheard_growth, Conditions(people="resize")),
    "running-on-in-a-pause": Bug("Tasks of a paused DAG start.", _running_on_in_a_pause, Conditions(people="pause")),
    "half-a-stop": Bug(
        "A run that is cancelled goes on with instances of its mapped tasks.", _half_a_stop, Conditions(people="cancel")
    ),
}
