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
_OWN = "asynsched.airflow"
_SDK_EXCEPTIONS = (
    "AirflowConfigException AirflowDagCycleException AirflowInactiveAssetInInletOrOutletException"
    " AirflowOptionalProviderFeatureException AirflowRuntimeError AirflowSecretsBackendAccessDenied"
    " AirflowTaskTerminated AirflowTimetableInvalid FailFastDagInvalidTriggerRule NodeNotFound"
    " RemovedInAirflow4Warning TaskAlreadyInTaskGroup TaskAlreadyRunningError UnmappableXComTypePushed"
    " XComForMappingNotPushed"
)
_CORE_EXCEPTIONS = (
    "AirflowBadRequest AirflowClusterPolicyError AirflowClusterPolicySkipDag AirflowClusterPolicyViolation"
    " AirflowDagDuplicatedIdException AirflowFileParseException AirflowInternalRuntimeError"
    " AirflowProviderDeprecationWarning AirflowUnsupportedFileTypeException ConnectionNotUnique DagCodeNotFound"
    " DagNotFound DagRunAlreadyExists DagRunNotFound DeserializationError DeserializingResultError"
    " InvalidStatsNameException NotMapped PodMutationHookException PodReconciliationError PoolNotFound"
    " SerializationError TaskInstanceNotFound UnknownExecutorException VariableNotUnique"
)
_HELPERS = (
    "GROUP_KEY_REGEX KEY_REGEX as_flattened_list at_most_one chunks convert_camel_to_snake exactly_one is_container"
    " merge_dicts partition prune_dict validate_key"
)
_LOADING = "import_string is_valid_dotpath iter_namespace qualname"
_MASKING = {"asynsched.authoring.masking": "mask_secret redact"}
_UNSET = "ArgNotSet NOTSET"
_STATS = {f"{_OWN}.stats": "Stats decr gauge incr timer timing"}
_LINEAGE = (
    "AssetLineageInfo ExtraLineageInfo HookLineage HookLineageCollector HookLineageReader LineageContext"
    " NoOpCollector get_hook_lineage_collector"
)
_CONFIGURATION = {f"{_OWN}.configuration": "conf", f"{_OWN}.exceptions": "AirflowConfigException"}
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
    "airflow": {
        PUBLIC: "DAG Asset XComArg",
        f"{_OWN}.version": "__version__=version",
        f"{_OWN}.exceptions": "DeprecatedImportWarning",
    },
    "airflow.version": {"asynsched.airflow.version": "version"},
    # The task SDK
    "airflow.sdk": {PUBLIC: _SDK, "asynsched.airflow.configuration": "conf"},
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
    "airflow.sdk.definitions.context": {
        PUBLIC: "Context get_current_context get_parsing_context",
        f"{_OWN}.context": "context_merge",
    },
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
    "airflow.sdk.exceptions": {PUBLIC: _EXCEPTIONS, f"{_OWN}.exceptions": _SDK_EXCEPTIONS},
    "airflow.sdk.types": {
        PUBLIC: "Context TaskInstance RuntimeTaskInstanceProtocol=TaskInstance",
        f"{_OWN}.types": "TaskInstanceKey",
        "logging": "Logger",
    },
    # The task SDK: what providers need beside its public names
    "airflow.sdk._shared.listeners": {f"{_OWN}.plugins_manager": "hookimpl"},
    "airflow.sdk._shared.module_loading": {f"{_OWN}.module_loading": _LOADING},
    "airflow.sdk._shared.observability.metrics.stats": _STATS,
    "airflow.sdk.bases.decorator": {f"{_OWN}.module_loading": "is_async_callable"},
    "airflow.sdk.configuration": _CONFIGURATION,
    "airflow.sdk.definitions._internal.types": {
        f"{_OWN}.types": f"{_UNSET} SET_DURING_EXECUTION SetDuringExecution is_arg_set"
    },
    "airflow.sdk.definitions._internal.logging_mixin": {f"{_OWN}.logging_mixin": "LoggingMixin"},
    "airflow.sdk.execution_time.context": {
        f"{_OWN}.context": (
            "AIRFLOW_VAR_NAME_FORMAT_MAPPING DEFAULT_FORMAT_PREFIX ENV_VAR_FORMAT_PREFIX context_to_airflow_vars"
        )
    },
    "airflow.sdk.execution_time.secrets_masker": _MASKING,
    "airflow.sdk.execution_time.task_runner": {PUBLIC: "RuntimeTaskInstance=TaskInstance"},
    "airflow.sdk.execution_time.timeout": {f"{_OWN}.timeout": "timeout"},
    "airflow.sdk.lineage": {f"{_OWN}.lineage": _LINEAGE},
    "airflow.sdk.log": _MASKING,
    "airflow.sdk.module_loading": {f"{_OWN}.module_loading": _LOADING},
    "airflow.sdk.observability.stats": _STATS,
    "airflow.sdk.plugins_manager": {f"{_OWN}.plugins_manager": "AirflowPlugin"},
    # The core
    "airflow.configuration": {
        **_CONFIGURATION,
        f"{_OWN}.configuration": "AIRFLOW_HOME AirflowConfigParser=Configuration conf get_airflow_home",
    },
    "airflow.exceptions": {PUBLIC: _EXCEPTIONS, f"{_OWN}.exceptions": f"{_SDK_EXCEPTIONS} {_CORE_EXCEPTIONS}"},
    "airflow.listeners": {f"{_OWN}.plugins_manager": "hookimpl"},
    "airflow.models": {
        PUBLIC: "DAG BaseOperator Connection Param TaskInstance Variable",
        "asynsched.authoring.running.task_instance": "DagRun",
        "asynsched.authoring.mapping": "MappedOperator",
    },
    "airflow.models.connection": {PUBLIC: "Connection"},
    "airflow.models.dagrun": {"asynsched.authoring.running.task_instance": "DagRun"},
    "airflow.models.taskinstancekey": {f"{_OWN}.types": "TaskInstanceKey"},
    "airflow.models.variable": {PUBLIC: "Variable"},
    "airflow.models.xcom_arg": {PUBLIC: "XComArg"},
    "airflow.plugins_manager": {f"{_OWN}.plugins_manager": "AirflowPlugin AirflowPluginException"},
    "airflow.secrets": {f"{_OWN}.secrets": "BaseSecretsBackend"},
    "airflow.secrets.base_secrets": {f"{_OWN}.secrets": "BaseSecretsBackend"},
    "airflow.security.kerberos": {f"{_OWN}.kerberos": "get_kerberos_principal renew_from_kt"},
    "airflow.security.utils": {
        f"{_OWN}.kerberos": "get_components get_fqdn principal_from_username replace_hostname_pattern"
    },
    "airflow.settings": {
        f"{_OWN}.configuration": "AIRFLOW_HOME",
        f"{_OWN}.settings": (
            "DAGS_FOLDER PLUGINS_FOLDER SIMPLE_LOG_FORMAT TIMEZONE get_airflow_context_vars pod_mutation_hook"
        ),
    },
    "airflow.task.trigger_rule": {PUBLIC: "TriggerRule"},
    "airflow.task.weight_rule": {PUBLIC: "WeightRule"},
    "airflow.utils.dates": {"asynsched.timetables.cron": "cron_presets=PRESETS"},
    "airflow.timetables.assets": {PUBLIC: "AssetOrTimeSchedule"},
    "airflow.timetables.base": {PUBLIC: "DagRunInfo DataInterval TimeRestriction Timetable"},
    "airflow.timetables.events": {PUBLIC: "EventsTimetable"},
    "airflow.timetables.interval": {PUBLIC: _TIMETABLES},
    "airflow.timetables.simple": {PUBLIC: _SIMPLE_TIMETABLES},
    "airflow.timetables.trigger": {PUBLIC: _TRIGGER_TIMETABLES},
    "airflow.triggers.base": {PUBLIC: f"{_TRIGGERS} StartTriggerArgs", f"{_OWN}.triggers": "BaseEventTrigger"},
    "airflow.utils.deprecation_tools": {
        f"{_OWN}.deprecation_tools": "add_deprecated_classes getattr_with_deprecation",
        f"{_OWN}.exceptions": "DeprecatedImportWarning",
    },
    "airflow.utils.email": {
        f"{_OWN}.email": "build_mime_message get_email_address_list send_email send_email_smtp send_mime_email"
    },
    "airflow.utils.file": {f"{_OWN}.file": "correct_maybe_zipped get_unique_dag_module_name open_maybe_zipped"},
    "airflow.utils.hashlib_wrapper": {f"{_OWN}.values": "md5"},
    "airflow.utils.helpers": {f"{_OWN}.values": _HELPERS},
    "airflow.utils.log.logging_mixin": {f"{_OWN}.logging_mixin": "LoggingMixin StreamLogWriter remove_escape_codes"},
    "airflow.utils.module_loading": {f"{_OWN}.module_loading": _LOADING},
    "airflow.utils.net": {f"{_OWN}.values": "get_hostname getfqdn=get_hostname"},
    "airflow.utils.platform": {f"{_OWN}.values": "getuser is_tty"},
    "airflow.utils.process_utils": {
        f"{_OWN}.processes": (
            "execute_in_subprocess execute_in_subprocess_with_kwargs patch_environ set_new_process_group"
        )
    },
    "airflow.utils.session": {f"{_OWN}.session": "NEW_SESSION create_session provide_session"},
    "airflow.utils.state": {PUBLIC: "DagRunState State TaskInstanceState"},
    "airflow.utils.strings": {f"{_OWN}.values": "get_random_string to_boolean"},
    "airflow.utils.types": {PUBLIC: "DagRunType", f"{_OWN}.types": _UNSET},
    # The standard provider
    f"{_STANDARD}.exceptions": {
        f"{_OWN}.exceptions": (
            "AirflowExternalTaskSensorException DuplicateStateError ExternalDagDeletedError ExternalDagFailedError"
            " ExternalDagNotFoundError ExternalTaskFailedError ExternalTaskGroupFailedError"
            " ExternalTaskGroupNotFoundError ExternalTaskNotFoundError"
        )
    },
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
    "airflow.sdk.yaml": "asynsched.airflow.yaml",
    "airflow.utils.dates": "asynsched.airflow.dates",
    "airflow.utils.yaml": "asynsched.airflow.yaml",
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
    "airflow.hooks.S3_hook": {"airflow.providers.amazon.aws.hooks.s3": "S3Hook"},
    "airflow.hooks.base": {"airflow.sdk": "BaseHook"},
    "airflow.hooks.base_hook": {"airflow.sdk": "BaseHook"},
    "airflow.models.baseoperator": {"airflow.sdk": "BaseOperator chain chain_linear cross_downstream"},
    "airflow.models.dag": {"airflow.sdk": "DAG dag"},
    "airflow.models.dataset": {"airflow.sdk": "Dataset=Asset DatasetAlias=AssetAlias"},
    "airflow.models.mappedoperator": {"airflow.sdk.definitions.mappedoperator": "MappedOperator"},
    "airflow.models.param": {"airflow.sdk": "Param ParamsDict"},
    "airflow.models.taskinstance": {
        "airflow.sdk": "TaskInstance get_current_context",
        "airflow.models.taskinstancekey": "TaskInstanceKey",
    },
    "airflow.notifications.basenotifier": {"airflow.sdk": "BaseNotifier"},
    "airflow.operators.bash": {f"{_OPERATORS}.bash": "BashOperator"},
    "airflow.operators.bash_operator": {f"{_OPERATORS}.bash": "BashOperator"},
    "airflow.operators.branch": {"airflow.sdk": "BaseBranchOperator"},
    "airflow.operators.branch_operator": {"airflow.sdk": "BaseBranchOperator"},
    "airflow.operators.datetime": {f"{_OPERATORS}.datetime": "BranchDateTimeOperator"},
    "airflow.operators.dagrun_operator": {f"{_OPERATORS}.trigger_dagrun": "TriggerDagRunOperator"},
    "airflow.operators.dummy": {f"{_OPERATORS}.empty": "DummyOperator=EmptyOperator"},
    "airflow.operators.dummy_operator": {f"{_OPERATORS}.empty": "DummyOperator=EmptyOperator"},
    "airflow.operators.email": {"airflow.providers.smtp.operators.smtp": "EmailOperator"},
    "airflow.operators.email_operator": {"airflow.providers.smtp.operators.smtp": "EmailOperator"},
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
    "airflow.utils.log.secrets_masker": {"airflow.sdk.log": "mask_secret redact"},
    "airflow.lineage.hook": {"airflow.sdk.lineage": _LINEAGE},
    "airflow.stats": {"airflow.sdk.observability.stats": "Stats"},
    "airflow.utils.task_group": {"airflow.sdk": "TaskGroup"},
    "airflow.utils.trigger_rule": {"airflow.sdk": "TriggerRule"},
    "airflow.utils.weekday": {f"{_STANDARD}.utils.weekday": "WeekDay"},
    "airflow.utils.weight_rule": {"airflow.sdk": "WeightRule"},
}
"""Modules and names of Airflow 2, with their place in Airflow 3: `{module there: names}`. Their use is warned of."""

