"""Priority weights that a class of the user's computes, for the argument `weight_rule` of tasks.

The scheduler runs no user code, so the weights of all tries are computed when the file is parsed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from asynsched.authoring.class_paths import imported_class
from asynsched.authoring.operators import arguments
from asynsched.authoring.trigger_rule import WeightRule
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asynsched.authoring.operators.base import BaseOperator

MOST_TRIES = 100
"""For how many tries of a task weights are computed; later tries have the last one."""


class PriorityWeightStrategy(ABC):
    """Computes the priority weight of each try of a task. Its instances have no state of their own."""

    @abstractmethod
    def get_weight(self, ti: Any) -> int:
        """Return the weight of a try.

        Args:
            ti: A task that waits for its next try. It has `task`, `task_id`, `dag_id`, `map_index` (-1), `max_tries`,
                and `try_number`, the number of tries before this one. It has nothing of a run.
        """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self))

    def __hash__(self) -> int:
        return hash(type(self))


class _Waiting:
    """A task that waits for its next try, as far as it is known while its file is parsed."""

    map_index = -1

    def __init__(self, task: BaseOperator, dag_id: str, try_number: int) -> None:
        self.task, self.task_id, self.dag_id = task, task.task_id, dag_id
        self.try_number, self.max_tries = try_number, task.retries

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a strategy of priority weights can use the task and its try_number only, not {name}")


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
    return tuple(strategy.get_weight(_Waiting(task, dag_id, tries)) for tries in range(n))
