"""`ti` and `dag_run`: a running task's questions and requests about itself, its run, and runs of other DAGs."""

from __future__ import annotations

from asynsched.authoring import defaults
from asynsched.authoring.exceptions import AsynschedException
from asynsched.authoring.params import NOTSET, NotSet
from asynsched.authoring.supervisor import ask, ask_in_parts, ask_or_none
from asynsched.authoring.timezone import coerce_datetime
from asynsched.authoring.xcom import in_thread, pulled_xcoms, written_xcom
from asynsched.authoring.xcom_arg import XCOM_RETURN_KEY

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    import logging
    import uuid
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any

    import jinja2

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.running.context import Context
    from asynsched.protocol.messages import RunContext, TaskInstanceFacts
    from asynsched.states import DagRunState


UNMAPPED = -1
"""The map index of a task that is not mapped."""


class Timed:
    """What has a start and an end."""

    start_date: Any
    end_date: Any

    @property
    def duration(self) -> float | None:
        """The seconds that its try took; None if it has not finished."""
        if self.start_date is None or self.end_date is None:
            return None
        seconds: float = (self.end_date - self.start_date).total_seconds()
        return seconds


class PreviousTaskInstance(Timed):
    """A task instance of an earlier run. Its dates are pendulum DateTimes."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.dag_id: str = fields["dag_id"]
        self.run_id: str = fields["run_id"]
        self.task_id: str = fields["task_id"]
        self.map_index: int = fields["map_index"]
        self.state: str | None = fields["state"]
        self.try_number: int = fields["try_number"]
        self.logical_date = self.execution_date = _instant(fields["logical_date"])
        self.start_date = _instant(fields["started_at"])
        self.end_date = _instant(fields["ended_at"])

    def __repr__(self) -> str:
        return f"<PreviousTaskInstance {self.dag_id} {self.run_id} {self.task_id} {self.state}>"


class AsksElsewhere:
    """Requests about runs of any DAG. They need no task instance, but work only in a running task."""

    @staticmethod
    def get_ti_count(
        dag_id: str,
        map_index: int | None = None,
        task_ids: Collection[str] | None = None,
        task_group_id: str | None = None,
        logical_dates: Collection[dt.datetime] | None = None,
        run_ids: Collection[str] | None = None,
        states: Collection[str] | None = None,
    ) -> int:
        """Return the number of task instances that match; None or empty means no filter.

        Raises SupervisorNotFound if the task group does not exist.
        """
        n: int = ask("task_count", **_wanted(locals()))
        return n

    @staticmethod
    def get_task_states(
        dag_id: str,
        map_index: int | None = None,
        task_ids: Collection[str] | None = None,
        task_group_id: str | None = None,
        logical_dates: Collection[dt.datetime] | None = None,
        run_ids: Collection[str] | None = None,
    ) -> dict[str, dict[str, str | None]]:
        """Return states by run_id and then task_id; the key of a mapped task is the task_id, `_` and the map index.

        Raises SupervisorNotFound if the task group does not exist.
        """
        wanted = {**_wanted(locals()), "states": None}
        states: dict[str, dict[str, str | None]] = {}
        for part in ask_in_parts("task_states", **wanted):
            for run_id, found in part.items():
                states.setdefault(run_id, {}).update(found)
        return states

    @staticmethod
    def get_dr_count(
        dag_id: str,
        logical_dates: Collection[dt.datetime] | None = None,
        run_ids: Collection[str] | None = None,
        states: Collection[str] | None = None,
    ) -> int:
        """Return the number of runs that match; None or empty means no filter."""
        n: int = ask("run_count", **_wanted(locals()))
        return n

    @staticmethod
    def get_dagrun_state(dag_id: str, run_id: str) -> DagRunState:
        """Return the state of a run. Raises SupervisorNotFound if it does not exist."""
        from asynsched.states import DagRunState

        return DagRunState(ask("run_state", dag_id=dag_id, run_id=run_id))


def _wanted(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters of a request as JSON: collections as lists, instants and states as strings."""
    return {name: _as_json(value) for name, value in filters.items()}


def _as_json(value: Any) -> Any:
    if value is None or isinstance(value, (str, int)):
        return value
    return [item.isoformat() if hasattr(item, "isoformat") else str(item) for item in value]


def _instant(text: str | None) -> Any:
    import datetime as dt

    return None if text is None else coerce_datetime(dt.datetime.fromisoformat(text))


