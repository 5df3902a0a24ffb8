"""Airflow's modules and names, and where asynsched has each of them. Only data; `finder.py` serves it.

Every module of Airflow has entries `{module here: names}`. A name is written `theirs=ours` where the two differ.
"""

PUBLIC = "asynsched"
"""The package that has all of asynsched's public names."""

_SDK = (
    "DAG Asset AssetAlias AssetAll AssetAny AssetOrTimeSchedule AsyncCallback BaseBranchOperator BaseHook BaseNotifier"
    " BaseOperator BaseSensorOperator Connection Context CronDataIntervalTimetable CronTriggerTimetable DagRunState"
    " DeadlineAlert DeadlineReference DeltaDataIntervalTimetable DeltaTriggerTimetable EdgeModifier EventsTimetable"
    " ExceptionRetryPolicy Label Metadata MultipleCronTriggerTimetable Param ParamsDict PokeReturnValue RetryAction"
    " RetryDecision RetryPolicy RetryRule SyncCallback TaskGroup TaskInstance TaskInstanceState TriggerRule Variable"
    " WeightRule XComArg asset chain chain_linear cross_downstream dag get_current_context get_parsing_context literal"
    " macros setup task task_group teardown"
)
_EXCEPTIONS = (
    "AirflowException=AsynschedException AirflowFailException=AsynschedFailException"
    " AirflowNotFoundException=AsynschedNotFoundException AirflowRescheduleException=AsynschedRescheduleException"
    " AirflowSensorTimeout=AsynschedSensorTimeout AirflowSkipException=AsynschedSkipException"
    " AirflowTaskTimeout=AsynschedTaskTimeout DuplicateTaskIdFound ParamValidationError TaskDeferralError"
    " TaskDeferralTimeout TaskDeferred TaskNotFound XComNotFound"
)
_TRIGGERS = "BaseTrigger TaskFailedEvent TaskSkippedEvent TaskSuccessEvent TriggerEvent"
_STANDARD = "airflow.providers.standard"
_PYTHON = (
    "BranchExternalPythonOperator BranchPythonOperator BranchPythonVirtualenvOperator ExternalPythonOperator"
    " PythonOperator PythonVirtualenvOperator ShortCircuitOperator get_current_context"
)
_TIMETABLES = "CronDataIntervalTimetable DeltaDataIntervalTimetable"
_TRIGGER_TIMETABLES = "CronTriggerTimetable DeltaTriggerTimetable MultipleCronTriggerTimetable"
_SIMPLE_TIMETABLES = "ContinuousTimetable NullTimetable OnceTimetable"

