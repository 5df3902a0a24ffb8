"""The serialized form of a DAG file, which the sandbox writes and the scheduler reads.

It is JSON and is decoded strictly: a missing field, a wrong type or a value out of bounds is an error of that file, and
affects no other. Lengths of time are in seconds; instants are aware, in UTC.
"""

import ast
import hashlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

import msgspec
from msgspec import Meta, Struct

from asynsched.serialization.access_control import DagPermission
from asynsched.serialization.asked_names import AskedName
from asynsched.states import DagRunType
from asynsched.timetables.asset_condition import AssetCondition, AssetName
from asynsched.timetables.base import DataInterval
from asynsched.timetables.decoding import MAX_PLANNED, PlannedInterval, PlannedRun, RunName, TimetablePlan
from asynsched.timetables.own_partitions import AssetKeys

T = TypeVar("T")
SCHEMA_VERSION = 2
"""Raised when files must be parsed again after an upgrade, because the form says more or something else.

Reports of parses name it, and a report of another version is refused. Stored DAGs do not: an older scheduler on the
same database reads them without the fields that it does not know.
"""

MAX_ID_LENGTH = 250
"""The longest dag_id, task_id or run_id (Airflow's limit)."""

RUNS_AHEAD = 50
"""The number of runs that a user's timetable is asked for in advance."""

Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_LENGTH)]
TriggerRuleName = Literal[
    "all_success", "all_failed", "all_done", "all_done_min_one_success", "all_done_setup_success", "all_skipped",
    "one_success", "one_failed", "one_done", "none_failed", "none_failed_min_one_success", "none_skipped", "always",
]  # fmt: skip
WeightRuleName = Literal["downstream", "upstream", "absolute"]
CallbackEvent = Literal[
    "on_execute", "on_success", "on_failure", "on_retry", "on_skipped",
    "on_dag_run_running", "on_dag_run_success", "on_dag_run_failed", "on_asset_created", "on_asset_alias_created",
]  # fmt: skip
"""An event of a DAG or task that has callbacks; the last five are events of listeners."""
ImportErrorEvent = Literal["on_new_dag_import_error", "on_existing_dag_import_error"]
"""A hook of listeners that hears of files with errors."""
DeadlineKind = Literal["dagrun_logical_date", "dagrun_queued_at", "fixed_datetime", "average_runtime", "own"]
LONGEST_SECONDS = 36_525 * 86_400.0
"""The longest length of time: 100 years, so that a date plus a length is a date."""
Number = Annotated[int, Meta(ge=0, le=10**9)]
"""A count. The limit leaves room in a database column for sums."""
ShortName = Annotated[str, Meta(min_length=1, max_length=256)]


class MapLiteral(Struct, frozen=True, tag="literal"):
    """A list or dict of this length in the DAG file."""

    length: Annotated[int, Meta(ge=0)]


class MapResult(Struct, frozen=True, tag="result"):
    """The return value of a task; for a mapped task, those of its instances."""

    task_id: str


class MapZip(Struct, frozen=True, tag="zip"):
    """Values side by side. The shortest part sets the length, or the longest if there is a fill value."""

    parts: tuple["MapLength", ...]
    is_filled: bool = False


class MapConcat(Struct, frozen=True, tag="concat"):
    """Values one after the other."""

    parts: tuple["MapLength", ...]


class MapProduct(Struct, frozen=True, tag="product"):
    """Every combination of values, for `expand` with several arguments."""

    parts: tuple["MapLength", ...]


MapLength = MapLiteral | MapResult | MapZip | MapConcat | MapProduct
"""The number of instances of a mapped task or task group."""


class SerializedParam(Struct, frozen=True, omit_defaults=True):
    """A Param with its default and its JSON schema; `has_default` distinguishes None from a missing default."""

    value: Any = None
    has_default: bool = True
    schema: dict[str, Any] = {}
    description: str | None = None


