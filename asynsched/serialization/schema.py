"""The serialized form of a DAG file: what the sandbox writes and the scheduler reads.

The one schema that crosses the border between user code and the scheduler. JSON, decoded strictly: a field that
is missing, of the wrong type or out of bounds is an error of that file, and of nothing else. Lengths of time are
seconds, instants are aware UTC.
"""

import ast
import hashlib
import warnings
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from asynsched.timetables.asset_condition import AssetCondition
from asynsched.timetables.custom import MAX_PLANNED, PlannedInterval, TimetablePlan

SCHEMA_VERSION = 1
"""Raised whenever an older reader could misread what a newer writer says."""

MAX_ID_LENGTH = 250
"""Longest dag_id, task_id or run_id (Airflow's limit)."""

RUNS_AHEAD = 50
"""How many runs an author's timetable is asked for ahead of time."""

Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_LENGTH)]
TriggerRuleName = Literal[
    "all_success", "all_failed", "all_done", "all_done_min_one_success", "all_done_setup_success", "all_skipped",
    "one_success", "one_failed", "one_done", "none_failed", "none_failed_min_one_success", "none_skipped", "always",
]  # fmt: skip
WeightRuleName = Literal["downstream", "upstream", "absolute"]
CallbackEvent = Literal["on_execute", "on_success", "on_failure", "on_retry", "on_skipped"]
DeadlineKind = Literal["dagrun_logical_date", "dagrun_queued_at", "fixed_datetime", "average_runtime"]
LONGEST_SECONDS = 36_525 * 86_400.0
"""Longest length of time: 100 years, so that a date and a length make a date."""
Number = Annotated[int, Meta(ge=0, le=10**9)]
"""How many of something, such that a column holds it and what is reckoned from it."""
ShortName = Annotated[str, Meta(min_length=1, max_length=256)]


class MapLiteral(Struct, frozen=True, tag="literal"):
    """A list or dict that is written in the DAG file, of this length."""

    length: Annotated[int, Meta(ge=0)]


class MapResult(Struct, frozen=True, tag="result"):
    """What a task returned; of a mapped one, the results of its instances."""

    task_id: str


class MapZip(Struct, frozen=True, tag="zip"):
    """Values side by side: as many as the shortest part has, or, with a fill value, the longest."""

    parts: tuple["MapLength", ...]
    is_filled: bool = False


class MapConcat(Struct, frozen=True, tag="concat"):
    """Values one after the other."""

    parts: tuple["MapLength", ...]


class MapProduct(Struct, frozen=True, tag="product"):
    """Every combination of values: what `expand` with several arguments maps over."""

    parts: tuple["MapLength", ...]


MapLength = MapLiteral | MapResult | MapZip | MapConcat | MapProduct
"""How many instances a mapped task, or a mapped task group, expands to."""


class SerializedParam(Struct, frozen=True, omit_defaults=True):
    """A Param: its default (`has_default` tells None from absent) and its JSON schema."""

    value: Any = None
    has_default: bool = True
    schema: dict[str, Any] = {}
    description: str | None = None


class SerializedTask(Struct, frozen=True, omit_defaults=True):
    """A task, as far as the scheduler needs to know it."""

    task_id: Id
    task_type: str
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
    pool: ShortName = "default_pool"
    pool_slots: Annotated[int, Meta(ge=1, le=10**9)] = 1
    queue: ShortName = "default"
    executor: ShortName | None = None
    depends_on_past: bool = False
    wait_for_downstream: bool = False
    wait_for_past_depends_before_skipping: bool = False
    ignore_first_depends_on_past: bool = False
    start_date: datetime | None = None
    end_date: datetime | None = None
    max_active_tis_per_dag: Number | None = None
    max_active_tis_per_dagrun: Number | None = None
    is_empty: bool = False
    """An EmptyOperator without callbacks: it succeeds without a process."""
    is_branch: bool = False
    is_short_circuit: bool = False
    is_sensor: bool = False
    sensor_mode: Literal["poke", "reschedule"] = "poke"
    poke_interval: float | None = None
    sensor_timeout: float | None = None
    map_length: MapLength | None = None
    """Not None: a mapped task (`expand`)."""
    is_setup: bool = False
    is_teardown: bool = False
    on_failure_fail_dagrun: bool = False
    do_xcom_push: bool = True
    callbacks: tuple[CallbackEvent, ...] = ()
    template_fields: tuple[str, ...] = ()
    inlets: tuple[AssetCondition, ...] = ()
    outlets: tuple[AssetCondition, ...] = ()
    """Assets, references and aliases; no expressions."""
    edge_labels: dict[str, str] = {}
    """Label of the edge to a downstream task, by its task_id."""


