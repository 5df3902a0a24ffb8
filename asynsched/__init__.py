"""asynsched: a scheduler for DAGs of Python tasks, of the Apache Airflow family, in one asyncio event loop.

All public names, each imported when it is first used: a DAG file that imports `DAG` loads no database and no event
loop. `from asynsched import *` gives those for DAG files; a program that embeds a scheduler names `Scheduler` and
`Settings`.
"""

from __future__ import annotations

from asynsched._version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asynsched.authoring import macros, timezone
    from asynsched.authoring.active import get_parsing_context
    from asynsched.authoring.asset_decorator import asset
    from asynsched.authoring.assets import Asset, AssetAlias, AssetAll, AssetAny, Metadata
    from asynsched.authoring.connection import BaseHook, Connection, Variable
    from asynsched.authoring.dag import DAG
    from asynsched.authoring.deadline import AsyncCallback, BaseNotifier, DeadlineAlert, DeadlineReference, SyncCallback
    from asynsched.authoring.exceptions import (
        AsynschedException,
        AsynschedFailException,
        AsynschedNotFoundException,
        AsynschedRescheduleException,
        AsynschedSensorTimeout,
        AsynschedSkipException,
        AsynschedTaskTimeout,
        DuplicateTaskIdFound,
        ParamValidationError,
        TaskDeferralError,
        TaskDeferralTimeout,
        TaskDeferred,
        TaskNotFound,
        XComNotFound,
    )
    from asynsched.authoring.masking import mask_secret
    from asynsched.authoring.node import EdgeModifier, Label, chain, chain_linear, cross_downstream
    from asynsched.authoring.operators.base import BaseOperator, EmptyOperator
    from asynsched.authoring.operators.bash import BashOperator
    from asynsched.authoring.operators.branch import (
        BaseBranchOperator,
        BranchDateTimeOperator,
        BranchDayOfWeekOperator,
        LatestOnlyOperator,
        WeekDay,
    )
    from asynsched.authoring.operators.foreign_python import (
        BranchExternalPythonOperator,
        BranchPythonVirtualenvOperator,
        ExternalPythonOperator,
        PythonVirtualenvOperator,
    )
    from asynsched.authoring.operators.other_dags import ExternalTaskMarker, ExternalTaskSensor, TriggerDagRunOperator
    from asynsched.authoring.operators.python import BranchPythonOperator, PythonOperator, ShortCircuitOperator
    from asynsched.authoring.params import Param, ParamsDict
    from asynsched.authoring.retry_policy import (
        ExceptionRetryPolicy,
        RetryAction,
        RetryDecision,
        RetryPolicy,
        RetryRule,
    )
    from asynsched.authoring.running.context import Context, get_current_context
    from asynsched.authoring.running.task_instance import TaskInstance
    from asynsched.authoring.sensors.base import BaseSensorOperator, BashSensor, PokeReturnValue, PythonSensor
    from asynsched.authoring.sensors.standard import (
        DateTimeSensor,
        DateTimeSensorAsync,
        DayOfWeekSensor,
        FileSensor,
        TimeDeltaSensor,
        TimeDeltaSensorAsync,
        TimeSensor,
        TimeSensorAsync,
        WaitSensor,
    )
    from asynsched.authoring.task_group import TaskGroup
    from asynsched.authoring.taskflow import dag, setup, task, task_group, teardown
    from asynsched.authoring.trigger_rule import TriggerRule, WeightRule
    from asynsched.authoring.triggers.base import (
        BaseTrigger,
        StartTriggerArgs,
        TaskFailedEvent,
        TaskSkippedEvent,
        TaskSuccessEvent,
        TriggerEvent,
    )
    from asynsched.authoring.triggers.external_task import DagStateTrigger, WorkflowTrigger
    from asynsched.authoring.triggers.file import FileTrigger
    from asynsched.authoring.triggers.temporal import DateTimeTrigger, TimeDeltaTrigger
    from asynsched.authoring.xcom_arg import XComArg, literal
    from asynsched.errors import AsynschedError, DagError
    from asynsched.metrics.open_telemetry import OpenTelemetryMetrics as OpenTelemetryMetrics
    from asynsched.metrics.prometheus import PrometheusMetrics as PrometheusMetrics
    from asynsched.scheduler import Scheduler as Scheduler
    from asynsched.settings import Settings as Settings
    from asynsched.states import DagRunState, DagRunType, State, TaskInstanceState
    from asynsched.timetables import (
        AssetOrTimeSchedule,
        ContinuousTimetable,
        CronDataIntervalTimetable,
        CronTriggerTimetable,
        DagRunInfo,
        DataInterval,
        DeltaDataIntervalTimetable,
        DeltaTriggerTimetable,
        EventsTimetable,
        MultipleCronTriggerTimetable,
        NullTimetable,
        OnceTimetable,
        TimeRestriction,
        Timetable,
    )

