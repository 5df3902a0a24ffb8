"""DAG: tasks, the order between them, and when they run."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring import active, airflow_2, defaults
from asynsched.authoring.active import where_made
from asynsched.authoring.exceptions import DuplicateTaskIdFound, TaskNotFound
from asynsched.authoring.node import DAGNode, check_key, topological_order
from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.arguments import ArgumentTypes, explained
from asynsched.authoring.params import NOTSET, DagParam, ParamsDict
from asynsched.authoring.task_group import TaskGroup
from asynsched.authoring.timezone import default_timezone, parsed, utcnow
from asynsched.authoring.trigger_rule import TriggerRule
from asynsched.errors import DagCycleError, DagError, DagWarning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from types import ModuleType
    from typing import Any, Literal, Self, Unpack

    import jinja2

    from asynsched.authoring.deadline import DeadlineAlert
    from asynsched.authoring.keywords import DagKeywords
    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.taskflow import TaskDecorators
    from asynsched.authoring.xcom_arg import XComArg
    from asynsched.foreground.run import ForegroundRun
    from asynsched.timetables.base import Timetable

MAX_TAG_LENGTH = 100
RUN_TYPES = ("manual", "scheduled", "backfill", "asset_triggered", "operator_triggered", "asset_materialization")
"""What `allowed_run_types` may contain."""
SHORTEST_SCHEDULE = dt.timedelta(seconds=1)


class _Limit:
    """A limit of a DAG. It is kept as `own_<name>`, a number or None, and read as the number that is in force."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._own = name, f"own_{name}"

    def __get__(self, dag: DagArguments | None, owner: type | None = None) -> Any:
        if dag is None:
            return self
        own = getattr(dag, self._own)
        return defaults.limits_of_dags[self._name] if own is None else own

    def __set__(self, dag: DagArguments, value: Any) -> None:
        if value is not None:
            value = arguments.whole_number(f"DAG {dag.dag_id!r}", self._name, value, at_least=0)
        setattr(dag, self._own, value)


