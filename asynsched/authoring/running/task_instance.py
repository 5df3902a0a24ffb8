"""`ti`: what a running task may know and ask about itself."""

from __future__ import annotations

from asynsched.authoring.running.elsewhere import AsksElsewhere, previous_task_instance
from asynsched.authoring.supervisor import SupervisorNotFound, ask, ask_in_parts
from asynsched.authoring.timezone import coerce_datetime
from asynsched.authoring.transport import from_transport, to_transport
from asynsched.authoring.xcom_arg import XCOM_RETURN_KEY

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    import logging
    import uuid
    from collections.abc import Iterable
    from typing import Any

    import jinja2

    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.running.context import Context
    from asynsched.authoring.running.dag_run import DagRun
    from asynsched.authoring.running.elsewhere import PreviousTaskInstance


class Instant:
    """An attribute that shows a field of `self._facts`, a datetime or None, as pendulum's DateTime.

    Args:
        fact: The name of that field.
    """

    def __init__(self, fact: str) -> None:
        self._fact = fact

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        # Next time it is found there, without being asked for here.
        made = instance.__dict__[self._name] = coerce_datetime(getattr(instance._facts, self._fact))  # noqa: SLF001 - a part of it
        return made


class TaskInstanceFacts:
    """What a try is told of itself: the fields of `asynsched.protocol.messages.Launch` that a task may see."""

    __slots__ = (
        "ended_at", "map_index", "max_map_length", "max_tries", "reschedule_started_at", "started_at", "test_mode",
        "try_number",
    )  # fmt: skip

    def __init__(
        self,
        *,
        map_index: int = -1,
        try_number: int = 1,
        max_tries: int = 0,
        started_at: dt.datetime | None = None,
        ended_at: dt.datetime | None = None,
        reschedule_started_at: dt.datetime | None = None,
        max_map_length: int = 1024,
        test_mode: bool = False,
    ) -> None:
        self.map_index = map_index
        self.try_number = try_number
        self.max_tries = max_tries
        self.started_at = started_at
        self.ended_at = ended_at
        self.reschedule_started_at = reschedule_started_at
        self.max_map_length = max_map_length
        self.test_mode = test_mode


