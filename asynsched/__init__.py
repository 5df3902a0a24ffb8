"""asynsched: a scheduler for DAGs of Python tasks, of the Apache Airflow family, in one asyncio event loop.

All public names, each imported when it is first used: a DAG file that imports `DAG` loads no database and no event
loop. `from asynsched import *` gives those for DAG files, except `ObjectStoragePath`, which needs another package; a
program that embeds a scheduler names `Scheduler`, `Settings`, `Client`, `DagRunKey` and `TaskInstanceKey`.
"""

from __future__ import annotations

from asynsched._version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asynsched.airflow.object_storage import ObjectStoragePath as ObjectStoragePath
    from asynsched.authoring import macros, timezone
    from asynsched.authoring.active import get_parsing_context
    from asynsched.authoring.asset_decorator import asset
    from asynsched.authoring.assets import Asset, AssetAlias, AssetAll, AssetAny, AssetWatcher, Metadata
    from asynsched.authoring.connection import BaseHook, Connection, Variable
    from asynsched.authoring.dag import DAG
    from asynsched.authoring.deadline import (
        AsyncCallback,
        BaseDeadlineReference,
        BaseNotifier,
        DeadlineAlert,
        DeadlineReference,
        SyncCallback,
        VariableInterval,
        deadline_reference,
    )
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
    from asynsched.authoring.notifiers import HttpNotifier, SlackWebhookNotifier, SmtpNotifier
    from asynsched.authoring.operators.base import BaseAsyncOperator, BaseOperator, EmptyOperator
    from asynsched.authoring.operators.bash import BashOperator
    from asynsched.authoring.operators.branch import (
        BaseBranchOperator,
        BranchDateTimeOperator,
        BranchDayOfWeekOperator,
        BranchMixIn,
        LatestOnlyOperator,
        SkipMixin,
    )
    from asynsched.authoring.operators.foreign_python import (
        BranchExternalPythonOperator,
        BranchPythonVirtualenvOperator,
        ExternalPythonOperator,
        PythonVirtualenvOperator,
    )
    from asynsched.authoring.operators.hitl import (
        ApprovalOperator,
        HITLBranchOperator,
        HITLEntryOperator,
        HITLOperator,
    )
    from asynsched.authoring.operators.link import BaseOperatorLink
    from asynsched.authoring.operators.other_dags import ExternalTaskMarker, ExternalTaskSensor, TriggerDagRunOperator
    from asynsched.authoring.operators.python import BranchPythonOperator, PythonOperator, ShortCircuitOperator
    from asynsched.authoring.operators.resumable import ResumableJobMixin
    from asynsched.authoring.params import Param, ParamsDict
    from asynsched.authoring.retry_policy import (
        ExceptionRetryPolicy,
        RetryAction,
        RetryDecision,
        RetryPolicy,
        RetryRule,
    )
    from asynsched.authoring.running.context import Context, get_current_context
    from asynsched.authoring.running.state_store import NEVER_EXPIRE
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
        BaseEventTrigger,
        BaseTrigger,
        StartTriggerArgs,
        TaskFailedEvent,
        TaskSkippedEvent,
        TaskSuccessEvent,
        TriggerEvent,
    )
    from asynsched.authoring.triggers.external_task import DagStateTrigger, WorkflowTrigger
    from asynsched.authoring.triggers.file import DirectoryFileDeleteTrigger, FileDeleteTrigger, FileTrigger
    from asynsched.authoring.triggers.hitl import HITLTrigger
    from asynsched.authoring.triggers.temporal import DateTimeTrigger, TimeDeltaTrigger
    from asynsched.authoring.week_day import WeekDay
    from asynsched.authoring.xcom import BaseXCom
    from asynsched.authoring.xcom_arg import XComArg, literal
    from asynsched.client.client import Client as Client
    from asynsched.errors import AsynschedError, DagError
    from asynsched.keys import DagRunKey as DagRunKey
    from asynsched.keys import TaskInstanceKey as TaskInstanceKey
    from asynsched.metrics.open_telemetry import OpenTelemetryMetrics as OpenTelemetryMetrics
    from asynsched.metrics.prometheus import PrometheusMetrics as PrometheusMetrics
    from asynsched.queries.events import Change as Change
    from asynsched.queries.events import Missed as Missed
    from asynsched.scheduler import Scheduler as Scheduler
    from asynsched.settings import Settings as Settings
    from asynsched.states import DagRunState, DagRunType, State, TaskInstanceState
    from asynsched.timetables import (
        AllowedKeyMapper,
        AssetOrTimeSchedule,
        ChainMapper,
        ContinuousTimetable,
        CronDataIntervalTimetable,
        CronPartitionTimetable,
        CronTriggerTimetable,
        DagRunInfo,
        DataInterval,
        DayWindow,
        DeltaDataIntervalTimetable,
        DeltaTriggerTimetable,
        EventsTimetable,
        FanOutMapper,
        FixedKeyMapper,
        HourWindow,
        IdentityMapper,
        MinimumCount,
        MonthWindow,
        MultipleCronTriggerTimetable,
        NullTimetable,
        OnceTimetable,
        PartitionedAssetTimetable,
        PartitionedAtRuntime,
        PartitionMapper,
        ProductMapper,
        QuarterWindow,
        RollupMapper,
        SegmentWindow,
        StartOfDayMapper,
        StartOfHourMapper,
        StartOfMonthMapper,
        StartOfQuarterMapper,
        StartOfWeekMapper,
        StartOfYearMapper,
        TimeRestriction,
        Timetable,
        WaitForAll,
        WeekWindow,
        Window,
        YearWindow,
    )

