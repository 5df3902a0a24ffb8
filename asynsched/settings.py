"""Every setting: its type, default, bounds and meaning. One frozen object, built once, in the command line only.

Where values come from, and which wins, is in `asynsched/cli/configuration.py`. An embedding program makes
`Settings(...)` itself. Lengths of time are seconds here, because people write them in files and flags.
"""

from datetime import timedelta
from functools import cache
from math import isnan
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct

from asynsched.errors import SettingsError

LONGEST_SECONDS = 1e9
"""About 30 years: longer ones leave the range of dates."""
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)]
Count = Annotated[int, Meta(ge=1, le=10**15)]


def doc(text: str) -> Meta:
    """Return what a setting means, for its annotation."""
    return Meta(description=text)


@cache
def field_types(struct: type[Struct]) -> dict[str, Any]:
    """Return the fields of a group of settings with their types, bounds and descriptions included."""
    return get_type_hints(struct, include_extras=True)


class InvalidSetting(SettingsError):
    """A setting has a value that it cannot have. `name` is the option, e.g. `parse.timeout`."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem


class CheckedSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings that are checked however they are made: msgspec by itself checks only what it decodes."""

    def __post_init__(self) -> None:
        """Raise InvalidSetting for a value of the wrong type or out of bounds."""
        for name, type_ in field_types(type(self)).items():
            value = getattr(self, name)
            try:
                msgspec.convert(value, type_)
            except msgspec.ValidationError as exc:
                raise self.invalid(name, str(exc)) from exc
            if isinstance(value, float) and isnan(value):
                raise self.invalid(name, "must be a number, not nan")

    def invalid(self, name: str, problem: str) -> InvalidSetting:
        """Return the error of one of these settings, with the group's name in the option's."""
        group = type(self).__name__.removesuffix("Settings").lower()
        return InvalidSetting(f"{group}.{name}" if group else name, problem)


Days = Annotated[float, Meta(ge=0, le=100_000)]
Number = Annotated[int, Meta(ge=0, le=10**15)]


class RetentionSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """What is kept of the past, and for how long. 0 keeps it for ever."""

    runs_days: Annotated[Days, doc("Days after its end that a run is kept, with its tasks, XComs and logs.")] = 0.0
    runs_per_dag: Annotated[Number, doc("Runs that are kept of each DAG, the newest.")] = 0
    xcoms_days: Annotated[Days, doc("Days after the end of a run that its XComs are kept.")] = 0.0
    xcoms_per_dag: Annotated[Number, doc("Runs of each DAG whose XComs are kept, the newest.")] = 0
    logs_days: Annotated[Days, doc("Days after the end of a run that its logs are kept.")] = 0.0
    logs_per_dag: Annotated[Number, doc("Runs of each DAG whose logs are kept, the newest.")] = 0
    asset_events_days: Annotated[Days, doc("Days that an update of an asset is kept that no DAG waits for.")] = 0.0
    audit_days: Annotated[Days, doc("Days that it is kept who did what from outside.")] = 0.0
    versions_days: Annotated[
        Days, doc("Days that a DAG's version is kept that was superseded and that no run needs, and its sources.")
    ] = 0.0
    interval: Annotated[PositiveSeconds, doc("Time between two sweeps, seconds.")] = 3600.0
    batch_rows: Annotated[Count, doc("Rows that are deleted in one transaction, about.")] = 1000


class MonitorSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """How others see that a scheduler is well."""

    listen: Annotated[
        str | None, doc("Where /health and /metrics are served: HOST:PORT, or unix:PATH; by default nowhere.")
    ] = None
    metrics: Annotated[
        Literal["off", "prometheus", "opentelemetry"],
        doc("Who takes figures: a scraper of /metrics, or a collector that OTEL_EXPORTER_OTLP_ENDPOINT names."),
    ] = "off"
    metrics_prefix: Annotated[
        str,
        Meta(pattern="^[a-zA-Z][a-zA-Z0-9_]*$"),
        doc("What the names of figures begin with (Airflow: statsd_prefix)."),
    ] = "airflow"
    longest_step: Annotated[
        PositiveSeconds,
        doc("Longest that a step of a loop may take, seconds; after that the scheduler counts as stuck."),
    ] = 300.0