class DagArguments:
    """The part of DAG that takes its arguments."""

    dag_id: str
    fileloc: str
    importing_file: str
    start_date = arguments.DateAttribute()
    end_date = arguments.DateAttribute()
    max_active_tasks, max_active_runs, max_consecutive_failed_dag_runs = _Limit(), _Limit(), _Limit()

    def __init__(
        self,
        dag_id: str,
        *,
        description: str | None = None,
        schedule: Any = None,
        start_date: dt.datetime | dt.date | str | None = None,
        end_date: dt.datetime | dt.date | str | None = None,
        template_searchpath: str | Iterable[str] | None = None,
        template_undefined: Any = None,
        user_defined_macros: dict[str, Any] | None = None,
        user_defined_filters: dict[str, Any] | None = None,
        default_args: dict[str, Any] | None = None,
        max_active_tasks: int | None = None,
        max_active_runs: int | None = None,
        max_consecutive_failed_dag_runs: int | None = None,
        dagrun_timeout: dt.timedelta | float | None = None,
        deadline: Any = None,
        catchup: bool | Literal["latest"] = False,
        on_success_callback: Any = None,
        on_failure_callback: Any = None,
        doc_md: str | None = None,
        params: Mapping[str, Any] | None = None,
        access_control: dict[str, Any] | None = None,
        is_paused_upon_creation: bool | None = None,
        jinja_environment_kwargs: dict[str, Any] | None = None,
        render_template_as_native_obj: bool = False,
        tags: str | Collection[str] | None = None,
        owner_links: dict[str, str] | None = None,
        auto_register: bool = True,
        fail_fast: bool = False,
        allowed_run_types: Any = None,
        dag_display_name: str | None = None,
        disable_bundle_versioning: bool = False,
        rerun_with_latest_version: bool | None = None,
        **unknown: Any,
    ) -> None:
        given = dict(locals())
        self.dag_id = check_key("dag_id", dag_id)
        who = self._who
        if unknown:
            known = arguments.argument_names(DagArguments.__init__)
            raise TypeError(f"{who}: unknown arguments: {explained(unknown, known)}")
        _TYPES.check(who, given)
        self.description = description
        self.dag_display_name = dag_display_name or self.dag_id
        self.default_args = airflow_2.renewed_defaults(dict(default_args or {}))
        self.timezone = _zone_of(start_date or self.default_args.get("start_date"))
        default = arguments.date(who, "default_args['start_date']", self.default_args.get("start_date"), self.timezone)
        self.own_start_date = arguments.date(who, "start_date", start_date, self.timezone) or default
        self.own_end_date = arguments.date(who, "end_date", end_date, self.timezone)
        self.schedule = schedule
        if catchup != "latest" and not isinstance(catchup, bool):
            raise DagError(f"{who}: catchup must be True, False or 'latest', not {catchup!r:.100}")
        self.catchup = catchup
        self.max_active_tasks, self.max_active_runs = max_active_tasks, max_active_runs
        self.max_consecutive_failed_dag_runs = max_consecutive_failed_dag_runs
        self.dagrun_timeout = arguments.limit(who, "dagrun_timeout", dagrun_timeout)
        self.on_success_callback = arguments.callbacks(who, "on_success_callback", on_success_callback)
        self.on_failure_callback = arguments.callbacks(who, "on_failure_callback", on_failure_callback)
        self.doc_md = self._load_doc(doc_md)
        self.params = ParamsDict(params, owner=who)
        self.params.update(ParamsDict(self.default_args.pop("params", None), owner=who))
        self.is_paused_upon_creation = is_paused_upon_creation
        self.tags = _tags(who, tags)
        self.auto_register = bool(auto_register)
        self.fail_fast = bool(fail_fast)
        self.allowed_run_types = _run_types(who, allowed_run_types)
        self.template_searchpath = arguments.as_list(template_searchpath)
        self.template_undefined = template_undefined
        self.user_defined_macros = user_defined_macros or {}
        self.user_defined_filters = user_defined_filters or {}
        self.jinja_environment_kwargs = jinja_environment_kwargs or {}
        self.render_template_as_native_obj = bool(render_template_as_native_obj)
        self.owner_links = owner_links or {}
        self.access_control = access_control
        self.deadline = _deadlines(who, deadline)
        self.disable_bundle_versioning = bool(disable_bundle_versioning)
        self.rerun_with_latest_version = rerun_with_latest_version
        without_effect = ("disable_bundle_versioning", "owner_links", "rerun_with_latest_version")
        ignored = tuple(name for name in without_effect if getattr(self, name))
        if ignored:
            active.warn_of_no_effect(who, ignored)

    @property
    def _who(self) -> str:
        return f"DAG {self.dag_id!r}"

    def _load_doc(self, doc_md: str | None) -> str | None:
        """Return the content of the file that a string with `.md` at its end names; else the string itself.

        The file is beside the DAG file, or beside the module that makes the DAG.
        """
        if doc_md is None or not doc_md.endswith(".md") or "\n" in doc_md:
            return doc_md
        from pathlib import Path

        for beside in (self.importing_file, self.fileloc):
            try:
                return (Path(beside).parent / doc_md).read_text(encoding="utf-8-sig")
            except (OSError, ValueError):
                continue
        return doc_md


_TYPES = ArgumentTypes(DagArguments.__init__)


def _zone_of(start_date: Any) -> dt.tzinfo:
    """Return the zone of an aware start date; otherwise the default zone."""
    if isinstance(start_date, str):
        try:
            start_date = parsed(start_date)
        except ValueError:
            return default_timezone()
    return getattr(start_date, "tzinfo", None) or default_timezone()


def _tags(who: str, tags: Any) -> set[str]:
    several = ([tags] if isinstance(tags, str) else tags) if tags else ()
    for tag in several:
        arguments.text(who, "a tag", tag, max_length=MAX_TAG_LENGTH)
    return set(several)


def _run_types(who: str, given: Any) -> frozenset[str]:
    names = [given] if isinstance(given, str) else given or ()
    return frozenset(arguments.one_of(who, "allowed_run_types", name, RUN_TYPES) for name in names)


def _deadlines(who: str, given: Any) -> list[DeadlineAlert]:
    if given is None:
        return []
    from asynsched.authoring.deadline import deadline_alerts

    return deadline_alerts(who, given)


