"""State changes as plain rows, which `transitions.apply` writes and returns."""

from datetime import datetime
from typing import Any

from msgspec import Struct

from asynsched.store.schema import CallbackRequest, HistoryRow

TaskRowKey = tuple[int, str, int]
"""dag_run_id, task_id, map_index"""


class TaskRow(Struct, frozen=True):
    """The new values of a TaskInstance, written if its row still has the state and the try number from before."""

    dag_run_id: int
    task_id: str
    map_index: int
    before_state: str | None
    before_try: int
    state: str | None
    reason: str
    try_number: int
    max_tries: int
    machine_kills: int
    token: str | None
    scheduled_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    next_try_at: datetime | None
    rendered_map_index: str | None
    result_length: int | None
    priority_weight: int
    pool: str
    pool_slots: int
    queue: str
    executor: str | None
    deferral: str | None
    ignored_dependencies: str | None = None


class ExpandedRow(Struct, frozen=True):
    """A TaskInstance that its mapped instances replace, if it still has the state from before."""

    dag_run_id: int
    task_id: str
    map_index: int
    before_state: str | None


class RunRow(Struct, frozen=True):
    """The new values of a DagRun, written if its row still has the state and the lease epoch from before.

    `stop`: JSON of the RunStop of a run that is being stopped, or was.
    """

    id: int
    before_state: str
    before_epoch: int
    state: str
    reason: str
    started_at: datetime | None
    ended_at: datetime | None
    version_id: int | None
    scheduler_id: str | None
    lease_epoch: int
    queued_at: datetime
    stop: str | None = None


class ForgottenRow(Struct, frozen=True):
    """A TaskInstance whose XComs are deleted."""

    dag_run_id: int
    task_id: str
    map_index: int


class XComRow(Struct, frozen=True):
    """A task's return value or decision; `value` is JSON."""

    dag_run_id: int
    task_id: str
    map_index: int
    key: str
    value: str
    created_at: datetime


class AssetEventRow(Struct, frozen=True):
    """An update of an asset, by a try or from outside.

    Attributes:
        name: Of the asset; empty where only its URI is known.
        uri: Of the asset; empty where only its name is known.
        aliases: The aliases through which it was updated.
        group: Of an asset that is new.
        asset_extra: Describes an asset that is new.
        token: The try that updated it; None from outside.
        ordinal: Its place among the try's events.
    """

    name: str
    uri: str
    extra: dict[str, Any]
    created_at: datetime
    aliases: tuple[str, ...] = ()
    group: str = "asset"
    asset_extra: dict[str, Any] = {}
    dag_run_id: int = 0
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str = ""
    map_index: int = -1
    token: str | None = None
    ordinal: int = 0


class Batch(Struct, frozen=True):
    """The changes of one moment, made by one scheduler under one lease."""

    lease_epoch: int
    runs: list[RunRow] = []
    expanded: list[ExpandedRow] = []
    new_tasks: list[TaskRow] = []
    tasks: list[TaskRow] = []
    history: list[HistoryRow] = []
    forgotten: list[ForgottenRow] = []
    xcoms: list[XComRow] = []
    callbacks: list[CallbackRequest] = []
    asset_events: list[AssetEventRow] = []

    @property
    def is_of_states_alone(self) -> bool:
        """Whether it only changes task instances that have a row, none with a secret, and runs."""
        others = (
            self.expanded, self.new_tasks, self.history, self.forgotten, self.xcoms, self.callbacks, self.asset_events
        )  # fmt: skip
        return bool(self.tasks) and not any(others) and all(row.deferral is None for row in self.tasks)


class Stale(Struct, frozen=True):
    """The rows that a batch could not change, because they are not as its author knew them."""

    runs: frozenset[int]
    tasks: frozenset[TaskRowKey]

    def __bool__(self) -> bool:
        return bool(self.runs or self.tasks)

    @property
    def run_ids(self) -> frozenset[int]:
        """The runs that have something stale."""
        return self.runs | {key[0] for key in self.tasks}
