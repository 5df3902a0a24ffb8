"""Explanations and the reasons in them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from asynsched.keys import instance_name

if TYPE_CHECKING:
    from asynsched.scheduling.evaluation.run import ActiveTask


def moment(instant: datetime) -> str:
    """Return an instant to the second, for a person."""
    return instant.isoformat(sep=" ", timespec="seconds")


class Subject(Struct, frozen=True, omit_defaults=True):
    """The task instance that a reason begins with."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1


class Reason(Struct, frozen=True, omit_defaults=True):
    """One reason why a DAG, run or task waits, or why it ended.

    Attributes:
        rule: The dependency, limit or state that decided.
        text: Why, for a person.
        release: The event that will end it.
        causes: The reasons for this reason, down to the root.
        about: The only task instance that the text begins with; None for several, or for something else.
    """

    rule: str
    text: str
    release: str = ""
    at: datetime | None = None
    causes: tuple["Reason", ...] = ()
    about: Subject | None = None

    @property
    def line(self) -> str:
        """The reason and its end, for a person."""
        until = f"; until {self.release}" if self.release else ""
        at = f", at {moment(self.at)}" if self.at else ""
        return f"{self.text.rstrip('.')}{until}{at}"


class Explanation(Struct, frozen=True):
    """Why a DAG has no run, a run does not go on, or a task instance does not start.

    Attributes:
        subject: The DAG, run or task instance, e.g. `load of manual__1 of etl`.
        state: Its state now; empty for a DAG.
        answer: The whole in one sentence.
        reasons: Everything that holds it up, or that led to its end; none: it starts now.
    """

    subject: str
    state: str
    answer: str
    reasons: tuple[Reason, ...] = ()


def visible(reasons: Iterable[Reason], dag_ids: frozenset[str] | None) -> tuple[Reason, ...]:
    """Return reasons without the names of task instances of other DAGs than these; None: of all DAGs."""
    if dag_ids is None:
        return tuple(reasons)
    shown, hidden = [], Counter[str]()
    for reason in reasons:
        if reason.about is None or reason.about.dag_id in dag_ids:
            shown.append(msgspec.structs.replace(reason, causes=visible(reason.causes, dag_ids)))
        else:
            hidden[reason.rule] += 1
    for rule, n in hidden.items():
        who = "a task of a DAG" if n == 1 else f"{n} tasks of DAGs"
        shown.append(Reason(rule, f"{who} that you may not see"))
    return tuple(shown)


T = TypeVar("T")
MOST_CAUSES = 5
"""Causes of one reason, and different reasons of one kind of a task, that are listed; the rest is counted."""
MOST_REASONS = 50
"""Reasons of a run that are listed; the rest is counted."""


def shortened(found: Sequence[T], reason_of: Callable[[T], Reason]) -> tuple[Reason, ...]:
    """Return the reasons of the first few, and the number of the others, which are not examined."""
    told = tuple(reason_of(one) for one in found[:MOST_CAUSES])
    more = len(found) - MOST_CAUSES
    return told if more <= 0 else (*told, Reason("more", f"and {more} more"))


def grouped(found: "Iterable[tuple[ActiveTask, Reason]]") -> tuple[Reason, ...]:
    """Return the reasons of a run's task instances, each once, with the instances that it holds up.

    Args:
        found: In order of the tasks, and of the instances of each.
    """
    holds: dict[Reason, list[_Held]] = {}
    for task_id, pairs in groupby(found, key=lambda pair: pair[0].task_id):
        for held, reason in _of_task(task_id, pairs):
            holds.setdefault(reason, []).append(held)
    told = [
        msgspec.structs.replace(
            reason, text=f"{_listed(held)}: {reason.text}", about=held[0].subject if len(held) == 1 else None
        )
        for reason, held in holds.items()
    ]
    more = len(told) - MOST_REASONS
    return tuple(told) if more <= 0 else (*told[:MOST_REASONS], Reason("more", f"and {more} more: ask for a task"))


class _Held(NamedTuple):
    """Instances of one task that a reason holds up: their name, and the instance if it is only one."""

    name: str
    subject: Subject | None


def _listed(held: Sequence[_Held]) -> str:
    """Return the tasks that one reason holds up: the first few, and the number of the others."""
    more = f" and {len(held) - MOST_CAUSES} more" if len(held) > MOST_CAUSES else ""
    return f"task{'s' if len(held) > 1 else ''} {', '.join(one.name for one in held[:MOST_CAUSES])}{more}"


def _of_task(task_id: str, found: "Iterable[tuple[ActiveTask, Reason]]") -> "Iterator[tuple[_Held, Reason]]":
    """Yield the reasons of one task's instances, with these: of each kind, the first few that differ."""
    by_rule: dict[str, dict[Reason, list[ActiveTask]]] = {}
    for task, reason in found:
        by_rule.setdefault(reason.rule, {}).setdefault(reason, []).append(task)
    for rule, held in by_rule.items():
        for reason, tasks in islice(held.items(), MOST_CAUSES):
            yield _held(task_id, tasks), reason
        if more := [task for tasks in islice(held.values(), MOST_CAUSES, None) for task in tasks]:
            yield _held(task_id, more), Reason("more", f"{rule}, each in its own way; ask with --map-index")


def _held(task_id: str, tasks: "Sequence[ActiveTask]") -> _Held:
    name = _named(task_id, [task.map_index for task in tasks])
    return _Held(name, Subject(*tasks[0].key) if len(tasks) == 1 else None)


def _named(task_id: str, indexes: Sequence[int]) -> str:
    """Return the names of instances of a task: `t`, `t[3]`, `t[0..2, 5] (4 instances)`."""
    if len(indexes) == 1:
        return instance_name(task_id, indexes[0])
    spans = [[index for _, index in span] for _, span in groupby(enumerate(sorted(indexes)), lambda at: at[1] - at[0])]
    named = [f"{span[0]}..{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans[:MOST_CAUSES]]
    return f"{task_id}[{', '.join(named)}{', …' if len(spans) > MOST_CAUSES else ''}] ({len(indexes)} instances)"