class SerializedTaskGroup(Struct, frozen=True, omit_defaults=True):
    """A task group; membership is `SerializedTask.group_id`."""

    group_id: str
    parent_id: str | None = None
    tooltip: str = ""
    prefix_group_id: bool = True
    map_length: MapLength | None = None
    """Not None: a mapped task group; its tasks have as many instances."""


class SerializedDeadline(Struct, frozen=True, omit_defaults=True):
    """A deadline of each run: `interval` seconds after the moment that `reference` names."""

    reference: DeadlineKind
    interval: Annotated[float, Meta(ge=-LONGEST_SECONDS, le=LONGEST_SECONDS)]
    name: str = ""
    at: datetime | None = None
    """The moment of a `fixed_datetime`."""
    max_runs: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Of an `average_runtime`: how many of the last runs count, and how many there must be."""
    min_runs: Number = 0


class SerializedDag(Struct, frozen=True, omit_defaults=True):
    """A DAG: what the scheduler stores and decides from."""

    dag_id: Id
    timetable: dict[str, Any]
    """What `asynsched.timetables.decode` reads: its `kind` and that kind's fields."""
    asset_condition: AssetCondition | None = None
    """The events of assets that also trigger runs."""
    schedule_summary: str = ""
    """When it runs, for people; empty when it only runs on demand."""
    timezone: str = "UTC"
    description: str | None = None
    display_name: str | None = None
    doc_md: str | None = None
    tags: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    start_date: datetime | None = None
    end_date: datetime | None = None
    catchup: bool | Literal["latest"] = False
    max_active_runs: Number | None = None
    max_active_tasks: Number | None = None
    max_consecutive_failed_dag_runs: Number | None = None
    dagrun_timeout: Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)] | None = None
    is_paused_upon_creation: bool | None = None
    fail_fast: bool = False
    render_template_as_native_obj: bool = False
    params: dict[str, SerializedParam] = {}
    callbacks: tuple[CallbackEvent, ...] = ()
    deadlines: tuple[SerializedDeadline, ...] = ()
    task_groups: tuple[SerializedTaskGroup, ...] = ()
    tasks: tuple[SerializedTask, ...] = ()
    """In topological order."""


UNSTABLE = "unstable"
"""Kind of the warning that two parses of a file differ."""
TEMPLATE = "template"
"""Kind of the warning that no process can be forked from one that has loaded the file."""

DOUBTFUL = "doubtful"
"""Kind of the warning that the file does what its author hardly means: shown with the errors, and logged."""
NO_EFFECT = "no_effect"
"""Kind of the warning that tasks of the file are given arguments that do nothing: logged when the file is parsed."""


class FileError(Struct, frozen=True, omit_defaults=True):
    """Why a file, or one DAG of it, could not be used."""

    kind: Annotated[str, Meta(max_length=32)]
    """syntax, import, exception, exit, crash, timeout, memory, dag, serialization, output, unreadable, archive;
    of warnings: warning, unstable, template, doubtful, no_effect."""
    message: str
    """One line: what is wrong and what to do."""
    traceback: str = ""
    line: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    dag_id: str | None = None