class SerializedRoute(Struct, frozen=True, omit_defaults=True):
    """Where a try waits and runs, as a policy says: each field stands for the task's own."""

    pool: ShortName = "default_pool"
    pool_slots: Annotated[int, Meta(ge=1, le=10**9)] = 1
    queue: ShortName = "default"
    executor: ShortName | None = None
    executor_config: dict[str, Any] = {}
    priority_weight: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None
    """The total; None: as without a policy."""


def for_try(values: Sequence[T], n_before: int) -> T:
    """Return the value for a try that `n_before` others precede. Tries beyond the last value have that one, too."""
    return values[min(n_before, len(values) - 1)]


class SerializedTask(Struct, frozen=True, omit_defaults=True):
    """A task, with everything that the scheduler needs to know."""

    task_id: Id
    task_type: str
    """The name of its operator's class."""
    operator_name: str = ""
    """The operator's name for people, such as `@task.bash`; empty: that of the class."""
    display_name: str = ""
    """The task's name for people; empty: the task_id."""
    downstream_task_ids: tuple[str, ...] = ()
    group_id: str | None = None
    owner: str = "airflow"
    doc_md: str | None = None
    trigger_rule: TriggerRuleName = "all_success"
    retries: Number = 0
    retry_delay: Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)] = 300.0
    retry_exponential_backoff: Annotated[float, Meta(ge=0)] = 0.0
    max_retry_delay: Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)] | None = None
    execution_timeout: Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)] | None = None
    priority_weight: Annotated[int, Meta(ge=-(2**31), lt=2**31)] = 1
    weight_rule: WeightRuleName = "downstream"
    try_weights: tuple[Annotated[int, Meta(ge=-(2**31), lt=2**31)], ...] = ()
    """The weights of the tries, the first one's first, if a strategy of the user's gives them."""
    pool: ShortName = "default_pool"
    pool_slots: Annotated[int, Meta(ge=1, le=10**9)] = 1
    queue: ShortName = "default"
    executor: ShortName | None = None
    executor_config: dict[str, Any] = {}
    routes: tuple[SerializedRoute, ...] = ()
    """The routes of the tries, the first one's first, if a policy gives them routes; later tries have the last one."""
    depends_on_past: bool = False
    wait_for_downstream: bool = False
    wait_for_past_depends_before_skipping: bool = False
    ignore_first_depends_on_past: bool = False
    start_date: datetime | None = None
    end_date: datetime | None = None
    max_active_tis_per_dag: Number | None = None
    max_active_tis_per_dagrun: Number | None = None
    is_empty: bool = False
    """An EmptyOperator without callbacks, which succeeds without a process."""
    is_branch: bool = False
    is_short_circuit: bool = False
    is_sensor: bool = False
    sensor_mode: Literal["poke", "reschedule"] = "poke"
    poke_interval: float | None = None
    sensor_timeout: float | None = None
    map_length: MapLength | None = None
    """None unless the task is mapped."""
    is_setup: bool = False
    is_teardown: bool = False
    on_failure_fail_dagrun: bool = False
    do_xcom_push: bool = True
    returns_dag_result: bool = False
    """Whether the task's return value is a result of its run."""
    callbacks: tuple[CallbackEvent, ...] = ()
    template_fields: tuple[str, ...] = ()
    inlets: tuple[AssetCondition, ...] = ()
    outlets: tuple[AssetCondition, ...] = ()
    """Assets, references and aliases, but no expressions."""
    edge_labels: dict[str, str] = {}
    """The labels of the edges to downstream tasks, by task_id."""
    extra_links: dict[str, str] = {}
    """The XCom key of the address of each link to another system, by the link's name."""

    @property
    def pools(self) -> set[str]:
        """The pools in which its tries wait."""
        return {route.pool for route in self.routes} or {self.pool}


class SerializedTaskGroup(Struct, frozen=True, omit_defaults=True):
    """A task group. Its tasks name it in `SerializedTask.group_id`."""

    group_id: str
    parent_id: str | None = None
    tooltip: str = ""
    prefix_group_id: bool = True
    map_length: MapLength | None = None
    """None unless the group is mapped."""