class DAG(DagArguments):
    """A DAG. Tasks made inside `with DAG(...)` belong to it.

    The arguments have the names and defaults of Airflow 3's `DAG`.
    """

    def __init__(self, dag_id: str, **arguments: Unpack[DagKeywords]) -> None:
        self.task_dict: dict[str, BaseOperator] = {}
        self.edge_info: dict[str, dict[str, dict[str, Any]]] = {}
        self.used_ids: set[str] = set()
        self.origin = where_made()
        self.fileloc = self.origin.filename
        self.importing_file = active.importing_file()
        super().__init__(dag_id, **{**defaults.of_dags, **airflow_2.renewed_of_dag(f"DAG {dag_id!r}", dict(arguments))})
        self.task_group = TaskGroup(None, dag=self)
        self._timetable: Timetable | None = None
        self._check_schedule()
        self._template_envs: dict[bool, jinja2.Environment] = {}

    def _check_schedule(self) -> None:
        if self.schedule is None:
            # Without a schedule, the timetables need not be loaded.
            self.params.check_schemas()
            return
        timetable = self.timetable
        self._warn_of_short_schedule()
        limit = timetable.active_runs_limit
        if limit is not None:
            if self.own_max_active_runs is None:
                self.max_active_runs = limit
            if self.max_active_runs > limit:
                raise DagError(f"{self._who}: its schedule allows at most max_active_runs={limit}")
        if timetable.can_be_scheduled:
            if self.catchup is True and self.own_start_date is None and "start_date" not in self.default_args:
                raise DagError(f"{self._who}: catchup=True needs a start_date")
            self.params.validate()

    def _warn_of_short_schedule(self) -> None:
        """Warn of runs less than a second apart: they are made later and later."""
        every = getattr(self.timetable, "every", None)
        if every is None or every.length >= SHORTEST_SCHEDULE:
            return
        import warnings

        warnings.warn_explicit(
            f"{self._who}: a run every {every.length.total_seconds():f} s is more than the scheduler can make, so runs"
            " will fall behind; leave a second or more between them, or use schedule='@continuous'",
            DagWarning,
            self.origin.filename,
            self.origin.lineno,
        )

    @property
    def timetable(self) -> Timetable:
        """When the DAG runs. Raises TimetableError if the schedule is invalid."""
        if self._timetable is None:
            from asynsched.timetables import timetable_from_schedule

            try:
                self._timetable = timetable_from_schedule(self.schedule, self.timezone, **defaults.of_schedules)
            except DagError as exc:
                raise type(exc)(f"{self._who}: {exc}") from exc
        return self._timetable

    def param(self, name: str, default: Any = NOTSET) -> DagParam:
        """Return a reference to a param, to be passed to tasks; with `default`, add the param."""
        return DagParam(self, name, default)

    # Tasks

    @property
    def task(self) -> TaskDecorators:
        """The task decorators, bound to this DAG: `@dag.task`, `@dag.task.bash` and so on."""
        from asynsched.authoring.taskflow import TaskDecorators

        return TaskDecorators(self)

    def add_task(self, task: BaseOperator) -> None:
        """Add a task.

        Raises DuplicateTaskIdFound if its task_id is taken, and DagError if it belongs to another DAG, or `fail_fast`
        forbids its trigger rule.
        """
        known = self.task_dict.get(task.task_id)
        if known is not task:
            if task.task_id in self.used_ids:
                what = "task group" if known is None else "task"
                raise DuplicateTaskIdFound(f"{self._who}: the task_id {task.task_id!r} is taken by another {what}")
            if self.fail_fast and task.trigger_rule not in (
                TriggerRule.ALL_SUCCESS,
                TriggerRule.ALL_DONE_SETUP_SUCCESS,
            ):
                raise DagError(
                    f"{self._who}: task {task.task_id!r} has trigger_rule {task.trigger_rule!r};"
                    " a DAG with fail_fast=True allows only all_success"
                )
        task.join_dag(self)
        assert task.task_group is not None
        task.task_group.add(task)
        self.used_ids.add(task.task_id)
        self.task_dict[task.task_id] = task

    def add_tasks(self, tasks: Iterable[BaseOperator]) -> None:
        """Add several tasks."""
        for task in tasks:
            self.add_task(task)

    def add_result(self, xcom_arg: XComArg) -> XComArg:
        """Make the return value of a task a result of the DAG's runs.

        Args:
            xcom_arg: What the task returns: `operator.output`, or the value of a call of a `@task` function.

        Returns:
            The same.

        Raises:
            DagError: It is something else, such as one item of a task's result.
        """
        from asynsched.authoring.xcom_arg import is_return_value

        if not is_return_value(xcom_arg):
            raise DagError(f"{self._who}: a result must be the whole return value of a task, not {xcom_arg!r:.100}")
        xcom_arg.operator.returns_dag_result = True
        return xcom_arg

    def has_task(self, task_id: str) -> bool:
        """Return whether the DAG has a task with this id."""
        return task_id in self.task_dict

    def get_task(self, task_id: str) -> BaseOperator:
        """Return a task by its id. Raises TaskNotFound, which names similar ids."""
        try:
            return self.task_dict[task_id]
        except KeyError:
            from difflib import get_close_matches

            near = get_close_matches(task_id, self.task_dict)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise TaskNotFound(f"{self._who} has no task {task_id!r}{hint}") from None

    @property
    def tasks(self) -> list[BaseOperator]:
        """The tasks in the order in which they were made."""
        return list(self.task_dict.values())

    @property
    def task_ids(self) -> list[str]:
        """The task_ids in the order in which the tasks were made."""
        return list(self.task_dict)

    @property
    def owner(self) -> str:
        """The owners of the tasks, separated by commas."""
        return ", ".join(sorted({task.owner for task in self.tasks}))

    def has_task_group(self, task_group_id: str) -> bool:
        """Return whether the DAG has a task group with this id."""
        return task_group_id in self.task_group_dict

    def __getitem__(self, node_id: str) -> DAGNode:
        """Return a task or a task group by its id. Raises TaskNotFound, which names similar tasks."""
        return self.task_group_dict.get(node_id) or self.get_task(node_id)

    @property
    def roots(self) -> list[BaseOperator]:
        """The tasks without an upstream task."""
        return [task for task in self.tasks if not task.upstream_task_ids]

    @property
    def leaves(self) -> list[BaseOperator]:
        """The tasks without a downstream task."""
        return [task for task in self.tasks if not task.downstream_task_ids]

    @property
    def teardowns(self) -> list[BaseOperator]:
        """The teardown tasks."""
        return [task for task in self.tasks if task.is_teardown]

    @property
    def task_group_dict(self) -> dict[str | None, TaskGroup]:
        """The task groups by id, without the root group."""
        return {name: group for name, group in self.task_group.get_task_group_dict().items() if name is not None}

    def topological_sort(self) -> tuple[BaseOperator, ...]:
        """Return the tasks with each after its upstream tasks. Raises DagCycleError, naming the tasks of a cycle."""
        ordered, cycle = topological_order(self.tasks)
        if cycle:
            raise DagCycleError(
                f"{self._who}: tasks depend on each other in a cycle: {' >> '.join([*cycle, cycle[0]])}"
            )
        return tuple(ordered)

    def check_cycle(self) -> None:
        """Raise DagCycleError if tasks depend on each other in a cycle."""
        self.topological_sort()

    def validate(self) -> None:
        """Raise DagError for a cycle, or for a setup followed by a task with a trigger rule other than all_success."""
        self.check_cycle()
        for setup in (task for task in self.tasks if task.is_setup):
            for after in setup.downstream_list:
                if not after.is_teardown and after.trigger_rule != TriggerRule.ALL_SUCCESS:
                    raise DagError(
                        f"{self._who}: task {after.task_id!r} follows the setup {setup.task_id!r},"
                        " so its trigger_rule must be all_success"
                    )

    # Arrows

    def set_dependency(self, upstream_task_id: str, downstream_task_id: str) -> None:
        """Make one task follow another, by their ids."""
        self.get_task(upstream_task_id).set_downstream(self.get_task(downstream_task_id))

    def set_edge_info(self, upstream_task_id: str, downstream_task_id: str, info: dict[str, Any]) -> None:
        """Set the attributes of an arrow, such as its `label`."""
        self.edge_info.setdefault(upstream_task_id, {})[downstream_task_id] = info

    def get_edge_info(self, upstream_task_id: str, downstream_task_id: str) -> dict[str, Any]:
        """Return the attributes of an arrow, such as its `label`."""
        return self.edge_info.get(upstream_task_id, {}).get(downstream_task_id, {})

    @property
    def has_on_success_callback(self) -> bool:
        """Whether there is an `on_success_callback`."""
        return bool(self.on_success_callback)

    @property
    def has_on_failure_callback(self) -> bool:
        """Whether there is an `on_failure_callback`."""
        return bool(self.on_failure_callback)

    # Templates

    @property
    def folder(self) -> str:
        """The folder of the DAG file."""
        return self.fileloc.rpartition("/")[0]

    @property
    def relative_fileloc(self) -> str:
        """The path of the DAG file in the DAG folder; that of a file elsewhere is absolute."""
        folder = defaults.dags_folder
        return self.fileloc.removeprefix(f"{folder}/") if folder else self.fileloc

    def get_template_env(self, *, native: bool | None = None) -> jinja2.Environment:
        """Return the Jinja environment for this DAG's templates; `native` renders to Python values."""
        native = self.render_template_as_native_obj if native is None else native
        if native not in self._template_envs:
            from asynsched.authoring.running.templating import dag_environment

            self._template_envs[native] = dag_environment(self, native=native)
        return self._template_envs[native]

    # Use

    def __getattr__(self, name: str) -> Any:
        return airflow_2.attribute_of_dag(self, name)

    def __enter__(self) -> Self:
        active.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        active.leave()
        if self.auto_register:
            active.register(self)

    def __repr__(self) -> str:
        return f"<DAG: {self.dag_id}>"

    def test(
        self,
        run_after: dt.datetime | None = None,
        logical_date: dt.datetime | Any | None = NOTSET,
        run_conf: dict[str, Any] | None = None,
        conn_file_path: str | None = None,
        variable_file_path: str | None = None,
        use_executor: bool = False,
        mark_success_pattern: str | None = None,
        *,
        execution_date: dt.datetime | Any | None = NOTSET,
    ) -> ForegroundRun:
        """Run all tasks once, immediately, in this process, with their logs on the terminal.

        Args:
            run_after: The run's `run_after`; by default now.
            logical_date: The run's logical date; by default now, None for a run without one.
            conn_file_path: A file of connections (JSON, YAML or `name=value` lines), which hide the stored ones.
            variable_file_path: Such a file of variables.
            use_executor: Must be False: the tasks run in this process.
            execution_date: The name of `logical_date` in Airflow 2.
            mark_success_pattern: Tasks whose whole task_id matches this regular expression succeed without running.

        Returns:
            The run, with its `state`, and its `tasks` in topological order, each with `state` and `result`.
        """
        from asynsched.authoring.own_sandbox import own_sandbox  # loads more than a DAG file needs

        # The one import that points upwards: a DAG is run by the scheduler's own rules.
        with own_sandbox():
            from asynsched.foreground.run import run_in_foreground

        if use_executor:
            raise DagError(f"{self._who}: test(use_executor=True) has no executor here; the tasks run in this process")
        if execution_date is not NOTSET:
            logical_date = utcnow() if execution_date is None else execution_date
        return run_in_foreground(
            self,
            run_after=run_after,
            logical_date=utcnow() if logical_date is NOTSET else logical_date,
            conf=run_conf,
            mark_success_pattern=mark_success_pattern,
            variable_file=variable_file_path,
            connection_file=conn_file_path,
        )