SERVED: dict[str, dict[str, str]] = {
    "airflow": {PUBLIC: "DAG Asset XComArg", "asynsched.airflow.version": "__version__=version"},
    "airflow.version": {"asynsched.airflow.version": "version"},
    # The task SDK
    "airflow.sdk": {PUBLIC: _SDK},
    "airflow.sdk.bases.branch": {PUBLIC: "BaseBranchOperator"},
    "airflow.sdk.bases.hook": {PUBLIC: "BaseHook"},
    "airflow.sdk.bases.notifier": {PUBLIC: "BaseNotifier"},
    "airflow.sdk.bases.operator": {PUBLIC: "BaseOperator chain chain_linear cross_downstream"},
    "airflow.sdk.bases.sensor": {PUBLIC: "BaseSensorOperator PokeReturnValue"},
    "airflow.sdk.bases.timetable": {PUBLIC: "BaseTimetable=Timetable"},
    "airflow.sdk.definitions.asset": {PUBLIC: "Asset AssetAlias AssetAll AssetAny Dataset=Asset"},
    "airflow.sdk.definitions.asset.decorators": {PUBLIC: "asset"},
    "airflow.sdk.definitions.asset.metadata": {PUBLIC: "Metadata"},
    "airflow.sdk.definitions.callback": {PUBLIC: "AsyncCallback SyncCallback"},
    "airflow.sdk.definitions.connection": {PUBLIC: "Connection"},
    "airflow.sdk.definitions.context": {PUBLIC: "Context get_current_context get_parsing_context"},
    "airflow.sdk.definitions.dag": {PUBLIC: "DAG dag"},
    "airflow.sdk.definitions.deadline": {PUBLIC: "DeadlineAlert DeadlineReference"},
    "airflow.sdk.definitions.decorators": {PUBLIC: "setup task task_group teardown"},
    "airflow.sdk.definitions.decorators.task_group": {PUBLIC: "task_group"},
    "airflow.sdk.definitions.edges": {PUBLIC: "EdgeModifier Label"},
    "airflow.sdk.definitions.mappedoperator": {"asynsched.authoring.mapping": "MappedOperator"},
    "airflow.sdk.definitions.param": {PUBLIC: "Param ParamsDict"},
    "airflow.sdk.definitions.retry_policy": {
        PUBLIC: "ExceptionRetryPolicy RetryAction RetryDecision RetryPolicy RetryRule"
    },
    "airflow.sdk.definitions.taskgroup": {PUBLIC: "TaskGroup"},
    "airflow.sdk.definitions.template": {PUBLIC: "literal"},
    "airflow.sdk.definitions.timetables.assets": {PUBLIC: "AssetOrTimeSchedule"},
    "airflow.sdk.definitions.timetables.events": {PUBLIC: "EventsTimetable"},
    "airflow.sdk.definitions.timetables.interval": {PUBLIC: _TIMETABLES},
    "airflow.sdk.definitions.timetables.simple": {PUBLIC: _SIMPLE_TIMETABLES},
    "airflow.sdk.definitions.timetables.trigger": {PUBLIC: _TRIGGER_TIMETABLES},
    "airflow.sdk.definitions.variable": {PUBLIC: "Variable"},
    "airflow.sdk.definitions.xcom_arg": {PUBLIC: "XComArg"},
    "airflow.sdk.exceptions": {PUBLIC: _EXCEPTIONS},
    "airflow.sdk.types": {PUBLIC: "TaskInstance"},
    # The core
    "airflow.exceptions": {PUBLIC: _EXCEPTIONS},
    "airflow.models": {PUBLIC: "DAG BaseOperator Connection Param TaskInstance Variable"},
    "airflow.models.connection": {PUBLIC: "Connection"},
    "airflow.models.variable": {PUBLIC: "Variable"},
    "airflow.models.xcom_arg": {PUBLIC: "XComArg"},
    "airflow.task.trigger_rule": {PUBLIC: "TriggerRule"},
    "airflow.task.weight_rule": {PUBLIC: "WeightRule"},
    "airflow.timetables.assets": {PUBLIC: "AssetOrTimeSchedule"},
    "airflow.timetables.base": {PUBLIC: "DagRunInfo DataInterval TimeRestriction Timetable"},
    "airflow.timetables.events": {PUBLIC: "EventsTimetable"},
    "airflow.timetables.interval": {PUBLIC: _TIMETABLES},
    "airflow.timetables.simple": {PUBLIC: _SIMPLE_TIMETABLES},
    "airflow.timetables.trigger": {PUBLIC: _TRIGGER_TIMETABLES},
    "airflow.triggers.base": {PUBLIC: f"{_TRIGGERS} StartTriggerArgs"},
    "airflow.utils.state": {PUBLIC: "DagRunState State TaskInstanceState"},
    "airflow.utils.types": {PUBLIC: "DagRunType"},
    # The standard provider
    f"{_STANDARD}.operators.bash": {PUBLIC: "BashOperator"},
    f"{_STANDARD}.operators.branch": {PUBLIC: "BaseBranchOperator"},
    f"{_STANDARD}.operators.datetime": {PUBLIC: "BranchDateTimeOperator"},
    f"{_STANDARD}.operators.empty": {PUBLIC: "EmptyOperator"},
    f"{_STANDARD}.operators.latest_only": {PUBLIC: "LatestOnlyOperator"},
    f"{_STANDARD}.operators.python": {PUBLIC: _PYTHON},
    f"{_STANDARD}.operators.trigger_dagrun": {PUBLIC: "TriggerDagRunOperator"},
    f"{_STANDARD}.operators.weekday": {PUBLIC: "BranchDayOfWeekOperator"},
    f"{_STANDARD}.sensors.bash": {PUBLIC: "BashSensor"},
    f"{_STANDARD}.sensors.date_time": {PUBLIC: "DateTimeSensor DateTimeSensorAsync"},
    f"{_STANDARD}.sensors.external_task": {PUBLIC: "ExternalTaskMarker ExternalTaskSensor"},
    f"{_STANDARD}.sensors.filesystem": {PUBLIC: "FileSensor"},
    f"{_STANDARD}.sensors.python": {PUBLIC: "PythonSensor"},
    f"{_STANDARD}.sensors.time": {PUBLIC: "TimeSensor TimeSensorAsync"},
    f"{_STANDARD}.sensors.time_delta": {PUBLIC: "TimeDeltaSensor TimeDeltaSensorAsync WaitSensor"},
    f"{_STANDARD}.sensors.weekday": {PUBLIC: "DayOfWeekSensor"},
    f"{_STANDARD}.triggers.external_task": {PUBLIC: "DagStateTrigger WorkflowTrigger"},
    f"{_STANDARD}.triggers.file": {PUBLIC: "FileTrigger"},
    f"{_STANDARD}.triggers.temporal": {PUBLIC: "DateTimeTrigger TimeDeltaTrigger"},
    f"{_STANDARD}.utils.weekday": {PUBLIC: "WeekDay"},
}