class SerializedDeadline(Struct, frozen=True, omit_defaults=True):
    """A deadline of each run: `interval` seconds after the moment that `reference` names."""

    reference: DeadlineKind
    interval: Annotated[float, Meta(ge=-LONGEST_SECONDS, le=LONGEST_SECONDS)]
    name: str = ""
    at: datetime | None = None
    """The moment of a `fixed_datetime`."""
    max_runs: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """For `average_runtime`, the number of runs to average, and the number below which there is no deadline."""
    min_runs: Number = 0
    variable: str = ""
    """The variable that says the interval, in seconds; `interval` is 0 then."""

    @property
    def needs_user_code(self) -> bool:
        """Whether only a process that runs user code can say when the deadline is due."""
        return self.reference == "own" or bool(self.variable)


class SerializedWatcher(Struct, frozen=True, omit_defaults=True):
    """A trigger that watches an asset, as its `serialize` describes it."""

    asset_name: AssetName
    asset_uri: AssetName
    name: AssetName
    classpath: Annotated[str, Meta(min_length=1, max_length=1000)]
    kwargs: dict[str, Any] = {}


class SerializedDag(Struct, frozen=True, omit_defaults=True):
    """A DAG as the scheduler stores it and reads it for its decisions."""

    dag_id: Id
    timetable: dict[str, Any]
    """The `kind` and the fields that `asynsched.timetables.decode` reads."""
    asset_condition: AssetCondition | None = None
    """The asset events that also trigger runs."""
    partitions: dict[str, Any] | None = None
    """The partition mappers of its assets, which `asynsched.timetables.partitions` reads; None if it ignores keys."""
    watchers: tuple[SerializedWatcher, ...] = ()
    """The watchers of the assets that the DAG names, sorted."""
    schedule_summary: str = ""
    """The schedule for people; empty if the DAG runs only on demand."""
    timezone: str = "UTC"
    description: str | None = None
    display_name: str | None = None
    doc_md: str | None = None
    tags: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    access_control: dict[str, DagPermission] = {}
    """What the users of a role may do with the DAG at most."""
    start_date: datetime | None = None
    end_date: datetime | None = None
    catchup: bool | Literal["latest"] = False
    max_active_runs: Number | None = None
    max_active_tasks: Number | None = None
    max_consecutive_failed_dag_runs: Number | None = None
    dagrun_timeout: Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)] | None = None
    is_paused_upon_creation: bool | None = None
    allowed_run_types: tuple[str, ...] = ()
    """The types of runs that the DAG may have, sorted; empty: all."""
    fail_fast: bool = False
    render_template_as_native_obj: bool = False
    params: dict[str, SerializedParam] = {}
    callbacks: tuple[CallbackEvent, ...] = ()
    deadlines: tuple[SerializedDeadline, ...] = ()
    installation: Annotated[str, Meta(max_length=64)] = ""
    """Digest of the plugins, policies and helper modules beside the DAG folder: another one is another version."""
    task_groups: tuple[SerializedTaskGroup, ...] = ()
    tasks: tuple[SerializedTask, ...] = ()
    """In topological order."""


UNSTABLE = "unstable"
"""The kind of the warning about two parses of a file that differ."""
TEMPLATE = "template"
"""The kind of the warning about a file whose process cannot be forked."""

DOUBTFUL = "doubtful"
"""The kind of the warning about a probable mistake: shown with the errors, and logged."""
NO_EFFECT = "no_effect"
"""The kind of the warning about arguments without effect: logged when the file is parsed."""
MOVED = "moved"
"""The kind of the warning about names and arguments of Airflow 2: logged when the file is parsed."""


class FileError(Struct, frozen=True, omit_defaults=True):
    """The reason why a file, or one of its DAGs, could not be used."""

    kind: Annotated[str, Meta(max_length=32)]
    """syntax, import, exception, exit, crash, timeout, memory, dag, serialization, output, unreadable, archive;
    for warnings: warning, unstable, template, doubtful, no_effect."""
    message: str
    """One line with the mistake and advice."""
    traceback: str = ""
    line: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    dag_id: str | None = None