MOVED_WHOLE: dict[str, str] = {"airflow.utils.timezone": "airflow.sdk.timezone"}
"""The same for modules of functions."""

_NO_DATABASE = "user code has no access to the database"
_USE_OPERATOR = f"{_NO_DATABASE}; use TriggerDagRunOperator"
REFUSED: dict[str, str] = {
    "airflow.operators.subdag": "Airflow 3 has no SubDagOperator; put the tasks into a TaskGroup",
    "airflow.operators.subdag_operator": "Airflow 3 has no SubDagOperator; put the tasks into a TaskGroup",
    "airflow.api.common.experimental": _USE_OPERATOR,
    "airflow.api.common.trigger_dag": _USE_OPERATOR,
    "airflow.contrib": "Airflow 2 moved its contents into provider packages; import them from airflow.providers",
    "airflow.dag_processing": "DAG files cannot read the other DAG files",
    "airflow.jobs": "user code has no access to the scheduler's jobs",
    "airflow.models.DagBag": "DAG files cannot read the other DAG files",
    "airflow.models.DagModel": _NO_DATABASE,
    "airflow.models.ImportError": f"{_NO_DATABASE}; `asynsched dags errors` shows the errors of files",
    "airflow.models.Log": _NO_DATABASE,
    "airflow.models.RenderedTaskInstanceFields": _NO_DATABASE,
    "airflow.models.SlaMiss": "Airflow 3 has no SLAs; use DeadlineAlert",
    "airflow.models.TaskFail": _NO_DATABASE,
    "airflow.models.TaskReschedule": _NO_DATABASE,
    "airflow.models.dag.DagModel": _NO_DATABASE,
    "airflow.models.serialized_dag": _NO_DATABASE,
    "airflow.models.taskinstance.clear_task_instances": f"{_NO_DATABASE}; use `asynsched tasks clear`",
    "airflow.settings.Session": f"{_NO_DATABASE}; use Variable, Connection and XComs",
    "airflow.settings.engine": f"{_NO_DATABASE}; use Variable, Connection and XComs",
    "airflow.utils.db": _NO_DATABASE,
}
"""Modules, and names in modules, that cannot work here, and why. A module's submodules cannot, either."""
