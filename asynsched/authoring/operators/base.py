"""BaseOperator, the base of every task: its arguments, its hooks, its place in the DAG, its mapping and deferral."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring import active, airflow_2, defaults
from asynsched.authoring.active import SetupTeardownContext, close_block, note_new_task, warn_of_no_effect
from asynsched.authoring.exceptions import TaskDeferralError, TaskDeferralTimeout, TaskDeferred
from asynsched.authoring.node import DAGNode, check_key, flatten
from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.arguments import (
    BaseOperatorMeta,
    check_template_fields,
    invalid_arguments,
    task_owner,
)
from asynsched.authoring.params import ParamsDict
from asynsched.authoring.priority_weight import PriorityWeightStrategy, weight_rule_of
from asynsched.authoring.running.templating import Templater
from asynsched.authoring.trigger_rule import TriggerRule, WeightRule
from asynsched.authoring.triggers.base import (
    FAIL_METHOD,
    TRIGGER_FAILURE,
    TRIGGER_TIMEOUT,
    BaseTrigger,
    StartTriggerArgs,
    make_trigger,
)
from asynsched.authoring.xcom_arg import XComArg, references
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import Any, Never, NoReturn, Self

    import jinja2

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.mapping import MappedOperator, OperatorPartial
    from asynsched.authoring.retry_policy import RetryPolicy
    from asynsched.authoring.running.context import Context
    from asynsched.authoring.task_group import TaskGroup

DEFAULT_RETRY_DELAY = dt.timedelta(seconds=300)
_NO_EFFECT = ("doc", "doc_json", "doc_rst", "doc_yaml", "resources", "run_as_user", "sla")
"""Arguments of Airflow that have no effect here, if they are given."""
_PLAIN = (
    "allow_nested_operators", "doc", "doc_json", "doc_md", "doc_rst", "doc_yaml", "email_on_failure",
    "email_on_retry", "map_index_template", "render_template_as_native_obj", "resources", "run_as_user", "sla",
)  # fmt: skip
"""Arguments that become attributes without a check."""
_FLAGS = (
    "depends_on_past", "do_xcom_push", "ignore_first_depends_on_past", "multiple_outputs", "wait_for_downstream",
    "wait_for_past_depends_before_skipping",
)  # fmt: skip
_COUNTS = ("max_active_tis_per_dag", "max_active_tis_per_dagrun")
_CALLBACKS = tuple(f"on_{event}_callback" for event in ("execute", "failure", "success", "retry", "skipped"))


def _is_set(attribute: str) -> property:
    """Make a property that is whether an attribute is set."""
    return property(lambda operator: bool(getattr(operator, attribute)))


class BaseOperator(DAGNode, Templater, metaclass=BaseOperatorMeta):
    """A task. A subclass takes its own arguments in `__init__`, passes the others on, and implements `execute`.

    The arguments have the names and defaults of Airflow 3's `BaseOperator`.
    """

    ui_color = "#fff"
    ui_fgcolor = "#000"
    shallow_copy_attrs: Sequence[str] = ()
    operator_extra_links: Collection[Any] = ()
    custom_operator_name: str | None = None
    is_sensor: bool = False
    is_branch: bool = False
    is_short_circuit: bool = False
    params_are_asked: bool = False
    """Whether a person enters the `params`, instead of the run's conf."""
    is_setup: bool = False
    is_teardown: bool = False
    returns_dag_result: bool = False
    overwrite_rtif_after_execution: bool = False
    """Whether the template fields are shown as they are after `execute`, which sets some of them."""
    on_failure_fail_dagrun: bool = False
    is_mapped: bool = False
    is_async: bool = False
    is_mapped_over: bool = False
    """Whether a task or a task group is mapped over this task's return value."""
    class_defaults: Mapping[str, Any] = {}
    """For a mapped task, the defaults that the operator's own classes give to arguments of every task."""
    mapped_from: MappedOperator | None = None
    """For a running instance, its mapped task."""
    kept_as_is: Sequence[Any] = ()
    """Values from other tasks, in which no templates are rendered."""
    start_from_trigger: bool = False
    """Whether the task begins by waiting for the trigger of `start_trigger_args` instead of calling `execute`."""
    start_trigger_args: StartTriggerArgs | None = None
    start_date = arguments.DateAttribute(max)
    """The first logical date at which it runs: its own, or that of its DAG if it is later, as in Airflow."""
    end_date = arguments.DateAttribute(min)
    trigger_rule: str
    upstream_task_ids: set[str]
    downstream_task_ids: set[str]
    email: str | list[str] | None
    email_on_retry: bool | None
    email_on_failure: bool | None
    allow_nested_operators: bool
    doc: str | None
    doc_json: str | None
    doc_md: str | None
    doc_rst: str | None
    doc_yaml: str | None
    map_index_template: str | None
    render_template_as_native_obj: bool | None
    do_xcom_push: bool
    multiple_outputs: bool
    depends_on_past: bool
    ignore_first_depends_on_past: bool
    wait_for_downstream: bool
    wait_for_past_depends_before_skipping: bool
    max_active_tis_per_dag: int | None
    max_active_tis_per_dagrun: int | None
    on_execute_callback: list[Callable[..., Any]]
    on_failure_callback: list[Callable[..., Any]]
    on_success_callback: list[Callable[..., Any]]
    on_retry_callback: list[Callable[..., Any]]
    on_skipped_callback: list[Callable[..., Any]]
    _constructed = False
    _dag: DAG | None = None

    def __init__(
        self,
        *,
        task_id: str,
        owner: str | None = "airflow",
        email: str | Sequence[str] | None = None,
        email_on_retry: bool | None = None,
        email_on_failure: bool | None = None,
        retries: int | None = 0,
        retry_delay: dt.timedelta | float | None = DEFAULT_RETRY_DELAY,
        retry_exponential_backoff: float | None = 0,
        max_retry_delay: dt.timedelta | float | None = None,
        retry_policy: RetryPolicy | None = None,
        start_date: dt.datetime | dt.date | str | None = None,
        end_date: dt.datetime | dt.date | str | None = None,
        depends_on_past: bool = False,
        ignore_first_depends_on_past: bool = False,
        wait_for_past_depends_before_skipping: bool = False,
        wait_for_downstream: bool = False,
        dag: DAG | None = None,
        params: Mapping[str, Any] | None = None,
        default_args: dict[str, Any] | None = None,
        priority_weight: int = 1,
        weight_rule: str | PriorityWeightStrategy | None = WeightRule.DOWNSTREAM,
        queue: str | None = "default",
        pool: str | None = None,
        pool_slots: int = 1,
        sla: Any = None,
        execution_timeout: dt.timedelta | float | None = None,
        on_execute_callback: Any = None,
        on_failure_callback: Any = None,
        on_success_callback: Any = None,
        on_retry_callback: Any = None,
        on_skipped_callback: Any = None,
        pre_execute: Callable[[Context], None] | None = None,
        post_execute: Callable[[Context, Any], None] | None = None,
        trigger_rule: str = TriggerRule.ALL_SUCCESS,
        resources: dict[str, Any] | None = None,
        run_as_user: str | None = None,
        map_index_template: str | None = None,
        max_active_tis_per_dag: int | None = None,
        max_active_tis_per_dagrun: int | None = None,
        executor: str | None = None,
        executor_config: dict[str, Any] | None = None,
        do_xcom_push: bool = True,
        multiple_outputs: bool = False,
        inlets: Any = None,
        outlets: Any = None,
        task_group: TaskGroup | None = None,
        doc: str | None = None,
        doc_md: str | None = None,
        doc_json: str | None = None,
        doc_yaml: str | None = None,
        doc_rst: str | None = None,
        task_display_name: str | None = None,
        logger_name: str | None = None,
        allow_nested_operators: bool = True,
        render_template_as_native_obj: bool | None = None,
        **kwargs: Never,
    ) -> None:
        given = dict(locals())
        if kwargs:
            raise invalid_arguments(type(self), task_id, list(kwargs))
        self._place(task_id, dag, task_group)
        who = task_owner(self.task_id, None if self.task_group is None else self.task_group.dag.dag_id)
        self._take_alike(who, given)
        self.retries = arguments.whole_number(who, "retries", 0 if retries is None else retries, at_least=0)
        self.retry_delay = arguments.duration(who, "retry_delay", retry_delay)
        self.retry_exponential_backoff = arguments.backoff(who, retry_exponential_backoff)
        self.max_retry_delay = arguments.optional_duration(who, "max_retry_delay", max_retry_delay)
        self.retry_policy = arguments.retry_policy(who, retry_policy)
        self.execution_timeout = arguments.limit(who, "execution_timeout", execution_timeout)
        self.trigger_rule = arguments.one_of(who, "trigger_rule", airflow_2.trigger_rule(trigger_rule), TriggerRule)
        self.weight_rule = weight_rule_of(who, weight_rule)
        self.priority_weight = arguments.priority_weight(who, priority_weight)
        self.pool = arguments.text(who, "pool", pool or defaults.DEFAULT_POOL, max_length=arguments.MAX_POOL_LENGTH)
        self.pool_slots = arguments.whole_number(who, "pool_slots", pool_slots, at_least=1)
        self.queue = arguments.text(who, "queue", queue, max_length=arguments.MAX_POOL_LENGTH)
        self.owner = arguments.text(who, "owner", owner)
        self.executor = executor
        self.executor_config = executor_config or {}
        self.depends_on_past = self.depends_on_past or self.wait_for_downstream
        zone = None if self.task_group is None else self.task_group.dag.timezone
        self.own_start_date = arguments.date(who, "start_date", start_date, zone)
        self.own_end_date = arguments.date(who, "end_date", end_date, zone)
        own_params = ParamsDict(params, owner=who)
        own_params.check_schemas()
        self.params = ParamsDict(None if self.task_group is None else self.task_group.dag.params, owner=who)
        self.params.update(own_params)
        self.inlets = arguments.assets(who, "inlets", inlets)
        self.outlets = arguments.assets(who, "outlets", outlets)
        self.template_fields = check_template_fields(who, self.template_fields)
        self.task_display_name = task_display_name or self.task_id
        self.pre_execute_hook, self.post_execute_hook = pre_execute, post_execute
        self._logger_name = logger_name
        self._warn_of_no_effect(who)
        self._register(dag)

    def _place(self, task_id: str, dag: DAG | None, task_group: TaskGroup | None) -> None:
        if self.mapped_from is not None:
            self.take_place_of(self.mapped_from)
            return
        self.upstream_task_ids = set()
        self.downstream_task_ids = set()
        self.task_id = check_key("task_id", task_id)
        self.task_group = task_group or active.current_group(dag or active.current_dag())
        if self.task_group is not None:
            self.task_id = check_key("task_id", self.task_group.child_id(task_id))

    def _take_alike(self, who: str, given: Mapping[str, Any]) -> None:
        """Take the arguments that share a check, or have none."""
        for name in _PLAIN:
            setattr(self, name, given[name])
        for name in _FLAGS:
            setattr(self, name, bool(given[name]))
        for name in _COUNTS:
            setattr(self, name, arguments.optional_count(who, name, given[name]))
        for name in _CALLBACKS:
            setattr(self, name, arguments.callbacks(who, name, given[name]))
        self.email = arguments.addresses(who, given["email"])

    def _warn_of_no_effect(self, who: str) -> None:
        given = [name for name in _NO_EFFECT if getattr(self, name) is not None]
        if not self.allow_nested_operators:
            given.append("allow_nested_operators")
        if self.executor_config and defaults.runs_on_this_machine:
            given.append("executor_config")
        if given and self.mapped_from is None:
            warn_of_no_effect(who, tuple(sorted(given)))

    def _register(self, dag: DAG | None) -> None:
        if self.mapped_from is not None:
            return
        if dag is None and self.task_group is not None:
            dag = self.task_group.dag
        if dag is not None:
            dag.add_task(self)
        note_new_task(self)

    def finish_construction(self) -> None:
        """Draw the arrows from tasks whose results are arguments, once all constructors have run."""
        self._constructed = True
        for field in self.template_fields:
            self._follow_references(getattr(self, field, None))

    def _follow_references(self, value: Any) -> None:
        for operator in references(value):
            if operator is not self:
                self.set_upstream(operator)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        # `task.bash_command = other_task.output` after construction also draws an arrow.
        if self._constructed and name in self.template_fields:
            self._follow_references(value)

    @property
    def task_type(self) -> str:
        """The name of the operator's class."""
        return type(self).__name__

    @property
    def operator_name(self) -> str:
        """The operator's name for people, such as `@task.bash`."""
        return self.custom_operator_name or self.task_type

    @property
    def log(self) -> logging.Logger:
        """The task's logger."""
        import logging

        module = type(self).__module__.removeprefix("asynsched.authoring.")
        return logging.getLogger(f"asynsched.task.{self._logger_name or f'{module}.{type(self).__qualname__}'}")

    def add_inlets(self, inlets: Iterable[Any]) -> None:
        """Add assets that the task reads."""
        self.inlets = [*self.inlets, *arguments.assets(repr(self), "inlets", list(inlets))]

    def add_outlets(self, outlets: Iterable[Any]) -> None:
        """Add assets that the task updates."""
        self.outlets = [*self.outlets, *arguments.assets(repr(self), "outlets", list(outlets))]

    has_on_execute_callback = _is_set("on_execute_callback")
    has_on_failure_callback = _is_set("on_failure_callback")
    has_on_success_callback = _is_set("on_success_callback")
    has_on_retry_callback = _is_set("on_retry_callback")
    has_on_skipped_callback = _is_set("on_skipped_callback")

    def get_template_env(self, dag: DAG | None = None) -> jinja2.Environment:
        dag = dag or self._dag
        if dag is None or self.render_template_as_native_obj is None:
            return super().get_template_env(dag)
        return dag.get_template_env(native=self.render_template_as_native_obj)

    def pre_execute(self, context: Context) -> None:
        """Hook: called just before `execute`."""

    def execute(self, context: Context) -> Any:
        """Do the task's work and return its result. Subclasses implement this; it may be `async def`."""
        raise NotImplementedError(f"{self.task_type} has no execute()")

    def post_execute(self, context: Context, result: Any = None) -> None:
        """Hook: called after `execute` with its result."""

    def on_kill(self) -> None:
        """Hook: called when the task is ended from outside, to clean up."""

    # Its place in the DAG

    @property
    def node_id(self) -> str:
        return self.task_id

    @property
    def dag(self) -> DAG:
        """The task's DAG. Raises DagError if it belongs to none yet."""
        if self._dag is None:
            raise DagError(f"task {self.task_id!r} belongs to no DAG yet")
        return self._dag

    @dag.setter
    def dag(self, dag: DAG) -> None:
        dag.add_task(self)

    def has_dag(self) -> bool:
        """Return whether the task belongs to a DAG."""
        return self._dag is not None

    def get_dag(self) -> DAG | None:
        """Return the task's DAG; None if it belongs to none yet."""
        return self._dag

    @property
    def dag_id(self) -> str:
        """The DAG's id; `_in_memory_dag_` if the task belongs to none yet, as in Airflow."""
        return "_in_memory_dag_" if self._dag is None else self._dag.dag_id

    def join_dag(self, dag: DAG) -> None:
        """Called only by `DAG.add_task`. Raises DagError if the task belongs to another DAG."""
        if self._dag is not None and self._dag is not dag:
            raise DagError(
                f"task {self.task_id!r} belongs to DAG {self._dag.dag_id!r} and cannot be added to DAG {dag.dag_id!r}"
            )
        self._dag = dag
        if self.task_group is None:
            self.task_group = dag.task_group

    @property
    def roots(self) -> list[BaseOperator]:
        return [self]

    leaves = roots

    @property
    def output(self) -> XComArg:
        """The task's return value, to be passed to another task."""
        return XComArg(self)

    def as_setup(self) -> Self:
        if self.is_teardown:
            raise DagError(f"task {self.task_id!r} is a teardown, so it cannot be a setup")
        self.is_setup = True
        return self

    def as_teardown(self, *, setups: Any = None, on_failure_fail_dagrun: bool | None = None) -> Self:
        if self.is_setup:
            raise DagError(f"task {self.task_id!r} is a setup, so it cannot be a teardown")
        self.is_teardown = True
        self.trigger_rule = TriggerRule.ALL_DONE_SETUP_SUCCESS
        if on_failure_fail_dagrun is not None:
            self.on_failure_fail_dagrun = on_failure_fail_dagrun
        for setup in flatten([] if setups is None else setups):
            setup.as_setup()
            setup.set_downstream(self)
        return self

    def __enter__(self) -> SetupTeardownContext:
        return SetupTeardownContext(self).open()

    def __exit__(self, *_: object) -> None:
        close_block()

    # Mapping

    @classmethod
    def partial(cls, *, task_id: str, **kwargs: Any) -> OperatorPartial:
        """Begin a mapped task with the arguments that all its instances share; `expand` or `expand_kwargs` makes it.

        Raises TypeError if the operator has no such argument.
        """
        from asynsched.authoring.mapping import OperatorPartial

        return OperatorPartial(cls, {"task_id": task_id, **kwargs})

    def take_place_of(self, mapped: MappedOperator) -> None:
        """Take the place of a mapped task, for one try of an instance."""
        self.task_id, self.task_group, self._dag = mapped.task_id, mapped.task_group, mapped.dag
        self.upstream_task_ids, self.downstream_task_ids = mapped.upstream_task_ids, mapped.downstream_task_ids

    def for_try(self, context: Context) -> BaseOperator:
        """Return the operator to run in a try: here a copy."""
        return self.prepare_for_execution()

    def prepare_for_execution(self) -> BaseOperator:
        """Return a copy for one try, in whose fields templates can be rendered."""
        task = object.__new__(type(self))
        task.__dict__.update(self.__dict__)
        task.__dict__["_constructed"] = False
        return task

    # Deferral

    def defer(
        self,
        *,
        trigger: BaseTrigger,
        method_name: str,
        kwargs: dict[str, Any] | None = None,
        timeout: dt.timedelta | float | None = None,
    ) -> NoReturn:
        """End this process and release its slots until `trigger` fires. This method never returns.

        A new process then calls `method_name(context, event=payload, **kwargs)` of this task, within the same try.

        Args:
            method_name: A method of this operator.
            kwargs: The method's arguments in addition to `event`, of the types that `BaseTrigger.serialize` may return.
            timeout: The longest wait, as a timedelta or seconds; after it, the task fails with TaskDeferralTimeout.

        Raises:
            TaskDeferred: Always, if the arguments are valid.
            DagError: An argument is invalid.
        """
        who = f"task {self.task_id!r}: defer()"
        if not isinstance(trigger, BaseTrigger):
            raise DagError(f"{who}: trigger must be a BaseTrigger, not {trigger!r}")
        if method_name != FAIL_METHOD and not callable(getattr(self, method_name, None)):
            raise DagError(f"{who}: {type(self).__name__} has no method {method_name!r}")
        raise TaskDeferred(
            trigger=trigger,
            method_name=method_name,
            kwargs=kwargs,
            timeout=arguments.optional_duration(who, "timeout", timeout),
        )

    def defer_at_start(self, context: Context) -> NoReturn:
        """Wait for the trigger of `start_trigger_args`, at most for the `execution_timeout`. Raises TaskDeferred."""
        given = self.start_trigger_args
        if given is None:
            raise DagError(f"task {self.task_id!r} has start_from_trigger, but no start_trigger_args")
        # Templates are rendered in the arguments that are template fields of the operator, as in Airflow.
        kwargs = {
            name: self.render_template(value, context) if name in self.template_fields else value
            for name, value in (given.trigger_kwargs or {}).items()
        }
        self.defer(
            trigger=make_trigger(given.trigger_cls, kwargs),
            method_name=given.next_method,
            kwargs=given.next_kwargs,
            timeout=min((limit for limit in (given.timeout, self.execution_timeout) if limit), default=None),
        )

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue after a deferral, and return the task's result. Operators may override it.

        Raises TaskDeferralTimeout if the trigger did not fire in time, and TaskDeferralError if the trigger failed.
        """
        given = next_kwargs or {}
        if next_method != FAIL_METHOD:
            return getattr(self, next_method)(context, **given)
        if given.get("traceback"):
            self.log.error("Trigger failed:\n%s", "\n".join(given["traceback"]))
        error, detail = given.get("error", TRIGGER_FAILURE), given.get("detail", "")
        message = f"{error}: {detail}" if detail else error
        raise TaskDeferralTimeout(message) if error == TRIGGER_TIMEOUT else TaskDeferralError(message)

    def __repr__(self) -> str:
        return f"<Task({self.task_type}): {self.task_id}>"


class BaseAsyncOperator(BaseOperator):
    """A task whose code is a coroutine. Subclasses implement `aexecute`."""

    is_async = True

    async def aexecute(self, context: Context) -> Any:
        """Do the task's work and return its result."""
        raise NotImplementedError(f"{self.task_type} has no aexecute()")

    def execute(self, context: Context) -> Any:
        import asyncio

        return asyncio.run(self.aexecute(context))


class EmptyOperator(BaseOperator):
    """A task that does nothing, to join arrows. It succeeds without a process."""

    ui_color = "#e8f7e4"

    def execute(self, context: Context) -> None:
        """Do nothing."""