_MODULES = {
    "authoring": "macros timezone",
    "authoring.active": "get_parsing_context",
    "authoring.asset_decorator": "asset",
    "authoring.assets": "Asset AssetAlias AssetAll AssetAny AssetWatcher Metadata",
    "authoring.connection": "BaseHook Connection Variable",
    "authoring.dag": "DAG",
    "authoring.deadline": (
        "AsyncCallback BaseDeadlineReference BaseNotifier DeadlineAlert DeadlineReference SyncCallback VariableInterval"
        " deadline_reference"
    ),
    "authoring.exceptions": (
        "AsynschedException AsynschedFailException AsynschedNotFoundException AsynschedRescheduleException"
        " AsynschedSensorTimeout AsynschedSkipException AsynschedTaskTimeout DuplicateTaskIdFound ParamValidationError"
        " TaskDeferralError TaskDeferralTimeout TaskDeferred TaskNotFound XComNotFound"
    ),
    "authoring.masking": "mask_secret",
    "authoring.node": "EdgeModifier Label chain chain_linear cross_downstream",
    "authoring.notifiers": "HttpNotifier SlackWebhookNotifier SmtpNotifier",
    "authoring.operators.base": "BaseAsyncOperator BaseOperator EmptyOperator",
    "authoring.operators.bash": "BashOperator",
    "authoring.operators.branch": (
        "BaseBranchOperator BranchDateTimeOperator BranchDayOfWeekOperator BranchMixIn LatestOnlyOperator SkipMixin"
    ),
    "authoring.operators.foreign_python": (
        "BranchExternalPythonOperator BranchPythonVirtualenvOperator ExternalPythonOperator PythonVirtualenvOperator"
    ),
    "authoring.operators.hitl": "ApprovalOperator HITLBranchOperator HITLEntryOperator HITLOperator",
    "authoring.operators.link": "BaseOperatorLink",
    "authoring.operators.other_dags": "ExternalTaskMarker ExternalTaskSensor TriggerDagRunOperator",
    "authoring.operators.python": "BranchPythonOperator PythonOperator ShortCircuitOperator",
    "authoring.operators.resumable": "ResumableJobMixin",
    "authoring.params": "Param ParamsDict",
    "authoring.retry_policy": "ExceptionRetryPolicy RetryAction RetryDecision RetryPolicy RetryRule",
    "authoring.running.context": "Context get_current_context",
    "authoring.running.state_store": "NEVER_EXPIRE",
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
        "BaseEventTrigger BaseTrigger StartTriggerArgs TaskFailedEvent TaskSkippedEvent TaskSuccessEvent TriggerEvent"
    ),
    "authoring.triggers.external_task": "DagStateTrigger WorkflowTrigger",
    "authoring.triggers.file": "DirectoryFileDeleteTrigger FileDeleteTrigger FileTrigger",
    "authoring.triggers.hitl": "HITLTrigger",
    "authoring.triggers.temporal": "DateTimeTrigger TimeDeltaTrigger",
    "airflow.object_storage": "ObjectStoragePath",
    "authoring.week_day": "WeekDay",
    "authoring.xcom": "BaseXCom",
    "authoring.xcom_arg": "XComArg literal",
    "client.client": "Client",
    "errors": "AsynschedError DagError",
    "keys": "DagRunKey TaskInstanceKey",
    "metrics.open_telemetry": "OpenTelemetryMetrics",
    "metrics.prometheus": "PrometheusMetrics",
    "queries.events": "Change Missed",
    "scheduler": "Scheduler",
    "settings": "Settings",
    "states": "DagRunState DagRunType State TaskInstanceState",
    "timetables": (
        "AllowedKeyMapper AssetOrTimeSchedule ChainMapper ContinuousTimetable CronDataIntervalTimetable"
        " CronPartitionTimetable CronTriggerTimetable DagRunInfo DataInterval DayWindow DeltaDataIntervalTimetable"
        " DeltaTriggerTimetable EventsTimetable FanOutMapper FixedKeyMapper HourWindow IdentityMapper MinimumCount"
        " MonthWindow MultipleCronTriggerTimetable NullTimetable OnceTimetable PartitionMapper"
        " PartitionedAssetTimetable PartitionedAtRuntime ProductMapper QuarterWindow RollupMapper SegmentWindow"
        " StartOfDayMapper StartOfHourMapper StartOfMonthMapper StartOfQuarterMapper StartOfWeekMapper"
        " StartOfYearMapper TimeRestriction Timetable WaitForAll WeekWindow Window YearWindow"
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "DAG", "NEVER_EXPIRE", "AllowedKeyMapper", "ApprovalOperator", "Asset", "AssetAlias", "AssetAll", "AssetAny",
    "AssetOrTimeSchedule", "AssetWatcher", "AsyncCallback", "AsynschedError", "AsynschedException",
    "AsynschedFailException", "AsynschedNotFoundException", "AsynschedRescheduleException", "AsynschedSensorTimeout",
    "AsynschedSkipException", "AsynschedTaskTimeout", "BaseAsyncOperator", "BaseBranchOperator",
    "BaseDeadlineReference", "BaseEventTrigger", "BaseHook", "BaseNotifier", "BaseOperator", "BaseOperatorLink",
    "BaseSensorOperator", "BaseTrigger", "BaseXCom", "BashOperator", "BashSensor", "BranchDateTimeOperator",
    "BranchDayOfWeekOperator", "BranchExternalPythonOperator", "BranchMixIn", "BranchPythonOperator",
    "BranchPythonVirtualenvOperator", "ChainMapper", "Connection", "Context", "ContinuousTimetable",
    "CronDataIntervalTimetable", "CronPartitionTimetable", "CronTriggerTimetable", "DagError", "DagRunInfo",
    "DagRunState", "DagRunType", "DagStateTrigger", "DataInterval", "DateTimeSensor", "DateTimeSensorAsync",
    "DateTimeTrigger", "DayOfWeekSensor", "DayWindow", "DeadlineAlert", "DeadlineReference",
    "DeltaDataIntervalTimetable", "DeltaTriggerTimetable", "DirectoryFileDeleteTrigger", "DuplicateTaskIdFound",
    "EdgeModifier", "EmptyOperator", "EventsTimetable", "ExceptionRetryPolicy", "ExternalPythonOperator",
    "ExternalTaskMarker", "ExternalTaskSensor", "FanOutMapper", "FileDeleteTrigger", "FileSensor", "FileTrigger",
    "FixedKeyMapper", "HITLBranchOperator", "HITLEntryOperator", "HITLOperator", "HITLTrigger", "HourWindow",
    "HttpNotifier", "IdentityMapper", "Label", "LatestOnlyOperator", "Metadata", "MinimumCount", "MonthWindow",
    "MultipleCronTriggerTimetable", "NullTimetable", "OnceTimetable", "Param", "ParamValidationError", "ParamsDict",
    "PartitionMapper", "PartitionedAssetTimetable", "PartitionedAtRuntime", "PokeReturnValue", "ProductMapper",
    "PythonOperator", "PythonSensor", "PythonVirtualenvOperator", "QuarterWindow", "ResumableJobMixin", "RetryAction",
    "RetryDecision", "RetryPolicy", "RetryRule", "RollupMapper", "SegmentWindow", "ShortCircuitOperator", "SkipMixin",
    "SlackWebhookNotifier", "SmtpNotifier", "StartOfDayMapper", "StartOfHourMapper", "StartOfMonthMapper",
    "StartOfQuarterMapper", "StartOfWeekMapper", "StartOfYearMapper", "StartTriggerArgs", "State", "SyncCallback",
    "TaskDeferralError", "TaskDeferralTimeout", "TaskDeferred", "TaskFailedEvent", "TaskGroup", "TaskInstance",
    "TaskInstanceState", "TaskNotFound", "TaskSkippedEvent", "TaskSuccessEvent", "TimeDeltaSensor",
    "TimeDeltaSensorAsync", "TimeDeltaTrigger", "TimeRestriction", "TimeSensor", "TimeSensorAsync", "Timetable",
    "TriggerDagRunOperator", "TriggerEvent", "TriggerRule", "Variable", "VariableInterval", "WaitForAll", "WaitSensor",
    "WeekDay", "WeekWindow", "WeightRule", "Window", "WorkflowTrigger", "XComArg", "XComNotFound", "YearWindow",
    "__version__", "asset", "chain", "chain_linear", "cross_downstream", "dag", "deadline_reference",
    "get_current_context", "get_parsing_context", "literal", "macros", "mask_secret", "setup", "task", "task_group",
    "teardown", "timezone",
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