class SourceFile(Struct, frozen=True):
    """A Python file that a DAG file consists of: itself, or a local module that it imported."""

    path: str
    """Relative to the DAG folder, with forward slashes; inside an archive `archive.zip/module.py`."""
    module: str
    """Name it was imported under (the DAG file's own is `unusual_prefix_…`)."""
    content_hash: str
    """SHA-256 of the text, hexadecimal."""
    text: str


class TimetableQuestion(Struct, frozen=True, omit_defaults=True):
    """What an author's timetable is to be asked."""

    last: PlannedInterval | None = None
    """Data interval of the newest scheduled run; None: there is none."""
    n_runs: Annotated[int, Meta(ge=1, le=MAX_PLANNED)] = RUNS_AHEAD
    """How many runs after that, at most."""
    since: datetime | None = None
    """Runs that are due before this are left out: the newest of them counts as the last run."""
    until: datetime | None = None
    """Runs beyond the first that is due after this are left out."""
    run_by_hand_at: datetime | None = None
    """Also for the data interval of a run that is triggered at this instant."""


class ParseQuestions(Struct, frozen=True, omit_defaults=True):
    """What a parse is to answer beside what it finds.

    The authors' timetables in the file are asked a general question, and others for some dag_ids.
    """

    now: datetime
    of_dags: dict[str, TimetableQuestion] = {}
    of_others: TimetableQuestion = TimetableQuestion()
    known: dict[str, SerializedDag] = {}
    """DAGs as they are stored: what would their versions be, with the code of now?"""

    def of(self, dag_id: str) -> TimetableQuestion:
        """Return what a DAG's timetable is to be asked."""
        return self.of_dags.get(dag_id, self.of_others)


class ParsedDag(Struct, frozen=True, omit_defaults=True):
    """One DAG of a file, with the version that identifies its structure and code."""

    dag: SerializedDag
    version_hash: str
    """Hash of the serialized structure and of the syntax trees of the file and its local modules."""
    plan: TimetablePlan | None = None
    """The next runs, of a timetable that is the author's own. They are no part of the version."""
    manual_interval: PlannedInterval | None = None
    """Of a run that is triggered when the question said, if it did."""
    known_hash: str | None = None
    """What the version would be were the DAG as the question said, if it did."""


class ParseReport(Struct, frozen=True, omit_defaults=True):
    """Everything that one parse of one file found. It crosses the border as JSON."""

    schema_version: int
    path: str
    dags: tuple[ParsedDag, ...] = ()
    errors: tuple[FileError, ...] = ()
    warnings: tuple[FileError, ...] = ()
    sources: tuple[SourceFile, ...] = ()
    """The file itself first, then the local modules that it imported."""
    output: str = ""
    """What user code wrote to standard output and error, cut to its limit. Shown, never interpreted."""
    confinement: tuple[str, ...] = ()
    """What the kernel enforced: e.g. `landlock 7`, `seccomp`, `limits`, `user`."""
    duration: float = 0.0


_canonical = msgspec.json.Encoder(order="sorted")


def version_hash(dag: SerializedDag, sources: Sequence[SourceFile]) -> str:
    """Return the version of a DAG: 64 hexadecimal digits.

    It depends on the serialized structure, and on the names and syntax trees of the sources. A comment, a blank line
    or another layout changes nothing; a docstring does. Python's own version may: a new one may write other trees.
    """
    digest = hashlib.sha256(_canonical.encode(dag))
    for source in sorted(sources, key=lambda source: (source.path, source.module)):
        for part in (source.path, source.module, _meaning(source.text)):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(f"\n{len(data)}:".encode())
            digest.update(data)
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _meaning(text: str) -> str:
    """Return a digest of a string's syntax tree without positions; of the text itself if it is no Python, or too deep.

    Remembered, because a file of thousands of DAGs asks for the same strings for each of them.
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
    """Yield the tasks whose results are mapped over."""
    if isinstance(length, MapResult):
        yield length.task_id
    elif not isinstance(length, MapLiteral):
        for part in length.parts:
            yield from results_in(part)
