"""A task that waits for a try, as user code sees it while the file of the task is parsed, before there is any run.

The scheduler runs no user code. So priority weight strategies and the policy `task_instance_mutation_hook` are asked at
the parse, once for each try that a task may have.
"""

from __future__ import annotations

from copy import deepcopy

from asynsched.authoring.trigger_rule import WeightRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asynsched.authoring.operators.base import BaseOperator

MOST_TRIES = 100
"""For how many tries of a task user code is asked; later tries are like the last one."""


ROUTED = ("pool", "pool_slots", "queue", "executor", "executor_config", "priority_weight")
"""The attributes of a task instance that say where its try runs, and how urgent it is."""


class AwaitedTry:
    """The task instance of a try that does not exist yet, with Airflow's names.

    Attributes:
        try_number: The number of tries before this one, as in Airflow before a task is queued.
        priority_weight: The total; computed when it is first read.
    """

    map_index = -1
    dag_run = None
    state = None
    start_date = None
    end_date = None
    priority_weight: int

    def __init__(self, task: BaseOperator, dag_id: str, try_number: int) -> None:
        self.task, self.task_id, self.dag_id, self.operator = task, task.task_id, dag_id, task.task_type
        self.try_number, self.max_tries = try_number, task.retries
        self.pool, self.pool_slots, self.queue = task.pool, task.pool_slots, task.queue
        self.executor, self.executor_config = task.executor, task.executor_config

    def __getattr__(self, name: str) -> Any:
        if name == "priority_weight" and self.task.weight_rule in tuple(WeightRule):
            return total_weight(self.task)
        raise AttributeError(f"{name} is not known yet: the file is parsed before there is a run")


def own_config(task: BaseOperator) -> dict[str, Any]:
    """Return a copy of a task's executor_config that a hook may change.

    It may hold anything. If that cannot be copied, only the outermost dict is a copy.
    """
    try:
        return deepcopy(task.executor_config)
    except Exception:  # noqa: BLE001 - of user code: a lock, an open file, a class that refuses
        return dict(task.executor_config)


def total_weight(task: BaseOperator) -> int:
    """Return the priority weight of a task with those of the tasks that its weight rule adds."""
    if task.weight_rule == WeightRule.ABSOLUTE:
        return task.priority_weight
    others = task.get_flat_relatives(upstream=task.weight_rule == WeightRule.UPSTREAM)
    return task.priority_weight + sum(other.priority_weight for other in others)
