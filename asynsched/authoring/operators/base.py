"""BaseOperator: what every task is, and what it may be told."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring import active
from asynsched.authoring.deferral import Deferrable
from asynsched.authoring.identifiers import check_key
from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.mappable import Mappable
from asynsched.authoring.operators.meta import BaseOperatorMeta, check_template_fields, invalid_arguments, task_owner
from asynsched.authoring.operators.relations import TaskRelations
from asynsched.authoring.operators.templated import Templater
from asynsched.authoring.origin import where_made
from asynsched.authoring.params import ParamsDict
from asynsched.authoring.setup_teardown import note_new_task
from asynsched.authoring.trigger_rule import TriggerRule, WeightRule
from asynsched.authoring.xcom_arg import references
from asynsched.errors import NoEffectWarning

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any

    import jinja2

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.retry_policy import RetryPolicy
    from asynsched.authoring.running.context import Context
    from asynsched.authoring.task_group import TaskGroup

DEFAULT_RETRY_DELAY = dt.timedelta(seconds=300)
DEFAULT_POOL = "default_pool"
NO_EFFECT = ("email", "resources", "run_as_user", "sla")
"""Arguments that Airflow has, and that do nothing here."""
_PLAIN = (
    "allow_nested_operators", "doc", "doc_json", "doc_md", "doc_rst", "doc_yaml", "email", "email_on_failure",
    "email_on_retry", "map_index_template", "render_template_as_native_obj", "resources", "run_as_user", "sla",
)  # fmt: skip
"""Arguments that become attributes unchecked."""
_FLAGS = (
    "depends_on_past", "do_xcom_push", "ignore_first_depends_on_past", "multiple_outputs", "wait_for_downstream",
    "wait_for_past_depends_before_skipping",
)  # fmt: skip
_COUNTS = ("max_active_tis_per_dag", "max_active_tis_per_dagrun")
_CALLBACKS = tuple(f"on_{event}_callback" for event in ("execute", "failure", "success", "retry", "skipped"))


class BaseOperator(TaskRelations, Mappable, Templater, Deferrable, metaclass=BaseOperatorMeta):
    """A task. Subclasses take their arguments in `__init__`, pass the rest on, and write `execute`.

    The arguments, their names and their defaults are those of Airflow 3's BaseOperator; the reference lists them.

    Raises:
        TypeError: An argument is unknown or missing.
        DagError: The value of an argument is wrong.
    """

    ui_color = "#fff"
    ui_fgcolor = "#000"
    shallow_copy_attrs: Sequence[str] = ()
    operator_extra_links: Collection[Any] = ()
    custom_operator_name: str | None = None
    is_sensor: bool = False
    is_branch: bool = False
    is_short_circuit: bool = False
    retries: int
    retry_delay: dt.timedelta
    retry_exponential_backoff: float
    max_retry_delay: dt.timedelta | None
    execution_timeout: dt.timedelta | None
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

    def __init__(
        self,
        *,
        task_id: str,
        owner: str = "airflow",
        email: str | Sequence[str] | None = None,
        email_on_retry: bool = True,
        email_on_failure: bool = True,
        retries: int | None = 0,
        retry_delay: dt.timedelta | float = DEFAULT_RETRY_DELAY,
        retry_exponential_backoff: float = 0,
        max_retry_delay: dt.timedelta | float | None = None,
        retry_policy: RetryPolicy | None = None,
        start_date: dt.datetime | None = None,
        end_date: dt.datetime | None = None,
        depends_on_past: bool = False,
        ignore_first_depends_on_past: bool = False,
        wait_for_past_depends_before_skipping: bool = False,
        wait_for_downstream: bool = False,
        dag: DAG | None = None,
        params: Mapping[str, Any] | None = None,
        default_args: dict[str, Any] | None = None,
        priority_weight: int = 1,
        weight_rule: str = WeightRule.DOWNSTREAM,
        queue: str = "default",
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
        **kwargs: Any,
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
        self.execution_timeout = arguments.positive_duration(who, "execution_timeout", execution_timeout)
        self.trigger_rule = arguments.trigger_rule(who, trigger_rule)
        self.weight_rule = arguments.weight_rule(who, weight_rule)
        self.priority_weight = arguments.priority_weight(who, priority_weight)
        self.pool = arguments.text(who, "pool", pool or DEFAULT_POOL, max_length=arguments.MAX_POOL_LENGTH)
        self.pool_slots = arguments.whole_number(who, "pool_slots", pool_slots, at_least=1)
        self.queue = arguments.text(who, "queue", queue, max_length=arguments.MAX_POOL_LENGTH)
        self.owner = arguments.text(who, "owner", owner)
        self.executor = executor
        self.executor_config = executor_config or {}
        self.depends_on_past = self.depends_on_past or self.wait_for_downstream
        self.start_date = self._instant(who, "start_date", start_date)
        self.end_date = self._instant(who, "end_date", end_date)
        self.params = ParamsDict(params, owner=who)
        self.params.check_defaults()
        self.inlets = arguments.assets(who, "inlets", inlets)
        self.outlets = arguments.assets(who, "outlets", outlets)
        self.template_fields = check_template_fields(who, self.template_fields)
        self.task_display_name = task_display_name or self.task_id
        self.is_setup = self.is_teardown = self.on_failure_fail_dagrun = False
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
        """Take the arguments of which several are checked in the same way, or not at all."""
        for name in _PLAIN:
            setattr(self, name, given[name])
        for name in _FLAGS:
            setattr(self, name, bool(given[name]))
        for name in _COUNTS:
            setattr(self, name, arguments.optional_count(who, name, given[name]))
        for name in _CALLBACKS:
            setattr(self, name, arguments.callbacks(who, name, given[name]))

    def _instant(self, who: str, name: str, value: Any) -> dt.datetime | None:
        zone = None if self.task_group is None else self.task_group.dag.timezone
        return arguments.date(who, name, value, zone)

    def _warn_of_no_effect(self, who: str) -> None:
        given = tuple(name for name in NO_EFFECT if getattr(self, name) is not None)
        if given and self.mapped_from is None:
            import warnings

            where = where_made()
            warnings.warn_explicit(NoEffectWarning(who, given), NoEffectWarning, where.filename, where.lineno)

    def _register(self, dag: DAG | None) -> None:
        if self.mapped_from is not None:
            return
        if dag is None and self.task_group is not None:
            dag = self.task_group.dag
        if dag is not None:
            dag.add_task(self)
        note_new_task(self)

    def finish_construction(self) -> None:
        """Draw the arrows of results that were passed as arguments, once all constructors have run."""
        self._constructed = True
        for field in self.template_fields:
            self._follow_references(getattr(self, field, None))

    def _follow_references(self, value: Any) -> None:
        for operator in references(value):
            if operator is not self:
                self.set_upstream(operator)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        # `task.bash_command = other_task.output` after construction draws its arrow too.
        if self._constructed and name in self.template_fields:
            self._follow_references(value)

    @property
    def task_type(self) -> str:
        """Name of the operator's class."""
        return type(self).__name__

    @property
    def operator_name(self) -> str:
        """Name of the operator as people know it, e.g. `@task.bash`."""
        return self.custom_operator_name or self.task_type

    @property
    def log(self) -> logging.Logger:
        """The task's logger."""
        import logging

        module = type(self).__module__.removeprefix("asynsched.authoring.")
        return logging.getLogger(f"asynsched.task.{self._logger_name or f'{module}.{type(self).__qualname__}'}")

    def get_template_env(self, dag: DAG | None = None) -> jinja2.Environment:
        dag = dag or self._dag
        if dag is None or self.render_template_as_native_obj is None:
            return super().get_template_env(dag)
        return dag.get_template_env(native=self.render_template_as_native_obj)

    def pre_execute(self, context: Context) -> None:
        """Hook: called just before `execute`."""

    def execute(self, context: Context) -> Any:
        """Do the task's work, and return its result. Subclasses write this; it may be `async def`."""
        raise NotImplementedError(f"{self.task_type} has no execute()")

    def post_execute(self, context: Context, result: Any = None) -> None:
        """Hook: called after `execute` with what it returned."""

    def on_kill(self) -> None:
        """Hook: called when the task is ended from outside, to end what it has started."""

    def __repr__(self) -> str:
        return f"<Task({self.task_type}): {self.task_id}>"
