"""The keyword arguments of DAGs, tasks, sensors and task groups, for type checkers and editors: nothing runs here.

They are those of the constructors, which give the defaults and document them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Required, TypedDict

from asynsched.authoring.dag import DAG
from asynsched.authoring.priority_weight import PriorityWeightStrategy
from asynsched.authoring.retry_policy import RetryPolicy
from asynsched.authoring.running.context import Context
from asynsched.authoring.task_group import TaskGroup


class AssetDagKeywords(TypedDict, total=False):
    """Those of the DAG that `@asset(...)` makes."""

    access_control: dict[str, Any] | None
    dag_display_name: str | None
    dag_id: str
    description: str | None
    is_paused_upon_creation: bool | None
    on_failure_callback: Any
    on_success_callback: Any
    owner_links: dict[str, str] | None
    params: Mapping[str, Any] | None
    tags: str | Collection[str] | None


class DagKeywords(TypedDict, total=False):
    """Those of DAG and `@dag(...)`, beside its id."""

    description: str | None
    schedule: Any
    start_date: dt.datetime | dt.date | str | None
    end_date: dt.datetime | dt.date | str | None
    template_searchpath: str | Iterable[str] | None
    template_undefined: Any
    user_defined_macros: dict[str, Any] | None
    user_defined_filters: dict[str, Any] | None
    default_args: dict[str, Any] | None
    max_active_tasks: int | None
    max_active_runs: int | None
    max_consecutive_failed_dag_runs: int | None
    dagrun_timeout: dt.timedelta | float | None
    deadline: Any
    catchup: bool | Literal["latest"]
    on_success_callback: Any
    on_failure_callback: Any
    doc_md: str | None
    params: Mapping[str, Any] | None
    access_control: dict[str, Any] | None
    is_paused_upon_creation: bool | None
    jinja_environment_kwargs: dict[str, Any] | None
    render_template_as_native_obj: bool
    tags: str | Collection[str] | None
    owner_links: dict[str, str] | None
    auto_register: bool
    fail_fast: bool
    allowed_run_types: Any
    dag_display_name: str | None
    disable_bundle_versioning: bool
    rerun_with_latest_version: bool | None


class CommonKeywords(TypedDict, total=False):
    """Those of every operator and of `@task`, apart from `task_id` and `params`, which differ."""

    owner: str | None
    email: str | Sequence[str] | None
    email_on_retry: bool | None
    email_on_failure: bool | None
    retries: int | None
    retry_delay: dt.timedelta | float | None
    retry_exponential_backoff: float | None
    max_retry_delay: dt.timedelta | float | None
    retry_policy: RetryPolicy | None
    start_date: dt.datetime | dt.date | str | None
    end_date: dt.datetime | dt.date | str | None
    depends_on_past: bool
    ignore_first_depends_on_past: bool
    wait_for_past_depends_before_skipping: bool
    wait_for_downstream: bool
    dag: DAG | None
    default_args: dict[str, Any] | None
    priority_weight: int
    weight_rule: str | PriorityWeightStrategy | None
    queue: str | None
    pool: str | None
    pool_slots: int
    sla: Any
    execution_timeout: dt.timedelta | float | None
    on_execute_callback: Any
    on_failure_callback: Any
    on_success_callback: Any
    on_retry_callback: Any
    on_skipped_callback: Any
    pre_execute: Callable[[Context], None] | None
    post_execute: Callable[[Context, Any], None] | None
    trigger_rule: str
    resources: dict[str, Any] | None
    run_as_user: str | None
    map_index_template: str | None
    max_active_tis_per_dag: int | None
    max_active_tis_per_dagrun: int | None
    executor: str | None
    executor_config: dict[str, Any] | None
    do_xcom_push: bool
    multiple_outputs: bool
    inlets: Any
    outlets: Any
    task_group: TaskGroup | None
    doc: str | None
    doc_md: str | None
    doc_json: str | None
    doc_yaml: str | None
    doc_rst: str | None
    task_display_name: str | None
    logger_name: str | None
    allow_nested_operators: bool
    render_template_as_native_obj: bool | None


class TaskKeywords(CommonKeywords, total=False):
    """Those of every operator."""

    task_id: Required[str]
    params: Mapping[str, Any] | None


class TaskDecoratorKeywords(CommonKeywords, total=False):
    """Those of `@task(...)`, whose function gives its name to the task."""

    task_id: str
    params: Mapping[str, Any] | None
    templates_dict: dict[str, Any] | None
    templates_exts: Sequence[str] | None
    show_return_value_in_logs: bool


class HITLKeywords(CommonKeywords, total=False):
    """Those of every operator that asks people, apart from its options."""

    task_id: Required[str]
    subject: Required[str]
    body: str | None
    defaults: str | list[str] | None
    params: Any
    notifiers: Any
    assigned_users: Any
    response_timeout: dt.timedelta | None


class SensorKeywords(TaskKeywords, total=False):
    """Those of every sensor."""

    poke_interval: dt.timedelta | float
    timeout: dt.timedelta | float | None
    soft_fail: bool
    mode: str
    exponential_backoff: bool
    max_wait: dt.timedelta | float | None
    silent_fail: bool
    never_fail: bool


class PythonKeywords(TaskKeywords, total=False):
    """Those of every operator that calls a function."""

    python_callable: Required[Callable[..., Any]]
    op_args: Collection[Any] | None
    op_kwargs: Mapping[str, Any] | None
    templates_dict: dict[str, Any] | None
    templates_exts: Sequence[str] | None
    show_return_value_in_logs: bool


class ForeignPythonKeywords(PythonKeywords, total=False):
    """Those of every operator that calls a function in another Python."""

    serializer: str | None
    string_args: Iterable[str] | None
    expect_airflow: bool
    skip_on_exit_code: int | Collection[int] | None
    env_vars: dict[str, str] | None
    inherit_env: bool


class TaskGroupKeywords(TypedDict, total=False):
    """Those of `@task_group(...)`, beside its id."""

    prefix_group_id: bool
    parent_group: TaskGroup | None
    dag: DAG | None
    default_args: dict[str, Any] | None
    tooltip: str
    ui_color: str
    ui_fgcolor: str
    add_suffix_on_collision: bool
    group_display_name: str
    doc_md: str | None
