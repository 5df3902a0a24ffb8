"""The task instance or run that waits for the end of each try, by the try's token.

A token is *awaited* by a task instance that is queued, running or restarting; *deferred* while a trigger works for its
task instance; or *leaving*: the try is being ended and no task instance waits for it, but its run does. The run waits
because, once it has ended, it may be cleared and begun again by another scheduler, whose keeper knows nothing of
processes left here. A token is *unclaimed* while the executor may still run its try for a run that is not in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from asynsched.channels import TriggerUnwanted, TriggerWanted, TryUnwanted
from asynsched.scheduling.evaluation.changes import SLOTS, TRIGGER, TaskChange
from asynsched.scheduling.evaluation.deferral import trigger_of
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask

Message = TryUnwanted | TriggerWanted | TriggerUnwanted


class Tries:
    """Every try that memory knows of."""

    def __init__(self) -> None:
        self.awaited: dict[str, ActiveTask] = {}
        self.deferred: dict[str, ActiveTask] = {}
        self.unclaimed: set[str] = set()
        self._leaving: dict[str, ActiveRun] = {}
        self._left_by: dict[ActiveRun, set[str]] = {}
        self._since: dict[ActiveRun, datetime] = {}
        """When the last leaving try of a run was added, until `take_lingering` has returned the run."""

    def swap(self, change: TaskChange, held: int, holds: int, now: datetime) -> Message | None:
        """Follow a task instance from holding `held` to `holds`; return the message on its try or trigger, if any."""
        task, token = change.task, change.token
        message: Message | None = None
        if token is not None and held == TRIGGER and self.deferred.pop(token, None) is not None:
            message = TriggerUnwanted(token)
        elif token is not None and held == SLOTS and self.awaited.pop(token, None) is not None:
            # The task instance goes on without its try, which has not ended.
            self.leave(task.run, (token,), now)
            message = TryUnwanted(token, change.reason)
        if holds == SLOTS and task.token is not None:
            self.awaited[task.token] = task
        # A task instance that was put into this state by hand waits for no trigger.
        elif holds == TRIGGER and task.deferral is not None and task.token is not None:
            self.deferred[task.token] = task
            message = TriggerWanted(trigger_of(task, task.deferral.deferral, task.token), task.run.code)
        return message

    def ended(self, token: str) -> tuple[ActiveTask | None, ActiveRun | None]:
        """Forget a try that is gone. Returns the task instance that waited for its end, and the run that did."""
        self.unclaimed.discard(token)
        task = self.awaited.pop(token, None)
        run = self._leaving.pop(token, None) if self._leaving else None
        if run is not None:
            self._left_by[run].discard(token)
            if not self._left_by[run]:
                self.forget(run)
        return task, run

    def leave(self, run: ActiveRun, tokens: Iterable[str], now: datetime) -> None:
        """Make a run wait until these tries, for which none of its task instances waits, are gone."""
        for token in tokens:
            self._leaving[token] = run
            self._left_by.setdefault(run, set()).add(token)
            self._since[run] = now

    @property
    def are_leaving(self) -> bool:
        """Whether runs wait for tries that no task instance waits for."""
        return bool(self._leaving)

    def are_waited_for(self, run: ActiveRun) -> bool:
        """Return whether a run waits for leaving tries."""
        return run in self._left_by

    def leaving_of(self, run: ActiveRun) -> list[str]:
        """Return the tokens of a run's leaving tries."""
        return sorted(self._left_by.get(run, ()))

    def forget(self, run: ActiveRun) -> list[str]:
        """Forget the leaving tries of a run, and return their tokens."""
        self._since.pop(run, None)
        tokens = sorted(self._left_by.pop(run, ()))
        for token in tokens:
            del self._leaving[token]
        return tokens

    def take_lingering(self, before: datetime) -> list[tuple[ActiveRun, list[str]]]:
        """Return the runs, each once, whose tries have been leaving since before a moment, with the tokens."""
        found = [run for run, since in self._since.items() if since < before]
        for run in found:
            del self._since[run]
        return [(run, self.leaving_of(run)) for run in found]
