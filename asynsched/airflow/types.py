"""Markers for arguments that were not given, the key of a task instance, and who creates runs."""

from __future__ import annotations

from collections import namedtuple
from enum import Enum

from asynsched.authoring.params import NOTSET as NOTSET
from asynsched.authoring.params import NotSet as ArgNotSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NamedTuple

    class _Key(NamedTuple):
        dag_id: str
        task_id: str
        run_id: str
        try_number: int = 1
        map_index: int = -1
else:
    # As the class above, without the import of `typing`.
    _Key = namedtuple("TaskInstanceKey", "dag_id task_id run_id try_number map_index", defaults=(1, -1))


class DagRunTriggeredByType(Enum):
    """Who has created a run."""

    CLI = "cli"
    OPERATOR = "operator"
    REST_API = "rest_api"
    UI = "ui"
    TEST = "test"
    TIMETABLE = "timetable"
    ASSET = "asset"
    BACKFILL = "backfill"


class SetDuringExecution(ArgNotSet):
    """The type of SET_DURING_EXECUTION: the value is known only once the task runs."""

    @staticmethod
    def serialize() -> str:
        """Return the value's description for people."""
        return "DYNAMIC (set during execution)"


SET_DURING_EXECUTION = SetDuringExecution()


def is_arg_set(value: Any) -> bool:
    """Return whether the argument was given."""
    return not isinstance(value, ArgNotSet)


class TaskInstanceKey(_Key):
    """Identifies a try of a task instance."""

    __slots__ = ()

    @property
    def primary(self) -> tuple[str, str, str, int]:
        """The task instance, without the try."""
        return self.dag_id, self.task_id, self.run_id, self.map_index

    @property
    def key(self) -> TaskInstanceKey:
        """Itself, as a task instance has a key."""
        return self

    def with_try_number(self, try_number: int) -> TaskInstanceKey:
        """Return the key of another try."""
        return TaskInstanceKey(self.dag_id, self.task_id, self.run_id, try_number, self.map_index)
