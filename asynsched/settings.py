"""Every setting: its type, default, bounds and meaning, in one frozen object.

The command line builds it from flags, environment and file (`asynsched/cli/configuration.py`); an embedding program
makes `Settings(...)` itself. Lengths of time are seconds, because people write them in files and flags.
"""

import os
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from difflib import get_close_matches
from functools import cache
from math import isnan
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, StructMeta

from asynsched.airflow.installation import CONFIG, folders_of
from asynsched.errors import SettingsError

CONFIG_FILE = "asynsched.toml"
"""The settings' file of the commands, in the working folder unless ASYNSCHED_CONFIG names another one."""
LONGEST_SECONDS = 1e9
"""About 30 years: longer times leave the range of dates."""
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)]
LEAST_KEEP_SECONDS = 300
PositiveSeconds = Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)]
Count = Annotated[int, Meta(ge=1, le=10**15)]
LocalPath = Annotated[str, Meta(extra={"is_path": True})]
"""A path on this machine: `~` and `~user` at its start stand for a home folder."""

SECRET_OPTIONS = frozenset({"fernet_key", "secrets.backend_kwargs", "celery.options", "log.store_options"})
"""Options whose values nothing shows."""
URL_OPTIONS = frozenset({"database", "celery.broker_url", "dask.address", "log.store"})
"""Options whose values may have a password, without which they are shown."""


def doc(text: str) -> Meta:
    """Return the description of a setting, for its annotation."""
    return Meta(description=text)


@cache
def field_types(struct: type[Struct]) -> dict[str, Any]:
    """Return the fields of a group of settings with their types, bounds and descriptions."""
    return get_type_hints(struct, include_extras=True)


def option_names(struct: type[Struct], prefix: str = "") -> Iterator[str]:
    """Yield the name of every option of a group of settings and its subgroups, e.g. `parse.timeout`."""
    for name, type_ in field_types(struct).items():
        if isinstance(type_, type) and issubclass(type_, Struct):
            yield from option_names(type_, f"{prefix}{name}.")
        else:
            yield prefix + name


def nearest_options(name: str, options: Iterable[str]) -> list[str]:
    """Return the options that a misspelt name may stand for; `PARSE_TIMEOUT` and `parse.timeout` are the same."""
    words = {option: option.replace(".", "_") for option in options}
    wanted = name.lower().replace("__", "_").replace(".", "_")
    near = get_close_matches(wanted, words.values(), n=2, cutoff=0.8)
    # A name without its group, or without its end.
    near = near or [text for text in words.values() if text.endswith(f"_{wanted}") or text.startswith(wanted)][:3]
    near = near or get_close_matches(wanted, words.values(), n=1)
    return [option for text in near for option, its in words.items() if its == text]


def as_argument(option: str) -> str:
    """Return an option as a program writes it, e.g. `parse=ParseSettings(timeout=…)`."""
    group, dot, name = option.rpartition(".")
    return f"{group}={group.capitalize()}Settings({name}=…)" if dot else f"{name}=…"


class InvalidSetting(SettingsError):
    """A setting has an invalid value. `name` is the option, e.g. `parse.timeout`."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem


Made = TypeVar("Made", bound=Struct)


class _SettingsType(StructMeta):
    def __call__(cls: type[Made], *args: Any, **values: Any) -> Made:  # type: ignore[misc] # noqa: N805 - of a metaclass
        """Make settings. Raises TypeError for an unknown name; the message names the nearest option."""
        for name in values:
            if name not in cls.__struct_fields__:
                near = " or ".join(map(as_argument, nearest_options(name, option_names(cls))))
                raise TypeError(f"{cls.__name__} has no setting {name!r}.{near and f' Did you mean {near}?'}")
        made: Made = StructMeta.__call__(cls, *args, **values)
        return made


@cache
def _paths_of(struct: type[Struct]) -> list[str]:
    """Return the settings of a group that are paths, or lists of them."""
    return [name for name, type_ in field_types(struct).items() if _is_path(type_)]


def _is_path(type_: Any) -> bool:
    marks = getattr(type_, "__metadata__", ())
    return any((one.extra or {}).get("is_path") for one in marks) or any(map(_is_path, get_args(type_)))


def _at_home(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_at_home, value))
    return os.path.expanduser(value) if value else value  # noqa: PTH111 - pathlib would drop a slash at its end


class CheckedSettings(Struct, metaclass=_SettingsType, frozen=True, forbid_unknown_fields=True):
    """Settings that are checked whenever they are made: msgspec by itself checks only decoded values."""

    def __post_init__(self) -> None:
        """Raise InvalidSetting for a value of the wrong type or out of bounds."""
        for name, type_ in field_types(type(self)).items():
            value = getattr(self, name)
            if isinstance(type_, type) and issubclass(type_, CheckedSettings) and not isinstance(value, type_):
                raise self.invalid(name, f"must be {type_.__name__}(…), not {value!r:.100}")
            try:
                msgspec.convert(value, type_)
            except msgspec.ValidationError as exc:
                raise self.invalid(name, str(exc)) from exc
            if isinstance(value, float) and isnan(value):
                raise self.invalid(name, "must be a number, not nan")
        for name in _paths_of(type(self)):
            # A frozen struct may be changed while it is made.
            msgspec.structs.force_setattr(self, name, _at_home(getattr(self, name)))

    def invalid(self, name: str, problem: str) -> InvalidSetting:
        """Return the error of one of these settings; the option's name includes the group."""
        group = type(self).__name__.removesuffix("Settings").lower()
        return InvalidSetting(f"{group}.{name}" if group else name, problem)

    def object_of(self, name: str) -> dict[str, Any]:
        """Return the JSON object in one of these settings. Raises InvalidSetting, which does not show the value."""
        try:
            return msgspec.json.decode(getattr(self, name) or "{}", type=dict[str, Any])
        except msgspec.DecodeError:
            raise self.invalid(name, "must be a JSON object") from None


