"""Airflow's modules and names, and where asynsched has each of them. Only data; `finder.py` serves it.

Every module of Airflow has entries `{module here: names}`. A name is written `theirs=ours` where the two differ.
"""

PUBLIC = "asynsched"
"""The package that has all of asynsched's public names."""

_SDK = (
    "DAG NEVER_EXPIRE AllowedKeyMapper Asset AssetAlias AssetAll AssetAny AssetOrTimeSchedule AssetWatcher"
    " AsyncCallback BaseAsyncOperator BaseBranchOperator BaseDeadlineReference BaseHook BaseNotifier BaseOperator"
    " BaseOperatorLink BaseSensorOperator BranchMixIn ChainMapper Connection Context CronDataIntervalTimetable"
    " CronPartitionTimetable CronTriggerTimetable DagRunState DayWindow DeadlineAlert DeadlineReference"
    " DeltaDataIntervalTimetable DeltaTriggerTimetable EdgeModifier EventsTimetable ExceptionRetryPolicy FanOutMapper"
    " FixedKeyMapper HourWindow IdentityMapper Label Metadata MinimumCount MonthWindow MultipleCronTriggerTimetable"
    " Param ParamsDict PartitionMapper PartitionedAssetTimetable PartitionedAtRuntime PokeReturnValue ProductMapper"
    " QuarterWindow ResumableJobMixin RetryAction RetryDecision RetryPolicy RetryRule RollupMapper SegmentWindow"
    " SkipMixin StartOfDayMapper StartOfHourMapper StartOfMonthMapper StartOfQuarterMapper StartOfWeekMapper"
    " StartOfYearMapper SyncCallback TaskGroup TaskInstance TaskInstanceState TriggerRule Variable WaitForAll"
    " WeekWindow WeightRule Window XComArg YearWindow asset chain chain_linear cross_downstream dag deadline_reference"
    " get_current_context get_parsing_context literal macros setup task task_group teardown"
)
_EXCEPTIONS = (
    "AirflowException=AsynschedException AirflowFailException=AsynschedFailException"
    " AirflowNotFoundException=AsynschedNotFoundException AirflowRescheduleException=AsynschedRescheduleException"
    " AirflowSensorTimeout=AsynschedSensorTimeout AirflowSkipException=AsynschedSkipException"
    " AirflowTaskTimeout=AsynschedTaskTimeout DuplicateTaskIdFound ParamValidationError TaskDeferralError"
    " TaskDeferralTimeout TaskDeferred TaskNotFound XComNotFound"
)
_SKIPPED = {"asynsched.authoring.exceptions": "DownstreamTasksSkipped"}
_OWN = "asynsched.airflow"
_TRY = "asynsched.authoring.running.try_context"
_SDK_EXCEPTIONS = (
    "AirflowConfigException AirflowDagCycleException AirflowInactiveAssetInInletOrOutletException"
    " AirflowOptionalProviderFeatureException AirflowRuntimeError AirflowSecretsBackendAccessDenied"
    " AirflowTaskTerminated AirflowTimetableInvalid FailFastDagInvalidTriggerRule NodeNotFound"
    " RemovedInAirflow4Warning TaskAlreadyInTaskGroup TaskAlreadyRunningError UnmappableXComTypePushed"
    " XComForMappingNotPushed"
)
_CORE_EXCEPTIONS = (
    "AirflowBadRequest AirflowClearRunningTaskException AirflowClusterPolicyError AirflowClusterPolicySkipDag"
    " AirflowClusterPolicyViolation AirflowDagDuplicatedIdException AirflowFileParseException"
    " AirflowInternalRuntimeError AirflowProviderDeprecationWarning AirflowUnsupportedFileTypeException"
    " ConnectionNotUnique DagCodeNotFound DagNotFound DagNotPartitionedError DagRunNotFound"
    " DagRunTypeNotAllowed DeserializationError DeserializingResultError FileSyntaxError InvalidPartitionKeyError"
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
_DECORATOR = {
    f"{_OWN}.decorator": "KeywordParameters determine_kwargs get_unique_task_id task_decorator_factory",
    f"{_OWN}.module_loading": "is_async_callable",
    "asynsched.authoring.mapping": "DecoratedMappedOperator=MappedOperator",
    "asynsched.authoring.taskflow": "DecoratedOperator TaskDecorator",
}
_CONFIGURATION = {f"{_OWN}.configuration": "conf", f"{_OWN}.exceptions": "AirflowConfigException"}
_DEFAULTS = (
    "DEFAULT_EXECUTOR DEFAULT_OWNER DEFAULT_POOL_NAME DEFAULT_POOL_SLOTS DEFAULT_PRIORITY_WEIGHT DEFAULT_QUEUE"
    " DEFAULT_RETRIES DEFAULT_RETRY_DELAY DEFAULT_TRIGGER_RULE DEFAULT_WEIGHT_RULE"
)
_TRIGGERS = "BaseTrigger TaskFailedEvent TaskSkippedEvent TaskSuccessEvent TriggerEvent"
_STANDARD = "airflow.providers.standard"
_PYTHON = (
    "BranchExternalPythonOperator BranchPythonOperator BranchPythonVirtualenvOperator ExternalPythonOperator"
    " PythonOperator PythonVirtualenvOperator ShortCircuitOperator get_current_context"
)
_OF_SKIP_MIXIN = "XCOM_SKIPMIXIN_FOLLOWED XCOM_SKIPMIXIN_KEY XCOM_SKIPMIXIN_SKIPPED"
_TIMETABLES = "CronDataIntervalTimetable DeltaDataIntervalTimetable"
_TRIGGER_TIMETABLES = "CronTriggerTimetable DeltaTriggerTimetable MultipleCronTriggerTimetable"
_PARTITIONS = (
    "AllowedKeyMapper ChainMapper DayWindow FanOutMapper FixedKeyMapper HourWindow IdentityMapper MinimumCount"
    " MonthWindow PartitionMapper ProductMapper QuarterWindow RollupMapper SegmentWindow StartOfDayMapper"
    " StartOfHourMapper StartOfMonthMapper StartOfQuarterMapper StartOfWeekMapper StartOfYearMapper WaitForAll"
    " WeekWindow Window YearWindow"
)
_PARTITION_MODULES = {
    "": _PARTITIONS,
    ".allowed_key": "AllowedKeyMapper",
    ".base": "PartitionMapper RollupMapper",
    ".chain": "ChainMapper",
    ".fixed_key": "FixedKeyMapper",
    ".identity": "IdentityMapper",
    ".product": "ProductMapper",
    ".temporal": (
        "FanOutMapper StartOfDayMapper StartOfHourMapper StartOfMonthMapper StartOfQuarterMapper StartOfWeekMapper"
        " StartOfYearMapper"
    ),
    ".wait_policy": "MinimumCount WaitForAll WaitPolicy",
    ".window": "DayWindow HourWindow MonthWindow QuarterWindow SegmentWindow WeekWindow Window YearWindow",
}
_SIMPLE_TIMETABLES = "ContinuousTimetable NullTimetable OnceTimetable"

SERVED: dict[str, dict[str, str]] = {
    "airflow": {
        PUBLIC: "DAG Asset XComArg",
        f"{_OWN}.version": "__version__=version",
        f"{_OWN}.exceptions": "DeprecatedImportWarning",
    },
    "airflow.version": {"asynsched.airflow.version": "version"},
    # The task SDK
    "airflow.sdk": {
        f"{_OWN}.decorator": "result",
        f"{_OWN}.version": "__version__=sdk_version",
        f"{_OWN}.access_control": "AssetAccessControl",
        "asynsched.authoring.xcom": "BaseXCom XCom",
        PUBLIC: _SDK,
        "asynsched.airflow.configuration": "conf",
        f"{_OWN}.object_storage": "ObjectStoragePath",
    },
    "airflow.sdk.io": {f"{_OWN}.object_storage": "ObjectStoragePath Properties attach get_fs has_fs"},
    "airflow.sdk.io.fs": {f"{_OWN}.object_storage": "get_fs has_fs"},
    "airflow.sdk.io.path": {f"{_OWN}.object_storage": "ObjectStoragePath"},
    "airflow.sdk.io.stat": {f"{_OWN}.object_storage": "stat_result"},
    "airflow.sdk.io.store": {f"{_OWN}.object_storage": "ObjectStore attach"},
    "airflow.sdk.io.typedef": {f"{_OWN}.object_storage": "Properties"},
    "airflow.sdk.bases.branch": {PUBLIC: "BaseBranchOperator BranchMixIn"},
    "airflow.sdk.bases.skipmixin": {PUBLIC: "SkipMixin", f"{_OWN}.standard": _OF_SKIP_MIXIN},
    "airflow.sdk.bases.hook": {PUBLIC: "BaseHook"},
    "airflow.sdk.bases.notifier": {PUBLIC: "BaseNotifier"},
    "airflow.sdk.bases.operator": {
        PUBLIC: "BaseAsyncOperator BaseOperator chain chain_linear cross_downstream",
    },
    "airflow.sdk.bases.secrets_backend": {f"{_OWN}.secrets": "BaseSecretsBackend"},
    "airflow.sdk.bases.resumablejobmixin": {PUBLIC: "ResumableJobMixin"},
    "airflow.sdk.bases.sensor": {
        PUBLIC: "BaseSensorOperator PokeReturnValue",
        "asynsched.authoring.sensors.base": "poke_mode_only",
    },
    "airflow.sdk.bases.timetable": {PUBLIC: "BaseTimetable=Timetable"},
    "airflow.sdk.definitions.asset": {
        PUBLIC: "Asset AssetAlias AssetAll AssetAny AssetWatcher Dataset=Asset",
        "asynsched.authoring.assets": "AssetRef AssetNameRef=AssetRef AssetUriRef=AssetRef BaseAsset",
        "asynsched.authoring.asset_keys": "AssetAliasUniqueKey AssetUniqueKey",
        f"{_OWN}.access_control": "AssetAccessControl",
    },
    "airflow.sdk.definitions.asset.access_control": {f"{_OWN}.access_control": "AssetAccessControl"},
    "airflow.sdk.definitions.asset.decorators": {PUBLIC: "asset"},
    "airflow.sdk.definitions.asset.metadata": {PUBLIC: "Metadata"},
    "airflow.sdk.definitions.callback": {
        PUBLIC: "AsyncCallback SyncCallback",
        "asynsched.authoring.deadline": "Callback",
    },
    "airflow.sdk.definitions.connection": {PUBLIC: "Connection"},
    "airflow.sdk.definitions.context": {
        PUBLIC: "Context get_current_context get_parsing_context",
        "asynsched.authoring.active": "AirflowParsingContext=ParsingContext",
        f"{_OWN}.context": "context_merge",
    },
    "airflow.sdk.definitions.dag": {PUBLIC: "DAG dag"},
    "airflow.sdk.definitions.deadline": {
        PUBLIC: "BaseDeadlineReference DeadlineAlert DeadlineReference VariableInterval deadline_reference"
    },
    "airflow.sdk.definitions.decorators": {
        PUBLIC: "dag setup task task_group teardown",
        f"{_OWN}.decorator": "result",
        "asynsched.authoring.taskflow": "TaskDecorator TaskDecoratorCollection=TaskDecorators",
    },
    "airflow.sdk.definitions.decorators.condition": {"asynsched.authoring.taskflow": "run_if skip_if"},
    "airflow.sdk.definitions.decorators.setup_teardown": {PUBLIC: "setup_task=setup teardown_task=teardown"},
    "airflow.sdk.definitions.decorators.task_group": {PUBLIC: "task_group"},
    "airflow.sdk.definitions.edges": {PUBLIC: "EdgeModifier Label"},
    "airflow.sdk.definitions.mappedoperator": {"asynsched.authoring.mapping": "MappedOperator OperatorPartial"},
    "airflow.sdk.definitions.param": {PUBLIC: "Param ParamsDict", "asynsched.authoring.params": "DagParam"},
    "airflow.sdk.definitions.retry_policy": {
        PUBLIC: "ExceptionRetryPolicy RetryAction RetryDecision RetryPolicy RetryRule"
    },
    "airflow.sdk.definitions.taskgroup": {
        PUBLIC: "TaskGroup",
        "asynsched.authoring.taskflow": "MappedTaskGroup",
    },
    "airflow.sdk.definitions.template": {PUBLIC: "literal"},
    "airflow.sdk.definitions.timetables.assets": {
        PUBLIC: "AssetOrTimeSchedule PartitionedAssetTimetable PartitionedAtRuntime",
        "asynsched.timetables.simple": "AssetTriggeredTimetable",
    },
    "airflow.sdk.definitions.timetables.events": {PUBLIC: "EventsTimetable"},
    "airflow.sdk.definitions.timetables.interval": {PUBLIC: _TIMETABLES},
    "airflow.sdk.definitions.timetables.simple": {PUBLIC: _SIMPLE_TIMETABLES},
    "airflow.sdk.definitions.timetables.trigger": {PUBLIC: f"CronPartitionTimetable {_TRIGGER_TIMETABLES}"},
    "airflow.sdk.definitions.variable": {PUBLIC: "Variable"},
    "airflow.sdk.definitions.xcom_arg": {
        PUBLIC: "PlainXComArg=XComArg XComArg",
        "asynsched.authoring.mapped_results": (
            "ConcatXComArg=ConcatenatedArg MapXComArg=TransformedArg ZipXComArg=ZippedArg"
        ),
    },
    "airflow.sdk.exceptions": {
        **_SKIPPED,
        PUBLIC: _EXCEPTIONS,
        f"{_OWN}.exceptions": _SDK_EXCEPTIONS,
        "asynsched.authoring.triggers.hitl": "TaskAwaitingInput",
    },
    "airflow.sdk.types": {
        PUBLIC: "Context TaskInstance RuntimeTaskInstanceProtocol=TaskInstance",
        "asynsched.authoring.running.task_instance": "DagRunProtocol=DagRun",
        f"{_OWN}.types": "TaskInstanceKey",
        "logging": "Logger",
    },
    # The task SDK: what providers need beside its public names
    "airflow.sdk._shared.listeners": {f"{_OWN}.listeners": "hookimpl"},
    "airflow.sdk._shared.configuration.exceptions": {f"{_OWN}.exceptions": "AirflowConfigException"},
    "airflow.sdk._shared.module_loading": {f"{_OWN}.module_loading": _LOADING},
    "airflow.sdk._shared.observability.metrics.stats": _STATS,
    "airflow.sdk.bases.decorator": _DECORATOR,
    "airflow.sdk.bases.operatorlink": {PUBLIC: "BaseOperatorLink"},
    "airflow.sdk.bases.xcom": {"asynsched.authoring.xcom": "BaseXCom"},
    "airflow.sdk.execution_time.xcom": {"asynsched.authoring.xcom": "XCom"},
    "airflow.sdk.providers_manager_runtime": {
        f"{_OWN}.providers_manager": "HookInfo ProviderInfo ProvidersManagerTaskRuntime=ProvidersManager"
    },
    "airflow.sdk.configuration": _CONFIGURATION,
    "airflow.sdk.definitions._internal.abstractoperator": {f"{_OWN}.defaults": _DEFAULTS},
    "airflow.sdk.definitions._internal.types": {
        f"{_OWN}.types": f"{_UNSET} SET_DURING_EXECUTION SetDuringExecution is_arg_set"
    },
    "airflow.sdk.definitions._internal.logging_mixin": {f"{_OWN}.logging_mixin": "LoggingMixin"},
    "airflow.sdk.execution_time.comms": {
        _TRY: "AssetEventDagRunReferenceResult=AssetEvent AssetEventResult=AssetEvent"
    },
    "airflow.sdk.execution_time.context": {
        _TRY: (
            "InletEventsAccessors=InletEvents OutletEventAccessors=OutletEvents"
            " TriggeringAssetEventsAccessor=TriggeringAssetEvents"
        ),
        f"{_OWN}.context": (
            "AIRFLOW_VAR_NAME_FORMAT_MAPPING DEFAULT_FORMAT_PREFIX ENV_VAR_FORMAT_PREFIX context_to_airflow_vars"
        ),
        "asynsched.authoring.running.state_store": (
            "AssetStateStoreAccessor AssetStateStoreAccessors NEVER_EXPIRE TaskStateStoreAccessor"
        ),
    },
    "airflow.sdk.state": {"asynsched.authoring.running.state_backend": "AssetScope BaseStoreBackend TaskScope"},
    "airflow.sdk.execution_time.hitl": {
        "asynsched.authoring.triggers.hitl": (
            "HITLUser get_hitl_detail_content_detail update_hitl_detail_response upsert_hitl_detail"
        )
    },
    "airflow.sdk.execution_time.secrets_masker": {
        **_MASKING,
        f"{_OWN}.secrets_masker": "SecretsMasker _secrets_masker=secrets_masker should_hide_value_for_key",
        "builtins": "Redactable=object Redacted=object",
    },
    "airflow.sdk.execution_time.task_runner": {PUBLIC: "RuntimeTaskInstance=TaskInstance"},
    "airflow.sdk.execution_time.timeout": {f"{_OWN}.timeout": "timeout"},
    "airflow.sdk.listener": {f"{_OWN}.listeners": "ListenerManager get_listener_manager"},
    "airflow.sdk.lineage": {f"{_OWN}.lineage": _LINEAGE},
    "airflow.sdk.log": _MASKING,
    "airflow.sdk.module_loading": {f"{_OWN}.module_loading": _LOADING},
    "airflow.sdk.observability.stats": _STATS,
    "airflow.sdk.plugins_manager": {f"{_OWN}.plugins_manager": "AirflowPlugin"},
    # The core
    "airflow.api_fastapi.auth.managers.models.resource_details": {
        f"{_OWN}.resource_details": (
            "AssetAliasDetails AssetDetails BackfillDetails ConfigurationDetails ConnectionDetails DagDetails"
            " PoolDetails TeamDetails VariableDetails"
        )
    },
    "airflow.configuration": {
        **_CONFIGURATION,
        f"{_OWN}.configuration": "AIRFLOW_HOME AirflowConfigParser=Configuration conf get_airflow_home",
    },
    "airflow.exceptions": {
        **_SKIPPED,
        PUBLIC: _EXCEPTIONS,
        f"{_OWN}.exceptions": f"{_SDK_EXCEPTIONS} {_CORE_EXCEPTIONS}",
        "asynsched.authoring.exceptions": "DagRunAlreadyExists",
    },
    "airflow.jobs.job": {f"{_OWN}.listeners": "Job"},
    "airflow.listeners": {f"{_OWN}.listeners": "hookimpl"},
    "airflow.listeners.listener": {f"{_OWN}.listeners": "get_listener_manager"},
    "airflow.listeners.types": {f"{_OWN}.listeners": "AssetEvent"},
    "airflow.policies": {f"{_OWN}.policies": "hookimpl"},
    "airflow.api.common.trigger_dag": {f"{_OWN}.other_dags": "trigger_dag"},
    "airflow.models": {
        PUBLIC: (
            "DAG BaseOperator BaseOperatorLink Connection Operator=BaseOperator Param SkipMixin TaskInstance Variable"
        ),
        "asynsched.authoring.running.task_instance": "DagRun",
        "asynsched.authoring.mapping": "MappedOperator",
        f"{_OWN}.session": "TaskReschedule",
        f"{_OWN}.other_dags": "DagBag DagModel",
        "asynsched.authoring.xcom": "BaseXCom XCom",
    },
    "airflow.models.base": {f"{_OWN}.defaults": "ID_LEN"},
    "airflow.models.asset": {f"{_OWN}.session": "expand_alias_to_assets"},
    "airflow.models.dag": {f"{_OWN}.other_dags": "DagModel"},
    "airflow.models.dagbag": {f"{_OWN}.other_dags": "DagBag"},
    "airflow.models.serialized_dag": {f"{_OWN}.other_dags": "SerializedDagModel"},
    "airflow.models.deadline": {f"{_OWN}.standard": "ReferenceModels"},
    "airflow.models.connection": {PUBLIC: "Connection"},
    "airflow.models.dagrun": {"asynsched.authoring.running.task_instance": "DagRun"},
    "airflow.models.taskinstance": {f"{_OWN}.session": "clear_task_instances"},
    "airflow.models.taskmixin": {"asynsched.authoring.node": "DAGNode DependencyMixin"},
    "airflow.models.taskinstancekey": {f"{_OWN}.types": "TaskInstanceKey"},
    "airflow.models.variable": {PUBLIC: "Variable"},
    "airflow.models.xcom_arg": {PUBLIC: "XComArg"},
    "airflow.models.xcom": {"asynsched.authoring.xcom": "BaseXCom XCom XCOM_RETURN_KEY"},
    "airflow.providers_manager": {f"{_OWN}.providers_manager": "HookInfo ProviderInfo ProvidersManager"},
    "airflow.plugins_manager": {f"{_OWN}.plugins_manager": "AirflowPlugin AirflowPluginException"},
    "airflow.secrets": {f"{_OWN}.secrets": "BaseSecretsBackend"},
    "airflow.secrets.base_secrets": {f"{_OWN}.secrets": "BaseSecretsBackend"},
    "airflow.secrets.environment_variables": {f"{_OWN}.secrets": "EnvironmentVariablesBackend"},
    "airflow.secrets.local_filesystem": {
        f"{_OWN}.local_filesystem": ("LocalFilesystemBackend load_configs_dict load_connections_dict load_variables")
    },
    "airflow.security.kerberos": {f"{_OWN}.kerberos": "get_kerberos_principal renew_from_kt"},
    "airflow.security.permissions": {
        f"{_OWN}.access_control": (
            "ACTION_CAN_ACCESS_MENU ACTION_CAN_CREATE ACTION_CAN_DELETE ACTION_CAN_EDIT ACTION_CAN_READ DAG_ACTIONS"
            " RESOURCE_DAG RESOURCE_DAG_PREFIX RESOURCE_DAG_RUN"
        )
    },
    "airflow.security.utils": {
        f"{_OWN}.kerberos": "get_components get_fqdn principal_from_username replace_hostname_pattern"
    },
    "airflow.serialization.definitions.dag": {f"{_OWN}.session": "SerializedDAG"},
    "airflow.serialization.definitions.mappedoperator": {f"{_OWN}.session": "SerializedMappedOperator"},
    "airflow.serialization.serialized_objects": {f"{_OWN}.session": "SerializedBaseOperator SerializedDAG"},
    "airflow.settings": {
        f"{_OWN}.configuration": "AIRFLOW_HOME conf",
        f"{_OWN}.session": "configure_orm",
        f"{_OWN}.settings": (
            "DAGS_FOLDER PLUGINS_FOLDER SIMPLE_LOG_FORMAT TIMEZONE get_airflow_context_vars pod_mutation_hook"
        ),
    },
    "airflow.task.trigger_rule": {PUBLIC: "TriggerRule"},
    "airflow.task.priority_strategy": {"asynsched.authoring.priority_weight": "PriorityWeightStrategy"},
    "airflow.task.weight_rule": {PUBLIC: "WeightRule"},
    "airflow.utils.dates": {"asynsched.timetables.cron": "cron_presets=PRESETS"},
    "airflow.timetables.assets": {PUBLIC: "AssetOrTimeSchedule"},
    "airflow.timetables.base": {PUBLIC: "DagRunInfo DataInterval TimeRestriction Timetable"},
    "airflow.timetables.events": {PUBLIC: "EventsTimetable"},
    "airflow.timetables.interval": {PUBLIC: _TIMETABLES},
    "airflow.timetables.simple": {
        PUBLIC: f"{_SIMPLE_TIMETABLES} PartitionedAssetTimetable PartitionedAtRuntime",
        "asynsched.timetables.simple": "AssetTriggeredTimetable",
    },
    "airflow.timetables.trigger": {PUBLIC: f"CronPartitionTimetable {_TRIGGER_TIMETABLES}"},
    **{
        f"{package}{module}": {"asynsched.timetables.partitions": names}
        for package in ("airflow.partition_mappers", "airflow.sdk.definitions.partition_mappers")
        for module, names in _PARTITION_MODULES.items()
    },
    "airflow.triggers.base": {PUBLIC: f"{_TRIGGERS} BaseEventTrigger StartTriggerArgs"},
    "airflow.triggers.shared_stream": {
        "asynsched.authoring.triggers.shared_stream": (
            "AckTimeout AdvanceItem AdvanceOutcome SharedStreamProducer reject_shared_stream_event"
        )
    },
    "airflow.typing_compat": {
        "typing": "Literal ParamSpec Protocol Self TypeAlias TypedDict TypeGuard Unpack assert_never runtime_checkable"
    },
    "airflow.utils.dag_cycle_tester": {f"{_OWN}.values": "check_cycle"},
    "airflow.utils.context": {f"{_OWN}.exceptions": "AirflowContextDeprecationWarning"},
    "airflow.utils.deprecation_tools": {
        f"{_OWN}.deprecation_tools": "add_deprecated_classes getattr_with_deprecation",
        f"{_OWN}.exceptions": "DeprecatedImportWarning",
    },
    "airflow.utils.email": {
        f"{_OWN}.email": "build_mime_message get_email_address_list send_email send_email_smtp send_mime_email"
    },
    "airflow.utils.file": {f"{_OWN}.file": "correct_maybe_zipped get_unique_dag_module_name open_maybe_zipped"},
    "airflow.utils.hashlib_wrapper": {f"{_OWN}.values": "md5"},
    "airflow.utils.decorators": {"asynsched.authoring.airflow_2": "apply_defaults"},
    "airflow.utils.helpers": {f"{_OWN}.values": _HELPERS},
    "airflow.utils.json": {f"{_OWN}.json": "XComDecoder XComEncoder"},
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
    "airflow.utils.types": {PUBLIC: "DagRunType", f"{_OWN}.types": f"{_UNSET} DagRunTriggeredByType"},
    # The standard provider
    _STANDARD: {f"{_OWN}.standard": "__version__=provider_version"},
    f"{_STANDARD}.decorators": {},
    f"{_STANDARD}.models": {},
    f"{_STANDARD}.decorators.bash": {f"{_OWN}.standard": "bash_task"},
    f"{_STANDARD}.decorators.branch_external_python": {f"{_OWN}.standard": "branch_external_python_task"},
    f"{_STANDARD}.decorators.branch_python": {f"{_OWN}.standard": "branch_task"},
    f"{_STANDARD}.decorators.branch_virtualenv": {f"{_OWN}.standard": "branch_virtualenv_task"},
    f"{_STANDARD}.decorators.external_python": {f"{_OWN}.standard": "external_python_task"},
    f"{_STANDARD}.decorators.python": {f"{_OWN}.standard": "python_task"},
    f"{_STANDARD}.decorators.python_virtualenv": {f"{_OWN}.standard": "virtualenv_task"},
    f"{_STANDARD}.decorators.sensor": {f"{_OWN}.standard": "sensor_task"},
    f"{_STANDARD}.decorators.short_circuit": {f"{_OWN}.standard": "short_circuit_task"},
    f"{_STANDARD}.decorators.stub": {f"{_OWN}.standard": "stub"},
    f"{_STANDARD}.exceptions": {
        "asynsched.authoring.exceptions": (
            "AirflowExternalTaskSensorException DuplicateStateError ExternalDagDeletedError ExternalDagFailedError"
            " ExternalDagNotFoundError ExternalTaskFailedError ExternalTaskGroupFailedError"
            " ExternalTaskGroupNotFoundError ExternalTaskNotFoundError"
        ),
        "asynsched.authoring.operators.hitl": "HITLRejectException HITLTimeoutError HITLTriggerEventError",
    },
    f"{_STANDARD}.get_provider_info": {f"{_OWN}.standard": "get_provider_info"},
    f"{_STANDARD}.hooks.filesystem": {f"{_OWN}.hooks": "FSHook"},
    f"{_STANDARD}.hooks.package_index": {f"{_OWN}.hooks": "PackageIndexHook"},
    f"{_STANDARD}.hooks.subprocess": {
        "asynsched.authoring.operators.subprocess_hook": "SubprocessHook SubprocessResult working_directory"
    },
    f"{_STANDARD}.operators.bash": {PUBLIC: "BashOperator"},
    f"{_STANDARD}.operators.branch": {PUBLIC: "BaseBranchOperator BranchMixIn SkipMixin"},
    f"{_STANDARD}.utils.skipmixin": {PUBLIC: "SkipMixin", f"{_OWN}.standard": _OF_SKIP_MIXIN},
    f"{_STANDARD}.operators.datetime": {
        PUBLIC: "BranchDateTimeOperator",
        "asynsched.authoring.operators.branch": "target_times_as_dates",
    },
    f"{_STANDARD}.operators.empty": {PUBLIC: "EmptyOperator"},
    f"{_STANDARD}.operators.hitl": {PUBLIC: "ApprovalOperator HITLBranchOperator HITLEntryOperator HITLOperator"},
    f"{_STANDARD}.operators.latest_only": {PUBLIC: "LatestOnlyOperator"},
    f"{_STANDARD}.operators.python": {PUBLIC: _PYTHON, f"{_OWN}.python_virtualenv": "_SERIALIZERS=SERIALIZERS"},
    f"{_STANDARD}.operators.smooth": {f"{_OWN}.standard": "SmoothOperator"},
    f"{_STANDARD}.operators.trigger_dagrun": {
        PUBLIC: "TriggerDagRunOperator",
        "asynsched.authoring.exceptions": "DagIsPaused",
        f"{_OWN}.standard": "TriggerDagRunLink XCOM_LOGICAL_DATE_ISO XCOM_RUN_ID",
    },
    f"{_STANDARD}.operators.weekday": {PUBLIC: "BranchDayOfWeekOperator"},
    f"{_STANDARD}.sensors.bash": {PUBLIC: "BashSensor"},
    f"{_STANDARD}.sensors.date_time": {PUBLIC: "DateTimeSensor DateTimeSensorAsync"},
    f"{_STANDARD}.sensors.external_task": {
        PUBLIC: "ExternalTaskMarker ExternalTaskSensor",
        f"{_OWN}.standard": "ExternalDagLink",
    },
    f"{_STANDARD}.sensors.filesystem": {PUBLIC: "FileSensor"},
    f"{_STANDARD}.sensors.python": {PUBLIC: "PythonSensor"},
    f"{_STANDARD}.sensors.time": {PUBLIC: "TimeSensor TimeSensorAsync"},
    f"{_STANDARD}.sensors.time_delta": {PUBLIC: "TimeDeltaSensor TimeDeltaSensorAsync WaitSensor"},
    f"{_STANDARD}.sensors.weekday": {PUBLIC: "DayOfWeekSensor"},
    f"{_STANDARD}.triggers.external_task": {PUBLIC: "DagStateTrigger WorkflowTrigger"},
    f"{_STANDARD}.triggers.file": {PUBLIC: "DirectoryFileDeleteTrigger FileDeleteTrigger FileTrigger"},
    f"{_STANDARD}.triggers.hitl": {
        PUBLIC: "HITLTrigger",
        "builtins": "HITLTriggerEventFailurePayload=dict HITLTriggerEventSuccessPayload=dict",
    },
    f"{_STANDARD}.triggers.temporal": {PUBLIC: "DateTimeTrigger TimeDeltaTrigger"},
    f"{_STANDARD}.utils.python_virtualenv": {f"{_OWN}.python_virtualenv": "prepare_virtualenv write_python_script"},
    f"{_STANDARD}.utils.weekday": {PUBLIC: "WeekDay"},
    f"{_STANDARD}.version_compat": {
        PUBLIC: "BaseOperator",
        f"{_OWN}.standard": (
            "AIRFLOW_V_3_0_PLUS AIRFLOW_V_3_1_PLUS AIRFLOW_V_3_1_3_PLUS AIRFLOW_V_3_2_PLUS AIRFLOW_V_3_3_PLUS"
            " get_base_airflow_version_tuple"
        ),
        f"{_OWN}.types": "ArgNotSet NOTSET is_arg_set",
    },
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
_SQL, _HIVE = "airflow.providers.common.sql", "airflow.providers.apache.hive"
MOVED: dict[str, dict[str, str]] = {
    "airflow": {"airflow.sdk": "Dataset=Asset", "airflow.exceptions": "AirflowException"},
    "airflow.datasets": {
        "airflow.sdk": "Dataset=Asset DatasetAlias=AssetAlias DatasetAll=AssetAll DatasetAny=AssetAny"
    },
    "airflow.datasets.metadata": {"airflow.sdk": "Metadata"},
    "airflow.decorators": {"airflow.sdk": "dag setup task task_group teardown"},
    "airflow.decorators.base": {
        "airflow.sdk.bases.decorator": (
            "DecoratedMappedOperator DecoratedOperator TaskDecorator get_unique_task_id task_decorator_factory"
        )
    },
    "airflow.io": {"airflow.sdk.io": "Properties attach get_fs has_fs"},
    "airflow.io.path": {"airflow.sdk": "ObjectStoragePath"},
    "airflow.io.storage": {"airflow.sdk.io": "attach"},
    "airflow.io.store": {"airflow.sdk.io": "attach"},
    "airflow.io.typedef": {"airflow.sdk.io": "Properties"},
    "airflow.hooks.S3_hook": {"airflow.providers.amazon.aws.hooks.s3": "S3Hook"},
    "airflow.hooks.base": {"airflow.sdk": "BaseHook"},
    "airflow.hooks.filesystem": {f"{_STANDARD}.hooks.filesystem": "FSHook"},
    "airflow.hooks.package_index": {f"{_STANDARD}.hooks.package_index": "PackageIndexHook"},
    "airflow.hooks.subprocess": {f"{_STANDARD}.hooks.subprocess": "SubprocessHook SubprocessResult working_directory"},
    "airflow.hooks.dbapi": {f"{_SQL}.hooks.sql": "DbApiHook"},
    "airflow.hooks.dbapi_hook": {f"{_SQL}.hooks.sql": "DbApiHook"},
    "airflow.hooks.hive_hooks": {f"{_HIVE}.hooks.hive": "HiveCliHook HiveMetastoreHook HiveServer2Hook"},
    "airflow.hooks.http_hook": {"airflow.providers.http.hooks.http": "HttpHook"},
    "airflow.hooks.mysql_hook": {"airflow.providers.mysql.hooks.mysql": "MySqlHook"},
    "airflow.hooks.postgres_hook": {"airflow.providers.postgres.hooks.postgres": "PostgresHook"},
    "airflow.hooks.slack_hook": {"airflow.providers.slack.hooks.slack": "SlackHook"},
    "airflow.hooks.sqlite_hook": {"airflow.providers.sqlite.hooks.sqlite": "SqliteHook"},
    "airflow.hooks.base_hook": {"airflow.sdk": "BaseHook"},
    "airflow.models.baseoperator": {"airflow.sdk": "BaseOperator chain chain_linear cross_downstream"},
    "airflow.models.dag": {"airflow.sdk": "DAG dag"},
    "airflow.api.common.experimental.trigger_dag": {"airflow.api.common.trigger_dag": "trigger_dag"},
    "airflow.models.dataset": {"airflow.sdk": "Dataset=Asset DatasetAlias=AssetAlias"},
    "airflow.models.mappedoperator": {"airflow.sdk.definitions.mappedoperator": "MappedOperator"},
    "airflow.models.param": {"airflow.sdk": "Param ParamsDict"},
    "airflow.models.skipmixin": {"airflow.sdk.bases.skipmixin": "SkipMixin"},
    "airflow.models.taskinstance": {
        "airflow.sdk": "TaskInstance get_current_context",
        "airflow.models.taskinstancekey": "TaskInstanceKey",
    },
    "airflow.notifications.basenotifier": {"airflow.sdk": "BaseNotifier"},
    "airflow.operators.bash": {f"{_OPERATORS}.bash": "BashOperator"},
    "airflow.operators.bash_operator": {f"{_OPERATORS}.bash": "BashOperator"},
    "airflow.operators.branch": {"airflow.sdk": "BaseBranchOperator BranchMixIn"},
    "airflow.operators.branch_operator": {"airflow.sdk": "BaseBranchOperator"},
    "airflow.operators.datetime": {f"{_OPERATORS}.datetime": "BranchDateTimeOperator"},
    "airflow.operators.dagrun_operator": {f"{_OPERATORS}.trigger_dagrun": "TriggerDagRunOperator"},
    "airflow.operators.dummy": {f"{_OPERATORS}.empty": "DummyOperator=EmptyOperator"},
    "airflow.operators.dummy_operator": {f"{_OPERATORS}.empty": "DummyOperator=EmptyOperator"},
    "airflow.operators.email": {"airflow.providers.smtp.operators.smtp": "EmailOperator"},
    "airflow.operators.email_operator": {"airflow.providers.smtp.operators.smtp": "EmailOperator"},
    "airflow.operators.empty": {f"{_OPERATORS}.empty": "EmptyOperator"},
    "airflow.operators.hive_operator": {f"{_HIVE}.operators.hive": "HiveOperator"},
    "airflow.operators.latest_only": {f"{_OPERATORS}.latest_only": "LatestOnlyOperator"},
    "airflow.operators.latest_only_operator": {f"{_OPERATORS}.latest_only": "LatestOnlyOperator"},
    "airflow.operators.python": {f"{_OPERATORS}.python": _PYTHON, "airflow.sdk": "task"},
    "airflow.operators.python_operator": {f"{_OPERATORS}.python": _PYTHON},
    "airflow.operators.generic_transfer": {f"{_SQL}.operators.generic_transfer": "GenericTransfer"},
    "airflow.operators.smooth": {f"{_OPERATORS}.smooth": "SmoothOperator"},
    "airflow.operators.sql": {
        f"{_SQL}.operators.sql": (
            "BranchSQLOperator SQLCheckOperator SQLIntervalCheckOperator SQLThresholdCheckOperator"
            " SQLValueCheckOperator"
        )
    },
    "airflow.sensors.sql": {f"{_SQL}.sensors.sql": "SqlSensor"},
    "airflow.operators.trigger_dagrun": {f"{_OPERATORS}.trigger_dagrun": "TriggerDagRunOperator"},
    "airflow.operators.weekday": {f"{_OPERATORS}.weekday": "BranchDayOfWeekOperator"},
    "airflow.sensors.base": {
        "airflow.sdk": "BaseSensorOperator PokeReturnValue",
        "airflow.sdk.bases.sensor": "poke_mode_only",
    },
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
    "airflow.timetables.datasets": {"asynsched.authoring.airflow_2": "DatasetOrTimeSchedule"},
    "airflow.triggers.external_task": {f"{_STANDARD}.triggers.external_task": "DagStateTrigger WorkflowTrigger"},
    "airflow.triggers.file": {f"{_STANDARD}.triggers.file": "FileTrigger"},
    "airflow.triggers.temporal": {f"{_STANDARD}.triggers.temporal": "DateTimeTrigger TimeDeltaTrigger"},
    "airflow.utils.context": {"airflow.sdk": "Context"},
    "airflow.utils.dag_parsing_context": {"airflow.sdk": "get_parsing_context"},
    "airflow.utils.file": {"tempfile": "TemporaryDirectory"},
    "airflow.utils.helpers": {"airflow.sdk": "chain cross_downstream"},
    "airflow.utils.timeout": {"airflow.sdk.execution_time.timeout": "timeout"},
    "airflow.utils.edgemodifier": {"airflow.sdk": "EdgeModifier Label"},
    "airflow.models.abstractoperator": {
        "airflow.sdk": "AbstractOperator=BaseOperator",
        "airflow.sdk.definitions._internal.abstractoperator": _DEFAULTS,
    },
    "airflow.models.baseoperatorlink": {"airflow.sdk": "BaseOperatorLink"},
    "airflow.utils.operator_helpers": {
        "airflow.sdk.bases.decorator": "KeywordParameters determine_kwargs",
        "airflow.sdk.execution_time.context": "context_to_airflow_vars",
    },
    "airflow.utils.python_virtualenv": {
        f"{_STANDARD}.utils.python_virtualenv": "prepare_virtualenv write_python_script"
    },
    "airflow.utils.xcom": {"airflow.models.xcom": "XCOM_RETURN_KEY"},
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
_NO_API = "asynsched has no API server and no auth managers"
_SERVICE = "asynsched has an executor of its own"
_LOGS = "asynsched writes logs to its home; it has no log handlers of providers"
REFUSED: dict[str, str] = {
    "airflow.operators.subdag": "Airflow 3 has no SubDagOperator; put the tasks into a TaskGroup",
    "airflow.operators.subdag_operator": "Airflow 3 has no SubDagOperator; put the tasks into a TaskGroup",
    **dict.fromkeys(
        (
            f"airflow.api.common.experimental.{name}"
            for name in (
                "delete_dag",
                "get_code",
                "get_dag_run_state",
                "get_dag_runs",
                "get_lineage",
                "get_task",
                "get_task_instance",
                "mark_tasks",
                "pool",
            )
        ),
        f"{_NO_DATABASE}; use ExternalTaskSensor, or the methods of `ti`",
    ),
    "airflow.api_fastapi.app": _NO_API,
    "airflow.api_fastapi.auth.managers.base_auth_manager": _NO_API,
    "airflow.api_fastapi.auth.managers.models.base_user": _NO_API,
    "airflow.api_fastapi.common": _NO_API,
    "airflow.api_fastapi.core_api": _NO_API,
    "airflow.auth": _NO_API,
    "airflow.cli": "asynsched has commands of its own",
    "airflow.dag_processing": "asynsched reads one local folder, and DAG files cannot read the others",
    "airflow.exceptions.DagRunTriggerException": "use TriggerDagRunOperator",
    "airflow.executors": f"{_SERVICE}; set `executor`",
    "airflow.sdk.coordinators": "tasks are Python; use BashOperator for other programs",
    "airflow.sdk.crypto": "only the scheduler has the key of stored secrets; use Variable and Connection",
    "airflow.sdk.definitions.operator_resources": "a task's `resources` have no effect",
    "airflow.sdk.serde": "asynsched has a format of its own for XComs; use a BaseXCom for other types",
    f"{_STANDARD}.decorators.sensor.DecoratedSensorOperator": "use `@task.sensor`",
    "airflow.sdk.exceptions.DagRunTriggerException": "use TriggerDagRunOperator",
    "airflow.sdk.exceptions.ErrorType": "tasks here ask no API server",
    "airflow.utils.cli": "asynsched has commands of its own",
    "airflow.utils.log.file_task_handler": _LOGS,
    f"{_STANDARD}.utils.openlineage": "asynsched sends no OpenLineage events",
    f"{_STANDARD}.utils.sensor_helper": f"{_NO_DATABASE}; use ExternalTaskSensor",
    "airflow.example_dags": "put Airflow's examples into the DAG folder as airflow/example_dags",
    **dict.fromkeys(
        (
            f"airflow.jobs.{name}"
            for name in ("base_job", "base_job_runner", "scheduler_job_runner", "triggerer_job_runner")
        ),
        "user code has no access to the scheduler's jobs",
    ),
    "airflow.models.ImportError": f"{_NO_DATABASE}; `asynsched dags errors` shows the errors of files",
    "airflow.models.Log": _NO_DATABASE,
    "airflow.models.RenderedTaskInstanceFields": _NO_DATABASE,
    "airflow.models.SlaMiss": "Airflow 3 has no SLAs; use DeadlineAlert",
    "airflow.models.TaskFail": _NO_DATABASE,
    "airflow.models.taskinstance.SimpleTaskInstance": _SERVICE,
    "airflow.models.renderedtifields": _NO_DATABASE,
    "airflow.secrets.metastore": f"{_NO_DATABASE}; Connection.get and Variable.get read it",
    "airflow.settings.Session": f"{_NO_DATABASE}; use Variable, Connection and XComs",
    "airflow.settings.engine": f"{_NO_DATABASE}; use Variable, Connection and XComs",
    "airflow.utils.db": _NO_DATABASE,
}
"""Modules, and names in modules, that cannot work here, and why. A module's submodules cannot, either."""

_NO_OTHER_FILES = "DAG files cannot read the other DAG files"
UNUSABLE: dict[str, str] = {
    "airflow.models.DagBag": _NO_OTHER_FILES,
    "airflow.models.dagbag.DagBag": _NO_OTHER_FILES,
    "airflow.models.serialized_dag.SerializedDagModel": _NO_DATABASE,
}
"""Names that files may import, such as for annotations, but whose use is an error, and why. The import is warned of."""

CONTRIB = "airflow.contrib"
EMPTY = frozenset({CONTRIB, *(f"{CONTRIB}.{name}" for name in ("hooks", "operators", "secrets", "sensors", "utils"))})
"""Packages without contents: the import goes on to a module in them, so that its refusal names what replaces it."""

_AWS, _GOOGLE = "airflow.providers.amazon.aws", "airflow.providers.google.cloud"
_AS_SQL = f"use SQLExecuteQueryOperator of {_SQL}.operators.sql, with conn_id"
RENAMED_IN_PROVIDERS: dict[str, str] = {
    f"{_AWS}.hooks.lambda_function.AwsLambdaHook": "it is now LambdaHook",
    f"{_AWS}.operators.athena.AWSAthenaOperator": "it is now AthenaOperator",
    f"{_AWS}.operators.emr_add_steps": f"it is now in {_AWS}.operators.emr",
    f"{_AWS}.operators.emr_containers": f"it is now in {_AWS}.operators.emr",
    f"{_AWS}.operators.emr_create_job_flow": f"it is now in {_AWS}.operators.emr",
    f"{_AWS}.operators.emr_terminate_job_flow": f"it is now in {_AWS}.operators.emr",
    f"{_AWS}.operators.s3_bucket": f"it is now in {_AWS}.operators.s3",
    f"{_AWS}.operators.s3_copy_object": f"it is now in {_AWS}.operators.s3",
    f"{_AWS}.operators.sagemaker_training": f"it is now in {_AWS}.operators.sagemaker",
    f"{_AWS}.sensors.emr_step": f"it is now in {_AWS}.sensors.emr",
    f"{_AWS}.sensors.s3_key": f"it is now in {_AWS}.sensors.s3",
    "airflow.providers.cncf.kubernetes.operators.kubernetes_pod": (
        "it is now airflow.providers.cncf.kubernetes.operators.pod"
    ),
    f"{_GOOGLE}.operators.bigquery.BigQueryExecuteQueryOperator": "use BigQueryInsertJobOperator",
    "airflow.providers.http.operators.http.SimpleHttpOperator": "it is now HttpOperator",
    "airflow.providers.mysql.operators": _AS_SQL,
    "airflow.providers.postgres.operators": _AS_SQL,
    "airflow.providers.slack.notifications.slack_notifier": "it is now airflow.providers.slack.notifications.slack",
    "airflow.providers.snowflake.operators.snowflake.SnowflakeOperator": _AS_SQL,
    "airflow.providers.sqlite.operators": _AS_SQL,
}
"""Modules, and names in modules, that today's providers have renamed, and what to write instead."""
