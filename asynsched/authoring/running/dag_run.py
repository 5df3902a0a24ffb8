"""`dag_run`: what a running task may know about its run, or about an earlier one."""

from __future__ import annotations

from asynsched.authoring.running.task_instance import Instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping
    from typing import Any

_INSTANTS = (
    "run_after", "logical_date", "data_interval_start", "data_interval_end", "queued_at", "started_at", "ended_at",
)  # fmt: skip


class RunFacts:
    """What a try is told of its DagRun: the fields of `asynsched.protocol.messages.RunContext`."""

    __slots__ = (
        "conf", "dag_id", "data_interval_end", "data_interval_start", "ended_at", "logical_date", "queued_at",
        "run_after", "run_id", "run_type", "started_at", "state",
    )  # fmt: skip

    def __init__(
        self,
        *,
        dag_id: str,
        run_id: str,
        run_type: str,
        run_after: dt.datetime,
        logical_date: dt.datetime | None = None,
        data_interval_start: dt.datetime | None = None,
        data_interval_end: dt.datetime | None = None,
        queued_at: dt.datetime | None = None,
        started_at: dt.datetime | None = None,
        ended_at: dt.datetime | None = None,
        state: str = "running",
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        self.dag_id = dag_id
        self.run_id = run_id
        self.run_type = run_type
        self.run_after = run_after
        self.logical_date = logical_date
        self.data_interval_start = data_interval_start
        self.data_interval_end = data_interval_end
        self.queued_at = queued_at
        self.started_at = started_at
        self.ended_at = ended_at
        self.state = state
        self.conf = dict(conf or {})


class DagRun:
    """A DagRun as tasks see it, with the names of its attributes that Airflow has. Its instants are pendulum's.

    `clear_number`, `note`, `partition_key`, `triggering_user_name` and `consumed_asset_events` are there for code that
    reads them, and say nothing.
    """

    clear_number = 0
    note: str | None = None
    partition_key: str | None = None
    triggering_user_name: str | None = None
    consumed_asset_events: tuple[()] = ()
    run_after = Instant("run_after")
    logical_date = Instant("logical_date")
    data_interval_start = Instant("data_interval_start")
    data_interval_end = Instant("data_interval_end")
    queued_at = Instant("queued_at")
    start_date = Instant("started_at")
    end_date = Instant("ended_at")

    def __init__(self, facts: RunFacts) -> None:
        self._facts = facts
        self.dag_id = facts.dag_id
        self.run_id = facts.run_id
        self.run_type = facts.run_type
        self.state = facts.state
        self.conf = facts.conf

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> DagRun:
        """Return the run that such fields of JSON describe: instants as text, under the names of `RunFacts`."""
        import datetime as dt

        known = {name: fields[name] for name in RunFacts.__slots__ if name in fields}
        for name in _INSTANTS:
            if known.get(name) is not None:
                known[name] = dt.datetime.fromisoformat(known[name])
        return cls(RunFacts(**known))

    def __repr__(self) -> str:
        return f"<DagRun {self.dag_id} {self.run_id}>"