Days = Annotated[float, Meta(ge=0, le=100_000)]
Retries = Annotated[int, Meta(ge=0, le=10**9)]
Number = Annotated[int, Meta(ge=0, le=10**15)]


class RetentionSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """How long history is kept. 0 keeps it for ever."""

    runs_days: Annotated[
        Days, doc("Days that a run is kept after its end, with its tasks, XComs and logs; 0 keeps all.")
    ] = 0.0
    runs_per_dag: Annotated[Number, doc("Number of the newest runs of each DAG that are kept.")] = 0
    xcoms_days: Annotated[Days, doc("Days that a run's XComs are kept after its end; 0 keeps all.")] = 0.0
    xcoms_per_dag: Annotated[Number, doc("Number of the newest runs of each DAG whose XComs are kept.")] = 0
    logs_days: Annotated[Days, doc("Days that a run's logs are kept after its end; 0 keeps all.")] = 0.0
    logs_per_dag: Annotated[Number, doc("Number of the newest runs of each DAG whose logs are kept.")] = 0
    task_state_days: Annotated[
        Days,
        doc("Days that a value of a task's state store is kept after its last change, if the task set no retention."),
    ] = 30.0
    asset_events_days: Annotated[Days, doc("Days that an asset event is kept once no DAG waits for it.")] = 0.0
    audit_days: Annotated[Days, doc("Days that the audit is kept: the record of users' actions.")] = 0.0
    versions_days: Annotated[
        Days, doc("Days that a superseded version of a DAG, and its sources, are kept once no run needs them.")
    ] = 0.0
    changes_days: Annotated[
        Days, doc("Days that a change of a run or task is kept, for readers of events that go on at its number.")
    ] = 1.0
    changes_number: Annotated[
        Number, doc("About how many of the newest changes are kept; each takes some 200 bytes.")
    ] = 200_000
    interval: Annotated[PositiveSeconds, doc("Time between two sweeps, seconds.")] = 3600.0
    batch_rows: Annotated[Count, doc("About how many rows are deleted in one transaction.")] = 1000


class MonitorSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """How a scheduler's health and figures are published."""

    listen: Annotated[
        str | None, doc("Address that serves /health and /metrics: HOST:PORT, or unix:PATH; by default none.")
    ] = None
    metrics: Annotated[
        Literal["off", "prometheus", "opentelemetry"],
        doc("Where figures go: to a scraper of /metrics, or to a collector that OTEL_EXPORTER_OTLP_ENDPOINT names."),
    ] = "off"
    metrics_prefix: Annotated[
        str, Meta(pattern="^[a-zA-Z][a-zA-Z0-9_]*$"), doc("Prefix of the names of figures (Airflow: statsd_prefix).")
    ] = "airflow"
    longest_step: Annotated[
        PositiveSeconds,
        doc("Longest that a step of a loop may take, seconds; a scheduler with a longer step counts as stuck."),
    ] = 300.0


class WebSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """The page and the REST APIs: where they are served, and who may use them."""

    listen: Annotated[
        str | None,
        doc(
            "Address that serves the page and the REST APIs: HOST:PORT, or `off`. By default 127.0.0.1:8080, or a free"
            " port if that is taken."
        ),
    ] = None
    base_url: Annotated[
        str,
        doc(
            "URL under which browsers reach the page, if it is another one, such as that of a proxy (Airflow: [api]"
            " base_url). Its path is the prefix of all paths."
        ),
    ] = ""
    allowed_hosts: Annotated[
        tuple[str, ...],
        doc(
            "Names by which requests may address the page, besides IP addresses, localhost, the machine's name and"
            " those in web.base_url and workers.addresses; `*` allows all."
        ),
    ] = ()
    tls_certificate: Annotated[
        LocalPath | None, doc("File with the certificate chain, PEM; with it, the page is served by HTTPS.")
    ] = None
    tls_key: Annotated[LocalPath | None, doc("File with the certificate's private key, PEM.")] = None
    max_connections: Annotated[
        Count,
        doc(
            "Connections that the server keeps at once; further ones are refused. Half of them may be streams, such as"
            " that of the page's events."
        ),
    ] = 500
    trusted_proxies: Annotated[
        tuple[str, ...],
        doc(
            "IP addresses and networks of proxies whose headers X-Forwarded-For, X-Forwarded-Proto and web.user_header"
            " are believed."
        ),
    ] = ()
    user_header: Annotated[
        str | None,
        doc("Header in which a trusted proxy names the user whom it has signed in, such as X-Forwarded-User."),
    ] = None
    default_role: Annotated[
        str,
        doc(
            "Role of users whom the proxy or the OpenID Connect provider names, and who have no role of their own;"
            " empty: they are refused."
        ),
    ] = ""
    expose_config: Annotated[
        bool,
        doc("Whether administrators may read the settings by /config, without secrets (Airflow: [api] expose_config)."),
    ] = False
    session_hours: Annotated[PositiveSeconds, doc("How long somebody stays signed in, hours.")] = 168.0
    access_token_hours: Annotated[
        PositiveSeconds, doc("How long a token of /auth/token lasts, hours (Airflow: [api_auth] jwt_expiration_time).")
    ] = 24.0
    oidc_issuer: Annotated[
        str | None, doc("URL of the OpenID Connect provider at which users sign in; needs asynsched[oidc].")
    ] = None
    oidc_client_id: Annotated[str, doc("Name by which the provider knows asynsched.")] = ""
    oidc_client_secret_file: Annotated[
        LocalPath | None,
        doc("File with the secret that the provider has given to asynsched; none for a public client."),
    ] = None
    oidc_scopes: Annotated[str, doc("Scopes that are asked of the provider.")] = "openid profile email"
    oidc_name_claim: Annotated[str, doc("Claim of the provider that is the user's name here.")] = "preferred_username"
    oidc_roles_claim: Annotated[
        str, doc("Claim of the provider that lists the user's roles here; a dot leads into an object.")
    ] = "roles"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise self.invalid("tls_certificate", "web.tls_certificate and web.tls_key must be set together")
        if self.base_url and not re.fullmatch(r"https?://[^/?#\s@]+(/[^?#\s]*)?", self.base_url):
            raise self.invalid("base_url", "must be a URL such as https://example.org/asynsched")
        if self.user_header is not None and not self.trusted_proxies:
            raise self.invalid("user_header", "needs web.trusted_proxies: anybody can send a header")
        if self.oidc_issuer is not None and not self.oidc_client_id:
            raise self.invalid("oidc_issuer", "needs web.oidc_client_id")
        for one in self.trusted_proxies:
            _check_network(self, one)

    @property
    def is_served(self) -> bool:
        """Whether `asynsched up` serves the page."""
        return self.listen != "off"

    @property
    def max_streams(self) -> int:
        """How many of the connections may be answers without an end of their own: half of them."""
        return max(1, self.max_connections // 2)

    @property
    def root_path(self) -> str:
        """The prefix of all paths, such as `/asynsched`; empty: none."""
        return urlsplit(self.base_url).path.rstrip("/")


def _check_network(settings: WebSettings, text: str) -> None:
    from ipaddress import ip_network  # few have a proxy

    try:
        ip_network(text)
    except ValueError as exc:
        raise settings.invalid("trusted_proxies", f"{text!r} is no IP address or network: {exc}") from exc


def _is_zone(name: str) -> bool:
    from zoneinfo import ZoneInfo  # most programs leave UTC, and every command reads the settings

    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        return False
    return True


class ParseSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """How DAG files are parsed, and the limits of a parse, which the kernel enforces where possible."""

    processes: Annotated[Count, doc("Number of parses that may run at once (Airflow: parsing_processes).")] = 2
    timeout: Annotated[
        PositiveSeconds, doc("Longest that a parse may take, seconds (Airflow: dag_file_processor_timeout).")
    ] = 50.0
    import_timeout: Annotated[
        PositiveSeconds, doc("Longest that the import of a file may take, seconds (Airflow: dagbag_import_timeout).")
    ] = 30.0
    cpu_seconds: Annotated[Count, doc("CPU time that a parse may use, seconds.")] = 60
    memory_bytes: Annotated[Count, doc("Data memory that a parse may use, bytes.")] = 1024**3
    file_bytes: Annotated[Count, doc("Largest file that a parse may write in its scratch folder, bytes.")] = (
        64 * 1024**2
    )
    result_bytes: Annotated[Count, doc("Largest result of a parse, bytes of JSON.")] = 32 * 1024**2
    output_bytes: Annotated[
        Count, doc("How much of a file's standard output and error is kept, bytes; the rest is dropped.")
    ] = 64 * 1024
    open_files: Annotated[Count, doc("Number of files that a parse may have open.")] = 256
    max_processes: Annotated[Count, doc("Number of processes and threads that a parse may start.")] = 64
    readable: Annotated[
        tuple[LocalPath, ...], doc("Files and folders that a parse may read, besides the DAG folder and Python's own.")
    ] = ()
    hidden: Annotated[
        tuple[LocalPath, ...],
        doc(
            "Files and folders that no parse may read, though they lie in a folder that it may read; files that these"
            " settings name as secret are always hidden."
        ),
    ] = ()
    writable: Annotated[
        tuple[LocalPath, ...],
        doc(
            "Files and folders that a parse may read and write, besides its scratch folder: /dev/shm lets it make"
            " multiprocessing's locks."
        ),
    ] = ()
    environment: Annotated[
        tuple[str, ...],
        doc(
            "Environment variables that a parse gets, besides LANG, LC_*, TZ, PATH, and those with which Python finds"
            " packages; `PREFIX_*` names all with that prefix."
        ),
    ] = ("AIRFLOW_VAR_*",)
    variables: Annotated[
        tuple[str, ...],
        doc("Stored variables that a file may read while it is parsed, as patterns such as `team_*`."),
    ] = ("*",)
    connections: Annotated[
        tuple[str, ...],
        doc("Stored connections that a file may read while it is parsed, as such patterns; by default none."),
    ] = ()
    network: Annotated[
        bool,
        doc(
            "Whether a parse may connect to others by TCP and UDP, services of this machine included; not by default."
            " The variables of a proxy have to be in `environment`."
        ),
    ] = False
    confinement: Annotated[
        Literal["best_effort", "required", "off"],
        doc("`required` refuses to start where the kernel cannot enforce all of it; `off` is only for debugging."),
    ] = "best_effort"


class WatchSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """How the DAG folder is watched."""

    mode: Annotated[
        Literal["auto", "events", "poll"],
        doc("`auto` uses file events, detects where they do not arrive, and polls there."),
    ] = "auto"
    step: Annotated[PositiveSeconds, doc("Pause that ends a burst of file events, seconds.")] = 0.01
    debounce: Annotated[PositiveSeconds, doc("Longest time that a burst of file events is collected, seconds.")] = 0.05
    poll_interval: Annotated[PositiveSeconds, doc("Time between two scans where polling is needed, seconds.")] = 1.0
    reconcile_interval: Annotated[
        PositiveSeconds, doc("Time between two full scans of the folder, seconds (Airflow: dag_dir_list_interval).")
    ] = 300.0
    min_file_process_interval: Annotated[
        Seconds,
        doc(
            "Time after which an unchanged file is parsed again, seconds; 0: never (Airflow:"
            " min_file_process_interval)."
        ),
    ] = 0.0
    ignore_file_syntax: Annotated[
        Literal["glob", "regexp"],
        doc("Syntax of `.airflowignore` files (Airflow: dag_ignore_file_syntax)."),
    ] = "glob"
    sort_mode: Annotated[
        Literal["modified_time", "random_seeded_by_host", "alphabetical"],
        doc("Order in which the files of a scan are parsed (Airflow: file_parsing_sort_mode)."),
    ] = "modified_time"
    safe_mode: Annotated[
        bool,
        doc(
            "Parse a new file only if its text contains `dag` or `asset`, and `asynsched` or `airflow`; a file that has"
            " had DAGs is always parsed (Airflow: dag_discovery_safe_mode)."
        ),
    ] = True
    print_stats_interval: Annotated[
        Seconds, doc("Time between two logs of statistics per file, seconds; 0: none (Airflow: print_stats_interval).")
    ] = 0.0


class LeaseSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """How long a scheduler owns its runs after it was last heard of. See docs/discussion/lease.md."""

    duration: Annotated[PositiveSeconds, doc("How long a lease lasts after its renewal, seconds.")] = 15.0
    renew_interval: Annotated[PositiveSeconds, doc("Time between two renewals, seconds.")] = 5.0
    grace: Annotated[Seconds, doc("How long tries go on after the lease of their scheduler has expired, seconds.")] = (
        10.0
    )
    kill_time: Annotated[Seconds, doc("Time between SIGTERM and SIGKILL when a try is ended, seconds.")] = 5.0
    outage: Annotated[
        Seconds,
        doc("PostgreSQL: longest outage of scheduler or database that tries of a lone scheduler survive, seconds."),
    ] = 120.0
    shared_outage: Annotated[
        Seconds | None,
        doc(
            "PostgreSQL: the same if there are several schedulers, seconds; others take over a dead scheduler's runs"
            " later by this time. Default: four times lease.duration. A lone scheduler has at least this."
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.renew_interval >= self.duration:
            raise self.invalid("renew_interval", f"must be below lease.duration, which is {self.duration:g}")

    @property
    def longest_shared_outage(self) -> float:
        """`shared_outage`, or its default, in seconds."""
        return 4 * self.duration if self.shared_outage is None else self.shared_outage


class CallbacksSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """How the callbacks of tasks, runs and deadlines are run."""

    timeout: Annotated[PositiveSeconds, doc("Longest that the callbacks of one event may take, seconds.")] = 300.0
    processes: Annotated[
        Count, doc("Number of events whose callbacks may run at once, besides the parallelism of tasks.")
    ] = 4
    attempts: Annotated[Count, doc("How often callbacks are started, if the machine or a crash ends them early.")] = 3
    executor: Annotated[
        str,
        doc(
            "Executor that runs the callbacks, one of those that `executor` names, such as `celery`. Empty: they run on"
            " the scheduler's machine."
        ),
    ] = ""


class LogSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """The log: its level, format and destination."""

    format: Annotated[Literal["console", "json"], doc("For people, or one JSON object a line.")] = "console"
    level: Annotated[Literal["debug", "info", "warning", "error"], doc("Lowest level that is logged.")] = "info"
    file: Annotated[
        LocalPath | None, doc("File for a scheduler's own log, instead of standard error; it is rotated.")
    ] = None
    file_bytes: Annotated[Count, doc("Size at which the log file is rotated, bytes.")] = 10_000_000
    file_count: Annotated[Count, doc("Number of old log files that are kept.")] = 5
    task_bytes: Annotated[Count, doc("Largest log of one try, bytes; the rest is dropped, and the log says so.")] = (
        64 * 1024**2
    )
    store: Annotated[
        str,
        doc(
            "Where logs of ended tries are kept, such as s3://BUCKET/FOLDER or file:///shared/logs: a URL of fsspec."
            " Empty: in the home. Needs asynsched[storage], and the package of its file system."
        ),
    ] = ""
    store_options: Annotated[
        str,
        doc(
            'Arguments of that file system, as a JSON object, such as {"endpoint_url": "https://minio.example"}. With'
            " a secret, better set in the environment."
        ),
    ] = ""
    keep_local: Annotated[
        float,
        Meta(ge=LEAST_KEEP_SECONDS, le=LONGEST_SECONDS),
        doc(
            "How long the home keeps a log after it was copied to log.store, seconds: at least 5 minutes, in which"
            " another home may be copying its part of the same log."
        ),
    ] = 86400.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.store and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^@?#\s]+", self.store):
            raise self.invalid(
                "store",
                "must be a URL such as s3://BUCKET/FOLDER; secrets are in log.store_options",
            )
        self.object_of("store_options")

    def __repr__(self) -> str:
        # The options of the store may hold a password.
        return f"LogSettings(store={self.store!r}, …)"


class WorkersSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """Tries that an executor runs on other machines, through workers."""

    addresses: Annotated[
        tuple[str, ...],
        doc("URLs at which workers reach the schedulers, such as https://scheduler.example:8080; any of them answers."),
    ] = ()
    slots: Annotated[
        Count, doc("Number of tries that each executor of other machines, such as celery, may have at once.")
    ] = 1000
    lease: Annotated[
        PositiveSeconds,
        doc(
            "How long a try on another machine may run while no scheduler answers its worker, seconds; lease.grace and"
            " lease.kill_time come on top."
        ),
    ] = 120.0
    renew_interval: Annotated[
        PositiveSeconds,
        doc("Time between two renewals of a worker, seconds; so long it may take until it ends an unwanted try."),
    ] = 5.0
    cache_bytes: Annotated[
        Count,
        doc(
            "How much code, and how much in data files, a worker keeps that none of its tries uses, bytes; the least"
            " recently used goes."
        ),
    ] = 256 * 1024**2
    files: Annotated[
        tuple[str, ...],
        doc(
            "Data files of the DAG folder that tries get on other machines: patterns of .gitignore, such as *.sql and"
            " config/. Python modules that a DAG file imports need no pattern."
        ),
    ] = ()
    files_bytes: Annotated[Count, doc("Largest size of all these files together, bytes.")] = 256 * 1024**2
    claim_timeout: Annotated[
        PositiveSeconds,
        doc("Longest time from the engine's start of a try until its worker claims it, seconds; then it is given up."),
    ] = 300.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.renew_interval >= self.lease:
            raise self.invalid("renew_interval", f"must be below workers.lease, which is {self.lease:g}")
        for one in self.addresses:
            if not re.fullmatch(r"https?://[^/?#\s@]+(/[^?#\s]*)?", one):
                raise self.invalid("addresses", f"{one!r} is not a URL such as https://scheduler.example:8080")
        if self.files:
            from pathspec import GitIgnoreSpec  # few processes need it

            try:
                GitIgnoreSpec.from_lines(self.files)
            except ValueError as exc:
                raise self.invalid("files", f"{exc}: use patterns such as *.sql and config/") from None


class CelerySettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """Celery as the engine of tries on other machines, for schedulers and workers alike."""

    broker_url: Annotated[
        str,
        doc(
            "URL of the broker, such as redis://HOST/0 or amqp://USER@HOST/VHOST. With a password, better set in the"
            " environment."
        ),
    ] = ""
    max_priority: Annotated[
        int,
        Meta(ge=0, le=9),
        doc("Highest priority in a queue; 0: queues have no priorities. Schedulers and workers need the same."),
    ] = 9
    visibility_timeout: Annotated[
        PositiveSeconds,
        doc(
            "Redis: time after which a message is delivered again that no worker has acknowledged, seconds. A try may"
            " last longer: it starts once."
        ),
    ] = 3600.0
    options: Annotated[
        str,
        doc(
            'Settings of Celery itself, as a JSON object, such as {"worker_prefetch_multiplier": 4}; they go before'
            " asynsched's."
        ),
    ] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.object_of("options")

    def __repr__(self) -> str:
        # The URL and the options may hold a password.
        return f"CelerySettings(max_priority={self.max_priority}, …)"


class DaskSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """Dask as the engine of tries on other machines. Its certificates are those of Dask's own configuration."""

    address: Annotated[str, doc("Address of the Dask scheduler, such as tcp://HOST:8786 or tls://HOST:8786.")] = ""
    cluster: Annotated[
        str,
        doc(
            "Instead of an address: `package.module:function` that returns a Dask cluster, or its address. A cluster"
            " ends with the scheduler that has made it."
        ),
    ] = ""
    worker_homes: Annotated[
        str,
        doc("Folder on each worker's machine for the homes of its workers; by default below that for temporary files."),
    ] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cluster and not all(self.cluster.partition(":")):
            raise self.invalid("cluster", "must be package.module:function")


class SlurmSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """Slurm as the engine of tries on other machines."""

    partition: Annotated[
        str, doc("Partition of tasks that name none as their queue; by default Slurm's own default.")
    ] = ""
    options: Annotated[
        tuple[str, ...],
        doc(
            "Options of sbatch for all jobs, such as `--account=data`, `--mem=2G` or `--output=/shared/logs/%x-%A_%a`."
        ),
    ] = ()
    python: Annotated[
        str,
        doc("Python of workers on the nodes, with asynsched[worker]; by default the scheduler's, as on a shared disk."),
    ] = ""
    setup: Annotated[
        str, doc("Lines of shell before the worker starts, such as `module load gcc` or `export SCRATCH=/scratch`.")
    ] = ""
    worker_homes: Annotated[
        str,
        doc(
            "Folder on the nodes for the homes of workers, each removed with its job; by default $TMPDIR, or /tmp. It"
            " must be on the node's own disk."
        ),
    ] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in self.options:
            if not option.startswith("--"):
                raise self.invalid("options", f"must be long options, such as --mem=2G, not {option!r}")
        if self.worker_homes and not self.worker_homes.startswith("/"):
            raise self.invalid("worker_homes", "must be an absolute path")


class KubernetesSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """Kubernetes as the engine of tries on other machines."""

    namespace: Annotated[str, doc("Namespace of the pods (Airflow: [kubernetes_executor] namespace).")] = "default"
    image: Annotated[str, doc("Image of the pods, with asynsched[worker]; the template may name another.")] = ""
    pod_template: Annotated[
        LocalPath,
        doc(
            "File with the manifest from which pods are made; its container `base` runs the try (Airflow:"
            " [kubernetes_executor] pod_template_file)."
        ),
    ] = ""
    kubeconfig: Annotated[
        LocalPath, doc("File that says how to reach the API; by default that of the scheduler's own pod.")
    ] = ""
    context: Annotated[str, doc("Context of the kubeconfig; by default its current one.")] = ""
    keep_failed: Annotated[
        bool, doc("Keep pods that have failed (Airflow: [kubernetes_executor] delete_worker_pods_on_failure = False).")
    ] = False
    keep_warm: Annotated[
        Seconds,
        doc(
            "How long a pod whose try has ended waits for another one of the same DAG and kind of pod, seconds; 0: each"
            " pod runs one try."
        ),
    ] = 0.0
    warm_pods: Annotated[Count, doc("Number of pods that may wait so at one scheduler; others end.")] = 10


class SecretsSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """A store of connections and variables, which tasks ask before the environment and the database."""

    backend: Annotated[
        str,
        doc(
            "Class of the secrets backend, e.g. airflow.secrets.local_filesystem.LocalFilesystemBackend (Airflow:"
            " [secrets] backend)."
        ),
    ] = ""
    backend_kwargs: Annotated[
        str,
        doc(
            "Arguments of that class, as a JSON object. Tasks can read them, because the class runs in their processes"
            " (Airflow: [secrets] backend_kwargs)."
        ),
    ] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backend and "." not in self.backend:
            raise self.invalid("backend", "must name a class in a module, such as package.module.Class")
        self.object_of("backend_kwargs")

    def __repr__(self) -> str:
        # The arguments may hold a password.
        return f"SecretsSettings(backend={self.backend!r}, …)"

    @property
    def variables(self) -> dict[str, str]:
        """The same as variables of the environment of user code, in which Airflow's programs look for them."""
        named = {"AIRFLOW__SECRETS__BACKEND": self.backend, "AIRFLOW__SECRETS__BACKEND_KWARGS": self.backend_kwargs}
        return {name: value for name, value in named.items() if value}


AIRFLOWS_EXECUTORS = {
    "local": "LocalExecutor", "sequential": "SequentialExecutor", "celery": "CeleryExecutor", "dask": "DaskExecutor",
    "slurm": "SlurmExecutor", "kubernetes": "KubernetesExecutor",
}  # fmt: skip
"""Airflow's names of our executors."""
RUN_HERE = ("local", "sequential")
"""The executors that run tasks on the scheduler's machine, and do not read `executor_config`."""


_OF_AUTHORS = (
    "catchup_by_default", "create_cron_data_intervals", "create_delta_data_intervals", "default_owner",
    "default_task_retries", "default_task_retry_delay", "max_task_retry_delay", "default_task_execution_timeout",
    "default_task_weight_rule",
)  # fmt: skip


class Settings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """All settings of a scheduler. Relative paths start at the working folder."""

    dags_folder: Annotated[LocalPath, doc("Folder of DAG files (Airflow: dags_folder).")] = "dags"
    home: Annotated[
        LocalPath, doc("Folder of the scheduler's own state, logs and sockets; never watched (AIRFLOW_HOME).")
    ] = ".asynsched"
    database: Annotated[
        str | None,
        doc("Database URL: sqlite:///PATH or postgresql://USER@HOST/NAME; by default asynsched.db in the home."),
    ] = None
    fernet_key: Annotated[
        str | None,
        doc(
            "Keys that encrypt secrets in the database, separated by commas, the one for new secrets first"
            " (Airflow: fernet_key). Better set in the environment or in a file."
        ),
    ] = None
    fernet_key_file: Annotated[
        LocalPath | None,
        doc("File with such keys, one a line; by default fernet.key in the home, created for the first secret."),
    ] = None
    executor: Annotated[
        str,
        doc(
            "`local`, `sequential`, `celery`, `dask`, `slurm`, `kubernetes`, or `package.module:Class` of an executor"
            " of your own; or several, separated by commas, the default first, each as `name=package.module:Class` with"
            " the name that tasks give as `executor`."
        ),
    ] = "local"
    parallelism: Annotated[
        Count, doc("Number of tasks of one scheduler that may run on its own machine at once (Airflow: parallelism).")
    ] = 32
    default_timezone: Annotated[str, doc("Time zone of naive dates in DAG files (Airflow: default_timezone).")] = "UTC"
    airflow: Annotated[
        Literal["ours", "installed", "off"],
        doc(
            "What `import airflow` gives to DAG files: asynsched's equivalents and the installed providers (`ours`),"
            " the Airflow that is installed (`installed`), or an error (`off`)."
        ),
    ] = "ours"
    airflow_cfg: Annotated[
        LocalPath | None,
        doc(
            "Airflow's configuration file; its options count where asynsched's own settings are not set. By default the"
            " file that AIRFLOW_CONFIG names, else `airflow.cfg` beside the DAG folder, else that in AIRFLOW_HOME;"
            " empty: none."
        ),
    ] = None
    like_airflow: Annotated[
        bool,
        doc(
            "Take Airflow's defaults and the variables AIRFLOW__SECTION__KEY where asynsched's own settings are not"
            " set; on if there is an airflow.cfg."
        ),
    ] = False
    plugins_folder: Annotated[
        LocalPath | None,
        doc(
            "Folder of plugins (Airflow: plugins_folder); by default `plugins` beside the airflow.cfg, or else beside"
            " the DAG folder."
        ),
    ] = None
    dags_are_paused_at_creation: Annotated[
        bool,
        doc(
            "Whether a new DAG starts paused, unless its file decides"
            " (Airflow: dags_are_paused_at_creation, there True)."
        ),
    ] = False
    max_active_tasks_per_dag: Annotated[
        Count,
        doc("Tasks of one run that may run at once, unless its DAG sets it (Airflow: max_active_tasks_per_dag)."),
    ] = 16
    max_active_runs_per_dag: Annotated[
        Count, doc("Runs of a DAG that may be active, unless it sets it (Airflow: max_active_runs_per_dag).")
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
            "Failed runs in a row after which a DAG is paused, unless its file decides; 0: never"
            " (Airflow: max_consecutive_failed_dag_runs_per_dag)."
        ),
    ] = 0
    catchup_by_default: Annotated[
        bool, doc("Whether a DAG makes its missed runs, unless its file decides (Airflow: catchup_by_default).")
    ] = False
    create_cron_data_intervals: Annotated[
        bool,
        doc(
            "Whether a cron expression as `schedule` means a CronDataIntervalTimetable (Airflow:"
            " create_cron_data_intervals)."
        ),
    ] = False
    create_delta_data_intervals: Annotated[
        bool,
        doc(
            "Whether a timedelta as `schedule` means a DeltaDataIntervalTimetable (Airflow:"
            " create_delta_data_intervals)."
        ),
    ] = False
    default_owner: Annotated[
        str, Meta(min_length=1), doc("Owner of a task, unless its file decides (Airflow: default_owner).")
    ] = "airflow"
    default_task_retries: Annotated[
        Retries, doc("Retries of a task, unless its file decides (Airflow: default_task_retries).")
    ] = 0
    default_task_retry_delay: Annotated[
        Seconds,
        doc("Time before a retry, unless the file decides, seconds (Airflow: default_task_retry_delay)."),
    ] = 300.0
    max_task_retry_delay: Annotated[
        Seconds | None,
        doc(
            "Longest time before a retry with backoff, unless the file decides, seconds (Airflow:"
            " max_task_retry_delay)."
        ),
    ] = None
    default_task_execution_timeout: Annotated[
        PositiveSeconds | None,
        doc("Longest that a try may take, unless the file decides, seconds (Airflow: default_task_execution_timeout)."),
    ] = None
    default_task_weight_rule: Annotated[
        Literal["downstream", "upstream", "absolute"],
        doc("`weight_rule` of a task, unless its file decides (Airflow: default_task_weight_rule)."),
    ] = "downstream"
    default_pool_slots: Annotated[
        Count, doc("Slots of default_pool in a new database (Airflow: default_pool_task_slot_count).")
    ] = 128
    keep_slots_after: Annotated[
        Seconds,
        doc(
            "How long a task with several `pool_slots` waits before free slots are reserved for it, seconds."
            " 0: never; then tasks with fewer slots may overtake it for ever."
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
            "How often a try that the machine killed (out of memory, a signal, a lost keeper) is repeated, besides the"
            " task's own retries."
        ),
    ] = 3
    xcom_backend: Annotated[
        str,
        doc(
            "Class that keeps XComs elsewhere than in the database, as `package.module.Class` (Airflow: xcom_backend);"
            " a subclass of BaseXCom."
        ),
    ] = ""
    state_store_backend: Annotated[
        str,
        doc(
            "Class that keeps values of task and asset state stores elsewhere than in the database, as"
            " `package.module.Class` (Airflow: [workers] state_store_backend); a subclass of BaseStoreBackend."
        ),
    ] = ""
    trigger_block_timeout: Annotated[
        PositiveSeconds,
        doc("Longest that a trigger of a deferred task may block other triggers, seconds; then it fails."),
    ] = 10.0
    shutdown_grace: Annotated[Seconds, doc("How long a stop waits for running tasks, seconds.")] = 10.0
    sweep_interval: Annotated[PositiveSeconds, doc("Time between two safety sweeps of the database, seconds.")] = 30.0
    sqlite_synchronous: Annotated[
        Literal["full", "normal"],
        doc(
            "`normal` may lose the last moment in a power cut, never in a crash: runs that were just triggered are then"
            " gone, and tries may begin twice."
        ),
    ] = "full"
    parse: ParseSettings = ParseSettings()
    watch: WatchSettings = WatchSettings()
    lease: LeaseSettings = LeaseSettings()
    callbacks: CallbacksSettings = CallbacksSettings()
    log: LogSettings = LogSettings()
    secrets: SecretsSettings = SecretsSettings()
    retention: RetentionSettings = RetentionSettings()
    monitor: MonitorSettings = MonitorSettings()
    web: WebSettings = WebSettings()
    workers: WorkersSettings = WorkersSettings()
    celery: CelerySettings = CelerySettings()
    dask: DaskSettings = DaskSettings()
    slurm: SlurmSettings = SlurmSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dags_folder", "home", "executor"):
            if not getattr(self, name):
                raise self.invalid(name, "must not be empty")
        if self.default_timezone != "UTC" and not _is_zone(self.default_timezone):
            raise self.invalid("default_timezone", f"there is no timezone {self.default_timezone!r}")

    def __repr__(self) -> str:
        # Others may hold passwords and keys.
        return f"Settings(dags_folder={self.dags_folder!r}, home={self.home!r}, …)"

    @property
    def home_path(self) -> Path:
        return Path(self.home).absolute()

    @property
    def keep_slots(self) -> timedelta | None:
        """How long a task waits before slots are reserved for it; None: for ever."""
        return timedelta(seconds=self.keep_slots_after) if self.keep_slots_after else None

    @property
    def dags_path(self) -> Path:
        return Path(self.dags_folder).absolute()

    @property
    def authors_defaults(self) -> dict[str, Any]:
        """The settings that a DAG file may override, where they are not asynsched's defaults; a parse applies them."""
        usual = dict(zip(self.__struct_fields__, self.__struct_defaults__, strict=True))
        return {name: value for name in _OF_AUTHORS if (value := getattr(self, name)) != usual[name]}

    @property
    def airflow_folder(self) -> Path:
        """The folder in the place of AIRFLOW_HOME: the airflow.cfg's, or else the one that holds the DAG folder."""
        if not self.airflow_cfg:
            return self.dags_path.parent
        folder = Path(self.airflow_cfg).absolute().parent
        # Airflow's containers have the file in a folder of its own.
        return folder.parent if folder.name == CONFIG else folder

    @property
    def airflow_cfg_path(self) -> str | None:
        """The airflow.cfg, absolute; None without one."""
        return str(Path(self.airflow_cfg).absolute()) if self.airflow_cfg else None

    @property
    def plugins_path(self) -> Path:
        return Path(self.plugins_folder).absolute() if self.plugins_folder else self.airflow_folder / "plugins"

    @property
    def installation_folders(self) -> list[str]:
        """The existing folders with code of the installation's own: plugins, policies, helper modules."""
        return folders_of(str(self.plugins_path), str(self.airflow_folder)) if self.airflow == "ours" else []

    @property
    def airflow_options(self) -> dict[str, str]:
        """The options of Airflow's configuration that these settings answer, by `section.key`, for `conf`."""
        values = {
            "core.dags_folder": self.dags_path,
            "asynsched.airflow_folder": self.airflow_folder,
            "core.plugins_folder": self.plugins_path,
            "core.default_timezone": self.default_timezone,
            "core.executor": AIRFLOWS_EXECUTORS.get(self.executor, self.executor),
            "core.parallelism": self.parallelism,
            "core.max_active_tasks_per_dag": self.max_active_tasks_per_dag,
            "core.max_active_runs_per_dag": self.max_active_runs_per_dag,
            "core.max_consecutive_failed_dag_runs_per_dag": self.max_consecutive_failed_dag_runs_per_dag,
            "core.dags_are_paused_at_creation": self.dags_are_paused_at_creation,
            "core.dagbag_import_timeout": self.parse.import_timeout,
            "core.default_pool_task_slot_count": self.default_pool_slots,
            "core.max_map_length": self.max_map_length,
            "core.dag_discovery_safe_mode": self.watch.safe_mode,
            "core.dag_ignore_file_syntax": self.watch.ignore_file_syntax,
            "core.default_task_retries": self.default_task_retries,
            "core.default_task_retry_delay": self.default_task_retry_delay,
            "core.default_task_execution_timeout": self.default_task_execution_timeout or "",
            "core.default_task_weight_rule": self.default_task_weight_rule,
            "operators.default_owner": self.default_owner,
            "scheduler.catchup_by_default": self.catchup_by_default,
            "scheduler.create_cron_data_intervals": self.create_cron_data_intervals,
            "scheduler.create_delta_data_intervals": self.create_delta_data_intervals,
            "dag_processor.parsing_processes": self.parse.processes,
            "dag_processor.dag_file_processor_timeout": self.parse.timeout,
            "dag_processor.refresh_interval": self.watch.reconcile_interval,
            "dag_processor.min_file_process_interval": self.watch.min_file_process_interval,
            "dag_processor.file_parsing_sort_mode": self.watch.sort_mode,
            "scheduler.max_dagruns_to_create_per_loop": self.max_dagruns_to_create_per_loop,
            "scheduler.max_dagruns_per_loop_to_schedule": self.max_dagruns_per_loop_to_schedule,
            "metrics.statsd_prefix": self.monitor.metrics_prefix,
        }
        if self.web.base_url:
            values["api.base_url"] = self.web.base_url
        if self.xcom_backend:
            values["core.xcom_backend"] = self.xcom_backend
        if self.state_store_backend:
            values["workers.state_store_backend"] = self.state_store_backend
        if self.max_task_retry_delay is not None:
            values["core.max_task_retry_delay"] = self.max_task_retry_delay
        return {option: f"{value:g}" if isinstance(value, float) else str(value) for option, value in values.items()}

    @property
    def database_url(self) -> str:
        """The database's URL, also where it is the default."""
        return self.database or f"sqlite:///{self.home_path / 'asynsched.db'}"


def settings_from(values: dict[str, Any]) -> Settings:
    """Return settings of nested values; texts are converted to the type of their setting.

    Raises SettingsError if a value is invalid, or a name unknown. The message names the option.
    """
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as exc:
        raise SettingsError(str(exc)) from exc