def collect_dags(module: ModuleType) -> list[DAG]:
    """Return the DAGs that a module made when it was imported, in order.

    These are the DAGs in its variables, and those made by `with DAG(...)` or a `@dag` function, unless
    `auto_register=False`. Their `fileloc` becomes the file of the module, wherever they were made. Of several DAGs with
    one dag_id the last is kept, and a warning names the others. Raises DagError if they are in different files of an
    archive; the message says where each was made.
    """
    made = [*active.registered(), *(value for value in vars(module).values() if isinstance(value, DAG))]
    found: dict[str, DAG] = {}
    replaced: dict[int, DAG] = {}
    for dag in made:
        # The module of a whole archive has no file.
        dag.fileloc = getattr(module, "__file__", None) or dag.importing_file or dag.fileloc
        other = found.get(dag.dag_id, dag)
        if other.fileloc != dag.fileloc:
            raise DagError(
                f"two DAGs have the dag_id {dag.dag_id!r}: one made in {other.origin}, and one in {dag.origin}; give"
                " each its own"
            )
        if other is not dag:
            replaced[id(other)] = other
        found[dag.dag_id] = dag
    for other in replaced.values():
        if other is not found[other.dag_id]:
            _warn_of_same_id(other, found[other.dag_id])
    return list(found.values())


def _warn_of_same_id(left_out: DAG, kept: DAG) -> None:
    import warnings

    is_near = kept.origin.filename == left_out.origin.filename
    place = f"line {kept.origin.lineno}" if is_near else f"{kept.origin},"
    active.show_only_in_parses(DagWarning)
    warnings.warn_explicit(
        f"the DAG {kept.dag_id!r} that is made here is left out, because {place} makes another one with its dag_id;"
        " give each its own",
        DagWarning,
        left_out.origin.filename,
        left_out.origin.lineno,
    )
