"""Priority weights that a class of the user's computes, for the argument `weight_rule` of tasks.

The scheduler runs no user code, so the weights of all tries are computed when the file is parsed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from asynsched.authoring.awaited_try import MOST_TRIES, AwaitedTry
from asynsched.authoring.class_paths import imported_class
from asynsched.authoring.operators import arguments
from asynsched.authoring.trigger_rule import WeightRule
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asynsched.authoring.operators.base import BaseOperator


class PriorityWeightStrategy(ABC):
    """Computes the priority weight of each try of a task. Its instances have no state of their own."""

    @abstractmethod
    def get_weight(self, ti: Any) -> int:
        """Return the weight of a try.

        Args:
            ti: The task instance, with nothing of a run. Its `try_number` is the number of tries before this one.
        """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self))

    def __hash__(self) -> int:
        return hash(type(self))


def weight_rule_of(owner: str, rule: Any) -> str | PriorityWeightStrategy:
    """Return a weight rule, checked. The class path of a strategy gives an instance.

    Raises:
        DagError: The rule is unknown, or the class path names something else.
    """
    if isinstance(rule, PriorityWeightStrategy):
        return rule
    if isinstance(rule, str) and "." in rule:
        try:
            return imported_class(rule, PriorityWeightStrategy)()  # type: ignore[type-abstract]
        except ImportError as exc:
            raise DagError(f"{owner}: weight_rule {exc}") from exc
    return arguments.one_of(owner, "weight_rule", rule, WeightRule)


def weights(strategy: PriorityWeightStrategy, task: BaseOperator, dag_id: str) -> tuple[int, ...]:
    """Return the weights of a task's tries, the first one's first."""
    n = min(task.retries + 1, MOST_TRIES)
    return tuple(strategy.get_weight(AwaitedTry(task, dag_id, tries)) for tries in range(n))