class Instant:
    """An attribute that shows a field of `self._facts`, a datetime or None, as a pendulum DateTime."""

    def __init__(self, fact: str) -> None:
        self._fact = fact

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        # Later reads find it there.
        made = instance.__dict__[self._name] = coerce_datetime(getattr(instance._facts, self._fact))  # noqa: SLF001 - a part of it
        return made


class Member:
    """An attribute that is read as the member of an enum of `asynsched.states`, and may be set to its text or None.

    Until it is set, it is the field of `self._facts` with its name, or else the default.
    """

    def __init__(self, enum: str, default: str | None = None) -> None:
        self._enum = enum
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        from asynsched import states

        known = instance.__dict__
        text = known[self._name] if self._name in known else getattr(instance._facts, self._name, self._default)  # noqa: SLF001 - a part of it
        return None if text is None else getattr(states, self._enum)(text)

    def __set__(self, instance: Any, value: str | None) -> None:
        instance.__dict__[self._name] = value


class TaskInstance(AsksElsewhere, Timed):
    """The running task instance: `ti`. Its members are those of Airflow's `RuntimeTaskInstance`.

    `execution_date` and `duration` are those of Airflow 2. Missing are `dag_version_id`, `get_dag`,
    `get_relevant_upstream_map_indexes` and `get_task_breadcrumbs`.
    """

    start_date = Instant("started_at")
    end_date = Instant("ended_at")
    state = Member("TaskInstanceState", "running")

    def __init__(self, task: BaseOperator, dag_run: DagRun, facts: TaskInstanceFacts) -> None:
        self._facts = facts
        self.task = task
        self.task_id = task.task_id
        self.dag_id = dag_run.dag_id
        self.run_id = dag_run.run_id
        self.dag_run = dag_run
        self.map_index = facts.map_index
        self.try_number = facts.try_number
        self.max_tries = facts.max_tries
        self.is_mapped = facts.map_index >= 0
        self.operator = task.operator_name
        route = facts.route or task
        self.pool, self.pool_slots, self.queue = route.pool, route.pool_slots, route.queue
        self.executor, self.executor_config = route.executor, route.executor_config
        self.priority_weight = route.priority_weight
        self.rendered_map_index: str | None = None
        self.rendered_fields: str | None = None
        """JSON of the template fields, if a template was rendered in them."""
        self.context: Context | None = None
        self.follow: tuple[str, ...] | None = None
        """The task_ids that it follows, as a branch."""
        self.skips: tuple[str, ...] | None = None
        """The task_ids that it skips, by `SkipMixin.skip`."""
        self.short_circuit: bool | None = None
        """Of a short circuit whose condition is false: whether it skips all downstream, whatever the trigger rules."""
        self.max_map_length = facts.max_map_length
        self.mapped_over: dict[int, Any] = {}
        """Values to map over, requested once per try."""

    @property
    def id(self) -> uuid.UUID:
        """The id of the try, also in its callbacks."""
        import uuid

        name = "\n".join((self.dag_id, self.run_id, self.task_id, str(self.map_index), str(self.try_number)))
        return uuid.uuid5(uuid.NAMESPACE_URL, name)

    @property
    def hostname(self) -> str:
        """The name of this machine."""
        import socket

        return socket.gethostname()

    @property
    def pid(self) -> int:
        """The id of this process."""
        import os

        return os.getpid()

    @property
    def log_url(self) -> str:
        """The address of this try in the page; without `web.base_url`, the command that shows its log."""
        if defaults.page_url:
            from urllib.parse import quote

            parts = {"dags": self.dag_id, "runs": self.run_id, "tasks": self.task_id}
            path = "/".join(f"{kind}/{quote(name, safe='~:+@')}" for kind, name in parts.items())
            return f"{defaults.page_url}/{path}?map_index={self.map_index}&try_number={self.try_number}"
        from shlex import join

        command = ["asynsched", "tasks", "logs", self.dag_id, self.run_id, self.task_id, "--try", str(self.try_number)]
        return join([*command, "--map-index", str(self.map_index)] if self.is_mapped else command)

    mark_success_url = log_url

    @property
    def logical_date(self) -> dt.datetime | None:
        """The run's logical date."""
        date: dt.datetime | None = self.dag_run.logical_date
        return date

    @property
    def execution_date(self) -> dt.datetime | None:
        """The name that `logical_date` has in Airflow 2."""
        return self.logical_date

    @property
    def log(self) -> logging.Logger:
        """The task's logger."""
        return self.task.log

    def xcom_push(self, key: str, value: Any) -> None:
        """Store a value under a key for later tasks, which receive it unchanged.

        Supported are JSON values, dates, times, timedeltas, timezones, tuples, sets, Decimals, UUIDs and bytes, and
        lists, dicts, tuples and sets of these. Raises TypeError if the value contains something else; the message names
        its type.
        """
        ask("xcom_push", key=key, value=written_xcom(value, f"XCom {key!r} of task {self.task_id!r}", key, self))

    def xcom_pull(
        self,
        task_ids: str | Iterable[str] | None = None,
        dag_id: str | None = None,
        key: str = XCOM_RETURN_KEY,
        include_prior_dates: bool = False,
        *,
        map_indexes: int | Iterable[int] | NotSet | None = NOTSET,
        default: Any = None,
        run_id: str | None = None,
    ) -> Any:
        """Return XComs: one value for a single task_id, a flat list of values for several or for a mapped task.

        Args:
            task_ids: The tasks; by default this task.
            dag_id: Their DAG; by default this DAG.
            key: The key of the XComs; by default, that of return values.
            include_prior_dates: Take each task's values from the newest run up to this one's date that has any.
            map_indexes: The instances of mapped tasks; by default all, None for that of a task that is not mapped.
            default: The value for a missing XCom.
            run_id: Their run; by default this run.
        """
        is_of_one = task_ids is None or isinstance(task_ids, str)
        names = [task_ids] if isinstance(task_ids, str) else [self.task_id] if task_ids is None else list(task_ids)
        indexes: list[int] | None = None
        if map_indexes is None or isinstance(map_indexes, int):
            indexes = [UNMAPPED if map_indexes is None else map_indexes]
        elif not isinstance(map_indexes, NotSet):
            indexes, is_of_one = list(map_indexes), False
        by_task: dict[str, dict[int, Any]] = {name: {} for name in names}
        # The newest run that has a value may be another one for each task.
        for asked in [[name] for name in names] if include_prior_dates else [names]:
            found = pulled_xcoms(
                task_ids=asked,
                key=key,
                map_indexes=indexes,
                run_id=run_id,
                dag_id=dag_id,
                include_prior_dates=include_prior_dates,
            )
            for name, index, value in found:
                by_task[name][index] = value
        if indexes is None:
            values = [by_task[name] or {UNMAPPED: default} for name in names]
            if is_of_one and UNMAPPED not in values[0]:
                return list(values[0].values())
            flat = [value for by_index in values for value in by_index.values()]
        else:
            chosen = [by_task[name].get(index) for name in names for index in indexes]
            flat = [default if value is None else value for value in chosen]
        return flat[0] if is_of_one else flat

    async def axcom_push(self, key: str, value: Any) -> None:
        """Call `xcom_push` in a thread: for coroutines."""
        await in_thread(self.xcom_push, key, value)

    async def axcom_pull(self, *args: Any, **kwargs: Any) -> Any:
        """Call `xcom_pull` with the same arguments in a thread: for coroutines."""
        return await in_thread(self.xcom_pull, *args, **kwargs)

    def get_previous_dagrun(self, state: str | None = None) -> DagRun | None:
        """Return the DagRun with the next earlier logical date, in `state` if given; None if there is none."""
        if self.logical_date is None:
            return None
        found = ask_or_none("previous_run", state=state)
        return None if found is None else DagRun.of_fields(found)

    def get_previous_ti(
        self, state: str | None = None, logical_date: dt.datetime | None = None, map_index: int = -1
    ) -> PreviousTaskInstance | None:
        """Return this task's instance with the next earlier logical date; None if there is none.

        Args:
            state: The state that the instance must have.
            logical_date: The date to search before; by default the run's own.
            map_index: The instance of a mapped task.
        """
        before = logical_date or self.logical_date
        if before is None:
            return None
        state = None if state is None else str(state)
        wanted = {"task_id": self.task_id, "before": before.isoformat(), "map_index": map_index, "state": state}
        found = ask_or_none("previous_task_instance", **wanted)
        return None if found is None else PreviousTaskInstance(found)

    def get_first_reschedule_date(self, context: Context | None = None) -> dt.datetime | None:
        """Return when the first process of a rescheduled task began; None in the first one of a try."""
        return coerce_datetime(self._facts.reschedule_started_at)

    def get_template_context(self) -> Context:
        """Return the context."""
        assert self.context is not None
        return self.context

    def render_templates(self, context: Context | None = None, jinja_env: jinja2.Environment | None = None) -> None:
        """Render the template fields of the task."""
        self.task.render_template_fields(context or self.get_template_context(), jinja_env)

    def __repr__(self) -> str:
        return f"<TaskInstance {self.dag_id} {self.run_id} {self.task_id} try {self.try_number}>"