def _is_zone(name: str) -> bool:
    from zoneinfo import ZoneInfo  # most programs leave UTC, and every command reads the settings

    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        return False
    return True


class ParseSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """How DAG files are parsed. Enforced on every parse, by the kernel where it can."""

    processes: Annotated[Count, doc("Parses that may run at once (Airflow: parsing_processes).")] = 2
    timeout: Annotated[
        PositiveSeconds, doc("Longest a parse may take, seconds (Airflow: dag_file_processor_timeout).")
    ] = 50.0
    import_timeout: Annotated[
        PositiveSeconds, doc("Longest the import of a file may take, seconds (Airflow: dagbag_import_timeout).")
    ] = 30.0
    cpu_seconds: Annotated[Count, doc("CPU time that a parse may use, seconds.")] = 60
    memory_bytes: Annotated[Count, doc("Data memory that a parse may use, bytes.")] = 1024**3
    file_bytes: Annotated[Count, doc("Largest file that a parse may write in its scratch folder, bytes.")] = (
        64 * 1024**2
    )
    result_bytes: Annotated[Count, doc("Largest result of a parse, bytes of JSON.")] = 32 * 1024**2
    output_bytes: Annotated[
        Count, doc("How much of a file's own standard output and error is kept, bytes; the rest is dropped.")
    ] = 64 * 1024
    open_files: Annotated[Count, doc("Files that a parse may have open.")] = 256
    max_processes: Annotated[Count, doc("Processes and threads that a parse may start.")] = 64
    readable: Annotated[
        tuple[str, ...], doc("Files and folders that a parse may read, beside the DAG folder and Python's own.")
    ] = ()
    environment: Annotated[
        tuple[str, ...],
        doc(
            "Environment variables that a parse is given, beside LANG, LC_*, TZ, PATH, and those by which Python finds"
            " packages; `PREFIX_*` names many."
        ),
    ] = ("AIRFLOW_VAR_*",)
    confinement: Annotated[
        Literal["best_effort", "required", "off"],
        doc("`required` refuses to start where the kernel cannot enforce all of it; `off` is for debugging only."),
    ] = "best_effort"


class WatchSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """How the DAG folder is watched."""

    mode: Annotated[
        Literal["auto", "events", "poll"],
        doc("`auto` uses file events and finds out by itself where they do not arrive; then it polls."),
    ] = "auto"
    step: Annotated[PositiveSeconds, doc("How long a burst of file events must pause to be taken as one, seconds.")] = (
        0.01
    )
    debounce: Annotated[PositiveSeconds, doc("Longest time that a burst of file events is gathered, seconds.")] = 0.05
    poll_interval: Annotated[PositiveSeconds, doc("Time between two looks where polling is needed, seconds.")] = 1.0
    reconcile_interval: Annotated[
        PositiveSeconds,
        doc("Time between two full scans of the folder, seconds (Airflow: dag_dir_list_interval)."),
    ] = 300.0
    min_file_process_interval: Annotated[
        Seconds,
        doc(
            "Parse a file that has not changed again after this time, seconds; 0: never, only changes are parsed"
            " (Airflow: min_file_process_interval)."
        ),
    ] = 0.0
    sort_mode: Annotated[
        Literal["modified_time", "random_seeded_by_host", "alphabetical"],
        doc("Order in which files found by a scan are parsed (Airflow: file_parsing_sort_mode)."),
    ] = "modified_time"
    safe_mode: Annotated[
        bool,
        doc(
            "Parse a new file only if its text mentions a dag and asynsched or airflow; one that has had DAGs is parsed"
            " in any case (Airflow: dag_discovery_safe_mode)."
        ),
    ] = True
    print_stats_interval: Annotated[
        Seconds,
        doc("Time between two log lines of statistics per file, seconds; 0: none (Airflow: print_stats_interval)."),
    ] = 0.0


class LeaseSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """How long a scheduler owns its runs without saying so again."""

    duration: Annotated[PositiveSeconds, doc("How long a lease is valid after its renewal, seconds.")] = 15.0
    renew_interval: Annotated[PositiveSeconds, doc("Time between two renewals, seconds.")] = 5.0
    grace: Annotated[Seconds, doc("How much longer tries go on when their scheduler is gone, seconds.")] = 10.0
    kill_time: Annotated[Seconds, doc("How long a try has to end itself when it is told to, seconds.")] = 5.0
    outage: Annotated[
        Seconds,
        doc("PostgreSQL: how much longer tries go on without scheduler or database, of the only scheduler, seconds."),
    ] = 120.0
    shared_outage: Annotated[
        Seconds | None,
        doc(
            "PostgreSQL: the same where there are several schedulers, seconds; by so much later the others take over"
            " what one had that died. Where it is not set, it is four times lease.duration; one alone has no less."
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.renew_interval >= self.duration:
            raise self.invalid("renew_interval", f"must be below lease.duration, which is {self.duration:g}")

    @property
    def longest_shared_outage(self) -> float:
        """What `shared_outage` comes to, seconds."""
        return 4 * self.duration if self.shared_outage is None else self.shared_outage


class CallbacksSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """How the callbacks of tasks, runs and deadlines are run."""

    timeout: Annotated[PositiveSeconds, doc("Longest that the callbacks of one event may take, seconds.")] = 300.0
    processes: Annotated[Count, doc("Events whose callbacks may run at once, beside the parallelism of tasks.")] = 4
    attempts: Annotated[
        Count,
        doc("How often callbacks are begun, where the machine or a crash ends them before they have ended."),
    ] = 3


class LogSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """What is logged, and how."""

    format: Annotated[Literal["console", "json"], doc("For people, or one JSON object a line.")] = "console"
    level: Annotated[Literal["debug", "info", "warning", "error"], doc("Least level that is logged.")] = "info"
    file: Annotated[
        str | None, doc("File that a scheduler's own log is written to, instead of standard error; it is rotated.")
    ] = None
    file_bytes: Annotated[Count, doc("Size at which a new log file is begun, bytes.")] = 10_000_000
    file_count: Annotated[Count, doc("Old log files that are kept.")] = 5
    task_bytes: Annotated[Count, doc("Largest log of one try, bytes; what follows is dropped, and said.")] = (
        64 * 1024**2
    )


class Settings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """All settings of a scheduler. Relative paths are relative to the working folder."""

    dags_folder: Annotated[str, doc("Folder of DAG files (Airflow: dags_folder).")] = "dags"
    home: Annotated[
        str, doc("Folder of the scheduler's own state, logs and sockets; never watched (AIRFLOW_HOME).")
    ] = ".asynsched"
    database: Annotated[
        str | None,
        doc("Database URL: sqlite:///PATH or postgresql://USER@HOST/NAME; by default asynsched.db in the home."),
    ] = None
    fernet_key: Annotated[
        str | None,
        doc(
            "Keys that secrets in the database are encrypted with, commas between them, the one for new secrets first"
            " (Airflow: fernet_key). Better in the environment or in a file."
        ),
    ] = None
    fernet_key_file: Annotated[
        str | None,
        doc("File with such keys, one a line; by default fernet.key in the home, which is made for the first secret."),
    ] = None
    executor: Annotated[
        str,
        doc(
            "`local`, `sequential`, or `package.module:Class` of an executor of your own; several with commas between"
            " them, the default first, `name=package.module:Class` with the name that tasks give as `executor`."
        ),
    ] = "local"
    parallelism: Annotated[Count, doc("Tasks that may run at once (Airflow: parallelism).")] = 32
    default_timezone: Annotated[str, doc("Zone of naive dates in DAG files (Airflow: default_timezone).")] = "UTC"
    dags_are_paused_at_creation: Annotated[
        bool,
        doc("Whether a new DAG starts paused, unless it says (Airflow: dags_are_paused_at_creation, there True)."),
    ] = False
    max_active_tasks_per_dag: Annotated[
        Count,
        doc("Tasks of one run that may run at once, unless its DAG says (Airflow: max_active_tasks_per_dag)."),
    ] = 16
    max_active_runs_per_dag: Annotated[
        Count, doc("Runs of a DAG that may be active, unless it says (Airflow: max_active_runs_per_dag).")
    ] = 16
    max_dagruns_to_create_per_loop: Annotated[
        Count, doc("DAGs whose due run is created in one step (Airflow: max_dagruns_to_create_per_loop).")
    ] = 100
    max_dagruns_per_loop_to_schedule: Annotated[
        Count, doc("Queued runs that are started in one step (Airflow: max_dagruns_per_loop_to_schedule).")
    ] = 100
    max_consecutive_failed_dag_runs_per_dag: Annotated[
        int,
        Meta(ge=0),
        doc(
            "Failed runs in a row after which a DAG is paused, unless it says; 0: never"
            " (Airflow: max_consecutive_failed_dag_runs_per_dag)."
        ),
    ] = 0
    default_pool_slots: Annotated[Count, doc("Slots of a new database's default_pool.")] = 128
    keep_slots_after: Annotated[
        Seconds,
        doc(
            "How long a task with several `pool_slots` waits before slots that become free are kept for it, seconds."
            " 0: never; then tasks with fewer slots may go before it for ever."
        ),
    ] = 0.0
    max_map_length: Annotated[
        Count,
        doc("Longest list or dict that a task may return for other tasks to be mapped over (Airflow: max_map_length)."),
    ] = 1024
    max_machine_kills: Annotated[
        int,
        Meta(ge=0),
        doc(
            "How often a try that the machine killed (out of memory, a signal, a lost keeper) is made up for by another"
            " one, beside the task's own retries."
        ),
    ] = 3
    trigger_block_timeout: Annotated[
        PositiveSeconds,
        doc("Longest that a trigger of a deferred task may block the others, seconds; then it fails."),
    ] = 10.0
    shutdown_grace: Annotated[Seconds, doc("How long a stop waits for running tasks, seconds.")] = 10.0
    sweep_interval: Annotated[PositiveSeconds, doc("Time between two safety sweeps of the database, seconds.")] = 30.0
    sqlite_synchronous: Annotated[
        Literal["full", "normal"],
        doc(
            "`normal` may lose the last moment on a power cut, never on a crash: runs that were just triggered are gone"
            " then, and tries may begin twice."
        ),
    ] = "full"
    parse: ParseSettings = ParseSettings()
    watch: WatchSettings = WatchSettings()
    lease: LeaseSettings = LeaseSettings()
    callbacks: CallbacksSettings = CallbacksSettings()
    log: LogSettings = LogSettings()
    retention: RetentionSettings = RetentionSettings()
    monitor: MonitorSettings = MonitorSettings()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dags_folder", "home", "executor"):
            if not getattr(self, name):
                raise self.invalid(name, "must not be empty")
        if self.default_timezone != "UTC" and not _is_zone(self.default_timezone):
            raise self.invalid("default_timezone", f"there is no time zone {self.default_timezone!r}")

    def __repr__(self) -> str:
        # The others may hold passwords and keys.
        return f"Settings(dags_folder={self.dags_folder!r}, home={self.home!r}, …)"

    @property
    def home_path(self) -> Path:
        """The home, absolute."""
        return Path(self.home).absolute()

    @property
    def keep_slots(self) -> timedelta | None:
        """How long a task waits before slots are kept for it; None: they never are."""
        return timedelta(seconds=self.keep_slots_after) if self.keep_slots_after else None

    @property
    def dags_path(self) -> Path:
        """The DAG folder, absolute."""
        return Path(self.dags_folder).absolute()

    @property
    def database_url(self) -> str:
        """The database, the default filled in."""
        return self.database or f"sqlite:///{self.home_path / 'asynsched.db'}"


def settings_from(values: dict[str, Any]) -> Settings:
    """Return settings made of nested values; texts are converted to the type of their setting.

    Raises:
        SettingsError: A value is wrong, or a name unknown. The message names the option.
    """
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as exc:
        raise SettingsError(str(exc)) from exc