WHOLE: dict[str, str] = {
    "airflow.sdk.timezone": "asynsched.authoring.timezone",
    "airflow.sdk.execution_time.macros": "asynsched.authoring.macros",
    "airflow.macros": "asynsched.authoring.macros",
}
"""Modules of functions, each with all names of a module here."""

_SENSORS, _OPERATORS = f"{_STANDARD}.sensors", f"{_STANDARD}.operators"
MOVED: dict[str, dict[str, str]] = {
    "airflow": {"airflow.sdk": "Dataset=Asset", "airflow.exceptions": "AirflowException"},
    "airflow.datasets": {
        "airflow.sdk": "Dataset=Asset DatasetAlias=AssetAlias DatasetAll=AssetAll DatasetAny=AssetAny"
    },
    "airflow.datasets.metadata": {"airflow.sdk": "Metadata"},
    "airflow.decorators": {"airflow.sdk": "dag setup task task_group teardown"},
    "airflow.hooks.base": {"airflow.sdk": "BaseHook"},
    "airflow.hooks.base_hook": {"airflow.sdk": "BaseHook"},
    "airflow.models.baseoperator": {"airflow.sdk": "BaseOperator chain chain_linear cross_downstream"},
    "airflow.models.dag": {"airflow.sdk": "DAG dag"},
    "airflow.models.dataset": {"airflow.sdk": "Dataset=Asset DatasetAlias=AssetAlias"},
    "airflow.models.mappedoperator": {"airflow.sdk.definitions.mappedoperator": "MappedOperator"},
    "airflow.models.param": {"airflow.sdk": "Param ParamsDict"},
    "airflow.models.taskinstance": {"airflow.sdk": "TaskInstance get_current_context"},
    "airflow.notifications.basenotifier": {"airflow.sdk": "BaseNotifier"},
    "airflow.operators.bash": {f"{_OPERATORS}.bash": "BashOperator"},
    "airflow.operators.bash_operator": {f"{_OPERATORS}.bash": "BashOperator"},
    "airflow.operators.branch": {"airflow.sdk": "BaseBranchOperator"},
    "airflow.operators.branch_operator": {"airflow.sdk": "BaseBranchOperator"},
    "airflow.operators.datetime": {f"{_OPERATORS}.datetime": "BranchDateTimeOperator"},
    "airflow.operators.dagrun_operator": {f"{_OPERATORS}.trigger_dagrun": "TriggerDagRunOperator"},
    "airflow.operators.dummy": {f"{_OPERATORS}.empty": "DummyOperator=EmptyOperator"},
    "airflow.operators.dummy_operator": {f"{_OPERATORS}.empty": "DummyOperator=EmptyOperator"},
    "airflow.operators.empty": {f"{_OPERATORS}.empty": "EmptyOperator"},
    "airflow.operators.latest_only": {f"{_OPERATORS}.latest_only": "LatestOnlyOperator"},
    "airflow.operators.latest_only_operator": {f"{_OPERATORS}.latest_only": "LatestOnlyOperator"},
    "airflow.operators.python": {f"{_OPERATORS}.python": _PYTHON},
    "airflow.operators.python_operator": {f"{_OPERATORS}.python": _PYTHON},
    "airflow.operators.trigger_dagrun": {f"{_OPERATORS}.trigger_dagrun": "TriggerDagRunOperator"},
    "airflow.operators.weekday": {f"{_OPERATORS}.weekday": "BranchDayOfWeekOperator"},
    "airflow.sensors.base": {"airflow.sdk": "BaseSensorOperator PokeReturnValue"},
    "airflow.sensors.base_sensor_operator": {"airflow.sdk": "BaseSensorOperator"},
    "airflow.sensors.bash": {f"{_SENSORS}.bash": "BashSensor"},
    "airflow.sensors.date_time": {f"{_SENSORS}.date_time": "DateTimeSensor DateTimeSensorAsync"},
    "airflow.sensors.date_time_sensor": {f"{_SENSORS}.date_time": "DateTimeSensor"},
    "airflow.sensors.external_task": {f"{_SENSORS}.external_task": "ExternalTaskMarker ExternalTaskSensor"},
    "airflow.sensors.external_task_sensor": {f"{_SENSORS}.external_task": "ExternalTaskMarker ExternalTaskSensor"},
    "airflow.sensors.filesystem": {f"{_SENSORS}.filesystem": "FileSensor"},
    "airflow.sensors.python": {f"{_SENSORS}.python": "PythonSensor"},
    "airflow.sensors.time_delta": {f"{_SENSORS}.time_delta": "TimeDeltaSensor TimeDeltaSensorAsync"},
    "airflow.sensors.time_sensor": {f"{_SENSORS}.time": "TimeSensor TimeSensorAsync"},
    "airflow.sensors.weekday": {f"{_SENSORS}.weekday": "DayOfWeekSensor"},
    "airflow.timetables.datasets": {"airflow.timetables.assets": "DatasetOrTimeSchedule=AssetOrTimeSchedule"},
    "airflow.utils.context": {"airflow.sdk": "Context"},
    "airflow.utils.dag_parsing_context": {"airflow.sdk": "get_parsing_context"},
    "airflow.utils.edgemodifier": {"airflow.sdk": "EdgeModifier Label"},
    "airflow.utils.task_group": {"airflow.sdk": "TaskGroup"},
    "airflow.utils.trigger_rule": {"airflow.sdk": "TriggerRule"},
    "airflow.utils.weekday": {f"{_STANDARD}.utils.weekday": "WeekDay"},
    "airflow.utils.weight_rule": {"airflow.sdk": "WeightRule"},
}
"""Modules and names of Airflow 2, with their place in Airflow 3: `{module there: names}`. Their use is warned of."""

MOVED_WHOLE: dict[str, str] = {"airflow.utils.timezone": "airflow.sdk.timezone"}
"""The same for modules of functions."""

REFUSED: dict[str, str] = {
    "airflow.operators.subdag": "Airflow 3 has no SubDagOperator; put the tasks into a TaskGroup",
    "airflow.operators.subdag_operator": "Airflow 3 has no SubDagOperator; put the tasks into a TaskGroup",
    "airflow.models.DagBag": "DAG files cannot read the other DAG files",
    "airflow.models.DagModel": "user code has no access to the database",
    "airflow.contrib": "Airflow 2 moved its contents into provider packages; import them from airflow.providers",
    "airflow.jobs": "user code has no access to the scheduler's jobs",
    "airflow.utils.db": "user code has no access to the database",
}
"""Modules, and names in modules, that cannot work here, and why. A module's submodules cannot, either."""