class DagRun:
    """A DagRun as tasks see it, with Airflow's names. Its dates are pendulum DateTimes.

    `clear_number`, `note`, `triggering_user_name` and `consumed_asset_events` exist for code that
    reads them, but are always empty.
    """

    clear_number = 0
    note: str | None = None
    triggering_user_name: str | None = None
    consumed_asset_events: tuple[()] = ()
    run_after = Instant("run_after")
    logical_date = Instant("logical_date")
    data_interval_start = Instant("data_interval_start")
    data_interval_end = Instant("data_interval_end")
    queued_at = Instant("queued_at")
    start_date = Instant("started_at")
    end_date = Instant("ended_at")
    partition_date = Instant("partition_date")
    state = Member("DagRunState")
    run_type = Member("DagRunType")
    _INSTANTS = (
        "run_after", "logical_date", "data_interval_start", "data_interval_end", "queued_at", "started_at", "ended_at",
        "partition_date",
    )  # fmt: skip

    def __init__(self, facts: RunContext, dag: DAG | None = None) -> None:
        self._facts = facts
        self.dag = dag
        self.dag_id = facts.dag_id
        self.run_id = facts.run_id
        self.conf = facts.conf
        self.partition_key = facts.partition_key

    def get_dag(self) -> DAG:
        """Return the DAG of the run. Listeners of Airflow's packages ask for it."""
        if self.dag is None:
            raise AsynschedException(f"the DAG of {self} is not loaded in this process")
        return self.dag

    @property
    def execution_date(self) -> dt.datetime | None:
        """The name that `logical_date` has in Airflow 2."""
        date: dt.datetime | None = self.logical_date
        return date

    @property
    def external_trigger(self) -> bool:
        """Airflow 2's flag of runs that were triggered, not made by a schedule."""
        return self.run_type in ("manual", "operator_triggered")

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> DagRun:
        """Return the run that the fields of a `RunContext` in JSON describe."""
        import datetime as dt
        from types import SimpleNamespace

        known = {"state": "running", "conf": {}, "partition_key": None, **dict.fromkeys(cls._INSTANTS), **fields}
        for name in cls._INSTANTS:
            if known[name] is not None:
                known[name] = dt.datetime.fromisoformat(known[name])
        facts: Any = SimpleNamespace(**known)
        return cls(facts)

    def __repr__(self) -> str:
        return f"<DagRun {self.dag_id} {self.run_id}>"