class TaskInstance(AsksElsewhere):
    """The running task instance: `ti`. Its members have the names of Airflow's `RuntimeTaskInstance`.

    Not there: `dag_version_id`, `get_relevant_upstream_map_indexes` and `get_task_breadcrumbs`.
    """

    start_date = Instant("started_at")
    end_date = Instant("ended_at")

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
        self.state: str | None = "running"
        self.rendered_map_index: str | None = None
        self.context: Context | None = None
        self.max_map_length = facts.max_map_length
        self.mapped_over: dict[int, Any] = {}
        """What is mapped over, asked for once a try."""

    @property
    def id(self) -> uuid.UUID:
        """Identifies the try; the same for its callbacks."""
        import uuid

        name = "\n".join((self.dag_id, self.run_id, self.task_id, str(self.map_index), str(self.try_number)))
        return uuid.uuid5(uuid.NAMESPACE_URL, name)

    @property
    def hostname(self) -> str:
        """Name of the machine that this process runs on."""
        import socket

        return socket.gethostname()

    @property
    def pid(self) -> int:
        """Id of this process."""
        import os

        return os.getpid()

    @property
    def operator(self) -> str:
        """Name of the task's kind."""
        return self.task.operator_name

    @property
    def is_mapped(self) -> bool:
        """Whether this is one of several instances of a mapped task."""
        return self.map_index >= 0

    @property
    def pool(self) -> str:
        """The task's pool."""
        return self.task.pool

    @property
    def queue(self) -> str:
        """The task's queue."""
        return self.task.queue

    @property
    def log_url(self) -> str:
        """Where to read the log of this try: there is no web page, so it is the command that shows it."""
        from shlex import join

        command = ["asynsched", "tasks", "logs", self.dag_id, self.run_id, self.task_id, "--try", str(self.try_number)]
        return join([*command, "--map-index", str(self.map_index)] if self.is_mapped else command)

    @property
    def mark_success_url(self) -> str:
        """The same as `log_url`, as in Airflow."""
        return self.log_url

    @property
    def logical_date(self) -> dt.datetime | None:
        """The run's logical date."""
        date: dt.datetime | None = self.dag_run.logical_date
        return date

    @property
    def log(self) -> logging.Logger:
        """The task's logger."""
        return self.task.log

    def xcom_push(self, key: str, value: Any) -> None:
        """Store a value under a key, for tasks that come later: they get it as it is.

        It is what JSON has (None, a bool, a number, a text, a list, a dict with texts as keys), a date, a time, a
        timedelta, a timezone, a tuple, a set, a Decimal, a UUID or bytes, or lists, dicts, tuples and sets of these.

        Raises:
            TypeError: The value has something else in it; the message names its type.
        """
        ask("xcom_push", key=key, value=to_transport(value, f"XCom {key!r} of task {self.task_id!r}"))

    def xcom_pull(
        self,
        task_ids: str | Iterable[str] | None = None,
        dag_id: str | None = None,
        key: str = XCOM_RETURN_KEY,
        include_prior_dates: bool = False,
        *,
        map_indexes: int | Iterable[int] | None = None,
        default: Any = None,
        run_id: str | None = None,
    ) -> Any:
        """Return what tasks pushed: a value for one task_id, a list of values for several or for a mapped task.

        Args:
            task_ids: The tasks; this one, unless given.
            dag_id: Their DAG; this one, unless given.
            key: What they pushed it under; by default, what they returned.
            include_prior_dates: Look in earlier runs, too.
            map_indexes: Of mapped tasks, which instances.
            default: Stands for what was not pushed.
            run_id: Their run; this one, unless given.
        """
        single = task_ids is None or isinstance(task_ids, str)
        names = [task_ids] if isinstance(task_ids, str) else [self.task_id] if task_ids is None else list(task_ids)
        one = isinstance(map_indexes, int)
        wanted = [map_indexes] if isinstance(map_indexes, int) else map_indexes
        parts = ask_in_parts(
            "xcom_pull",
            task_ids=names,
            key=key,
            map_indexes=None if wanted is None else list(wanted),
            run_id=run_id,
            dag_id=dag_id,
            include_prior_dates=include_prior_dates,
        )
        try:
            found = [(name, index, from_transport(value)) for part in parts for name, index, value in part]
        except SupervisorNotFound:
            found = []
        values = [_value_of_task(name, found, default, one=one) for name in names]
        return values[0] if single else values

    def get_previous_dagrun(self, state: str | None = None) -> DagRun | None:
        """Return the DagRun of the next earlier logical date, in that state if given; None when there is none."""
        from asynsched.authoring.running.dag_run import DagRun

        if self.logical_date is None:
            return None
        try:
            return DagRun.of_fields(ask("previous_run", state=state))
        except SupervisorNotFound:
            return None

    def get_previous_ti(
        self, state: str | None = None, logical_date: dt.datetime | None = None, map_index: int = -1
    ) -> PreviousTaskInstance | None:
        """Return this task's instance of the newest earlier logical date; None when there is none.

        Args:
            state: Only one in this state.
            logical_date: Earlier than this; than the run's own, unless given.
            map_index: Of a mapped task, which instance.
        """
        before = logical_date or self.logical_date
        if before is None:
            return None
        wanted = None if state is None else str(state)
        return previous_task_instance(
            task_id=self.task_id, before=before.isoformat(), map_index=map_index, state=wanted
        )

    def get_first_reschedule_date(self, context: Context | None = None) -> dt.datetime | None:
        """Return when a rescheduling sensor looked first; None when this is the first time."""
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


def _value_of_task(task_id: str, found: Iterable[tuple[str, int, Any]], default: Any, *, one: bool) -> Any:
    """Return what one task pushed: a value, for a mapped task the list of its instances' values, or the default."""
    by_index = {map_index: value for name, map_index, value in found if name == task_id}
    if not by_index:
        return default
    if one or -1 in by_index:
        return next(iter(by_index.values()))
    return list(by_index.values())