class SourceFile(Struct, frozen=True):
    """A DAG file itself, or a local module that it imported."""

    path: str
    """Relative to the DAG folder, with forward slashes; inside an archive `archive.zip/module.py`."""
    module: str
    """The name of the imported module; that of the DAG file is `unusual_prefix_…`."""
    content_hash: str
    """The SHA-256 of the text, hexadecimal."""
    text: str


class RunByHand(Struct, frozen=True, omit_defaults=True):
    """A run that is triggered, about which an author's timetable is asked.

    Attributes:
        run_after: Its earliest start.
        date: Its logical date; None: it has none, and no data interval.
        interval: Its data interval, if it is given one.
        is_named: Whether it has a name already.
    """

    run_after: datetime
    date: datetime | None = None
    interval: PlannedInterval | None = None
    run_type: DagRunType = DagRunType.MANUAL
    is_named: bool = False

    @property
    def needs_interval(self) -> bool:
        """Whether the timetable has to give it a data interval."""
        return self.date is not None and self.interval is None


class TimetableQuestion(Struct, frozen=True, omit_defaults=True):
    """A request to a user's timetable, or to partition mappers."""

    last: PlannedRun | None = None
    """The newest scheduled run; None for a new DAG."""
    n_runs: Annotated[int, Meta(ge=1, le=MAX_PLANNED)] = RUNS_AHEAD
    """The largest number of runs to return."""
    since: datetime | None = None
    """Leave out runs that are due before this time; the newest of them counts as the last run."""
    until: datetime | None = None
    """Leave out runs after the first that is due after this time."""
    span: PlannedInterval | None = None
    """The first and last logical date of a backfill, which makes all runs between them; None: the DAG's own dates."""
    run_by_hand: RunByHand | None = None
    """Return the data interval and the name of this run, and no plan."""
    partition_key: str | None = None
    """Also return the date of this partition, for a run that is triggered."""
    partitions: tuple[AssetKeys, ...] = ()
    """The keys that the partition mappers of the DAG are asked for."""

    @classmethod
    def about_run(
        cls,
        now: datetime,
        *,
        run_id: str | None,
        run_type: DagRunType,
        date: datetime | None,
        run_after: datetime | None,
        interval: DataInterval | None = None,
        partition_key: str | None = None,
    ) -> Self:
        """Return the question about a run that is triggered.

        Args:
            run_id: The name that it is given.
            date: Its logical date.
            run_after: Its earliest start, if that is not now.
            interval: The data interval that it is given.
            partition_key: That of its partition.
        """
        # As in Airflow, the operator that triggers a run names it.
        is_named = run_id is not None or run_type is DagRunType.OPERATOR_TRIGGERED
        given = None if interval is None else PlannedInterval(*interval)
        by_hand = RunByHand(run_after or now, date, given, run_type, is_named)
        return cls(run_by_hand=by_hand, partition_key=partition_key)


class ParseQuestions(Struct, frozen=True, omit_defaults=True):
    """The requests to a parse: a general one to the users' timetables in the file, and some for single dag_ids."""

    now: datetime
    of_dags: dict[str, TimetableQuestion] = {}
    of_others: TimetableQuestion = TimetableQuestion()
    known: dict[str, SerializedDag] = {}
    """Stored DAGs, to compute their versions with the current code."""

    def of(self, dag_id: str) -> TimetableQuestion:
        """Return the request to a DAG's timetable."""
        return self.of_dags.get(dag_id, self.of_others)


class AnswersForRun(NamedTuple):
    """What an author's code says of a run that is triggered by hand; None or empty where no such code decides."""

    interval: DataInterval | None = None
    partition_date: datetime | None = None
    run_id: str = ""