class DagRunOfDeadline(DagRun, dict[str, object]):
    """The run that has missed a deadline: also the dict that Airflow's deadline callbacks get, as JSON has a run.

    What only the database knows of a run is None, or empty.
    """

    def __init__(self, run: DagRun) -> None:
        super().__init__(run._facts, run.dag)  # noqa: SLF001 - of the same run
        start, end = self._facts.started_at, self._facts.ended_at
        self.update(
            dag_run_id=self.run_id, dag_id=self.dag_id, logical_date=_text(self._facts.logical_date),
            queued_at=_text(self._facts.queued_at), start_date=_text(start), end_date=_text(end),
            duration=None if start is None or end is None else (end - start).total_seconds(),
            data_interval_start=_text(self._facts.data_interval_start),
            data_interval_end=_text(self._facts.data_interval_end), run_after=_text(self._facts.run_after),
            last_scheduling_decision=None, run_type=self.run_type, state=self.state, triggered_by=None,
            triggering_user_name=None, conf=self.conf, note=None, dag_versions=[], bundle_version=None,
            dag_display_name=self.dag_id if run.dag is None else run.dag.dag_display_name,
            partition_key=self.partition_key, partition_date=_text(self._facts.partition_date),
        )  # fmt: skip


def _text(instant: dt.datetime | None) -> str | None:
    return None if instant is None else instant.isoformat().replace("+00:00", "Z")