_MODULES = {
    "authoring": "macros timezone",
    "authoring.active": "get_parsing_context",
    "authoring.asset_decorator": "asset",
    "authoring.assets": "Asset AssetAlias AssetAll AssetAny Metadata",
    "authoring.connection": "BaseHook Connection Variable",
    "authoring.dag": "DAG",
    "authoring.deadline": "AsyncCallback BaseNotifier DeadlineAlert DeadlineReference SyncCallback",
    "authoring.exceptions": (
        "AsynschedException AsynschedFailException AsynschedNotFoundException AsynschedRescheduleException"
        " AsynschedSensorTimeout AsynschedSkipException AsynschedTaskTimeout DuplicateTaskIdFound ParamValidationError"
        " TaskDeferralError TaskDeferralTimeout TaskDeferred TaskNotFound XComNotFound"
    ),
    "authoring.masking": "mask_secret",
    "authoring.node": "EdgeModifier Label chain chain_linear cross_downstream",
    "authoring.operators.base": "BaseOperator EmptyOperator",
    "authoring.operators.bash": "BashOperator",
    "authoring.operators.branch": (
        "BaseBranchOperator BranchDateTimeOperator BranchDayOfWeekOperator LatestOnlyOperator WeekDay"
    ),
    "authoring.operators.foreign_python": (
        "BranchExternalPythonOperator BranchPythonVirtualenvOperator ExternalPythonOperator PythonVirtualenvOperator"
    ),
    "authoring.operators.other_dags": "ExternalTaskMarker ExternalTaskSensor TriggerDagRunOperator",
    "authoring.operators.python": "BranchPythonOperator PythonOperator ShortCircuitOperator",
    "authoring.params": "Param ParamsDict",
    "authoring.retry_policy": "ExceptionRetryPolicy RetryAction RetryDecision RetryPolicy RetryRule",
    "authoring.running.context": "Context get_current_context",
    "authoring.running.task_instance": "TaskInstance",
    "authoring.sensors.base": "BaseSensorOperator BashSensor PokeReturnValue PythonSensor",
    "authoring.sensors.standard": (
        "DateTimeSensor DateTimeSensorAsync DayOfWeekSensor FileSensor TimeDeltaSensor TimeDeltaSensorAsync TimeSensor"
        " TimeSensorAsync WaitSensor"
    ),
    "authoring.task_group": "TaskGroup",
    "authoring.taskflow": "dag setup task task_group teardown",
    "authoring.trigger_rule": "TriggerRule WeightRule",
    "authoring.triggers.base": (
        "BaseTrigger StartTriggerArgs TaskFailedEvent TaskSkippedEvent TaskSuccessEvent TriggerEvent"
    ),
    "authoring.triggers.external_task": "DagStateTrigger WorkflowTrigger",
    "authoring.triggers.file": "FileTrigger",
    "authoring.triggers.temporal": "DateTimeTrigger TimeDeltaTrigger",
    "authoring.xcom_arg": "XComArg literal",
    "errors": "AsynschedError DagError",
    "metrics.open_telemetry": "OpenTelemetryMetrics",
    "metrics.prometheus": "PrometheusMetrics",
    "scheduler": "Scheduler",
    "settings": "Settings",
    "states": "DagRunState DagRunType State TaskInstanceState",
    "timetables": (
        "AssetOrTimeSchedule ContinuousTimetable CronDataIntervalTimetable CronTriggerTimetable DagRunInfo"
        " DataInterval DeltaDataIntervalTimetable DeltaTriggerTimetable EventsTimetable MultipleCronTriggerTimetable"
        " NullTimetable OnceTimetable TimeRestriction Timetable"
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "DAG", "Asset", "AssetAlias", "AssetAll", "AssetAny", "AssetOrTimeSchedule", "AsyncCallback", "AsynschedError",
    "AsynschedException", "AsynschedFailException", "AsynschedNotFoundException", "AsynschedRescheduleException",
    "AsynschedSensorTimeout", "AsynschedSkipException", "AsynschedTaskTimeout", "BaseBranchOperator", "BaseHook",
    "BaseNotifier", "BaseOperator", "BaseSensorOperator", "BaseTrigger", "BashOperator", "BashSensor",
    "BranchDateTimeOperator", "BranchDayOfWeekOperator", "BranchExternalPythonOperator", "BranchPythonOperator",
    "BranchPythonVirtualenvOperator", "Connection", "Context", "ContinuousTimetable", "CronDataIntervalTimetable",
    "CronTriggerTimetable", "DagError", "DagRunInfo", "DagRunState", "DagRunType", "DagStateTrigger", "DataInterval",
    "DateTimeSensor", "DateTimeSensorAsync", "DateTimeTrigger", "DayOfWeekSensor", "DeadlineAlert", "DeadlineReference",
    "DeltaDataIntervalTimetable", "DeltaTriggerTimetable", "DuplicateTaskIdFound", "EdgeModifier", "EmptyOperator",
    "EventsTimetable", "ExceptionRetryPolicy", "ExternalPythonOperator", "ExternalTaskMarker", "ExternalTaskSensor",
    "FileSensor", "FileTrigger", "Label", "LatestOnlyOperator", "Metadata", "MultipleCronTriggerTimetable",
    "NullTimetable", "OnceTimetable", "Param", "ParamValidationError", "ParamsDict", "PokeReturnValue",
    "PythonOperator", "PythonSensor", "PythonVirtualenvOperator", "RetryAction", "RetryDecision", "RetryPolicy",
    "RetryRule", "ShortCircuitOperator", "StartTriggerArgs", "State", "SyncCallback", "TaskDeferralError",
    "TaskDeferralTimeout", "TaskDeferred", "TaskFailedEvent", "TaskGroup", "TaskInstance", "TaskInstanceState",
    "TaskNotFound", "TaskSkippedEvent", "TaskSuccessEvent", "TimeDeltaSensor", "TimeDeltaSensorAsync",
    "TimeDeltaTrigger", "TimeRestriction", "TimeSensor", "TimeSensorAsync", "Timetable", "TriggerDagRunOperator",
    "TriggerEvent", "TriggerRule", "Variable", "WaitSensor", "WeekDay", "WeightRule", "WorkflowTrigger", "XComArg",
    "XComNotFound", "__version__", "asset", "chain", "chain_linear", "cross_downstream", "dag", "get_current_context",
    "get_parsing_context", "literal", "macros", "mask_secret", "setup", "task", "task_group", "teardown", "timezone",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'asynsched' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"asynsched.{home}")
    value = import_module(f"asynsched.{home}.{name}") if home == "authoring" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({"__version__", *_HOMES})