class ParsedDag(Struct, frozen=True, omit_defaults=True):
    """A DAG of a file, with the version that identifies its structure and code."""

    dag: SerializedDag
    version_hash: str
    """The hash of the serialized structure and the syntax trees of the file and its local modules."""
    plan: TimetablePlan | None = None
    """The answers of a user's timetable or partition mappers, which are not part of the version."""
    manual_interval: PlannedInterval | None = None
    """The data interval of `TimetableQuestion.run_by_hand`."""
    manual_run_id: RunName = ""
    """The name of that run; empty: the timetable does not name runs."""
    partition_date: datetime | None = None
    """The answer to `TimetableQuestion.partition_key`."""
    known_hash: str | None = None
    """The version of the DAG in `ParseQuestions.known`."""
    imported_from: str = ""
    """The file in the DAG folder whose import made the DAG, if the parsed file has only imported it."""

    @property
    def for_run(self) -> AnswersForRun:
        """The answers about a run that is triggered by hand."""
        interval = None if self.manual_interval is None else self.manual_interval.value()
        return AnswersForRun(interval, self.partition_date, self.manual_run_id)


ON_PATH = "start asynsched with PYTHONPATH="
"""In the message of an import error: the advice about a module that is beside the DAG folder."""
AirflowKind = Literal["", "ours", "installed"]


class ParseReport(Struct, frozen=True, omit_defaults=True):
    """The result of the parse of a file."""

    schema_version: int
    path: str
    dags: tuple[ParsedDag, ...] = ()
    errors: tuple[FileError, ...] = ()
    warnings: tuple[FileError, ...] = ()
    sources: tuple[SourceFile, ...] = ()
    """The file itself first, then the local modules that it imported."""
    output: str = ""
    """User code's standard output and error, up to a limit. It is shown, never interpreted."""
    confinement: tuple[str, ...] = ()
    """The confinements that the kernel enforced, e.g. `landlock 7`, `seccomp`, `limits`, `user`."""
    duration: float = 0.0
    airflow: AirflowKind = ""
    """What the file got for `import airflow`, as the setting says; empty if it did not import it."""
    asked: tuple[AskedName, ...] = ()
    """The values on which the result depends. A parse process names options only: the scheduler knows its answers."""
    hears: tuple[ImportErrorEvent, ...] = ()
    """The hooks of the listeners that the parse has loaded."""


def definitions(reports: Iterable[ParseReport]) -> dict[str, dict[str, ParsedDag]]:
    """Return each DAG as the files define it, by dag_id and path; not as a file has imported it from one of these."""
    found: dict[str, dict[str, ParsedDag]] = {}
    for report in reports:
        for parsed in report.dags:
            found.setdefault(parsed.dag.dag_id, {})[report.path] = parsed
    return {
        # Files that import one another, if any: then both count.
        dag_id: {path: parsed for path, parsed in by_path.items() if parsed.imported_from not in by_path} or by_path
        for dag_id, by_path in found.items()
    }


_canonical = msgspec.json.Encoder(order="sorted")


def version_hash(dag: SerializedDag, sources: Sequence[SourceFile]) -> str:
    """Return the version of a DAG, 64 hexadecimal digits.

    It depends on the serialized structure, and on the names and syntax trees of the sources. Comments, blank lines and
    layout do not change it; docstrings do, and so may another Python version, which may produce other trees.
    """
    digest = hashlib.sha256(_canonical.encode(dag))
    for source in sorted(sources, key=lambda source: (source.path, source.module)):
        for part in (source.path, source.module, meaning_of(source.text)):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(f"\n{len(data)}:".encode())
            digest.update(data)
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def meaning_of(text: str) -> str:
    """Return a digest of a text's syntax tree without positions, or of the text itself if it cannot be parsed.

    Cached, because a file with thousands of DAGs needs the same texts for each of them.
    """
    return hashlib.sha256(_tree(text).encode("utf-8", "surrogatepass")).hexdigest()


def _tree(text: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.dump(ast.parse(text), annotate_fields=False)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return text


def results_in(length: MapLength) -> Iterator[str]:
    """Yield the task_ids whose results are mapped over."""
    if isinstance(length, MapResult):
        yield length.task_id
    elif not isinstance(length, MapLiteral):
        for part in length.parts:
            yield from results_in(part)
