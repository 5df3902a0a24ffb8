"""The process in which a DAG file runs: confines itself, imports the file, and sends its findings.

`sandbox.parsing.supervise` forks it, believes nothing that it sends, and ends it in time. A timetable that is the
author's own is asked for its next runs here, too.
"""

import contextlib
import faulthandler
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import msgspec

from asynsched.airflow import installation
from asynsched.airflow.configuration import options_read
from asynsched.airflow.finder import serve_airflow
from asynsched.authoring.active import forgotten_dag_functions
from asynsched.authoring.airflow_2 import OLD_VALUES
from asynsched.authoring.dag import DAG, collect_dags
from asynsched.authoring.own_sandbox import own_sandbox
from asynsched.authoring.supervisor import NOT_WHILE_PARSED, SupervisorError, SupervisorNotFound, set_supervisor
from asynsched.authoring.timezone import coerce_datetime, set_default_timezone
from asynsched.errors import (
    Airflow2Warning,
    DagError,
    DagWarning,
    NoEffectWarning,
    TimetableError,
    without_effect,
    written_for_airflow_2,
)
from asynsched.protocol.parse_messages import (
    LONGEST_FINDINGS,
    LONGEST_WARNING,
    MOST_NAME,
    MOST_OPTIONS,
    QUESTION,
    Answered,
    Asked,
    Channel,
    Confined,
    Found,
    Hears,
    Imported,
    Loading,
    ParseLimits,
    Refused,
    Sourced,
    encodable,
    home_in,
)
from asynsched.serialization import schema
from asynsched.serialization.decode import restriction
from asynsched.serialization.encode import serialize_dag
from asynsched.states import DagRunType
from asynsched.timetables import (
    DagRunInfo,
    DataInterval,
    PlannedInterval,
    PlannedRun,
    TimeRestriction,
    Timetable,
    TimetablePlan,
)
from asynsched.timetables.asset_condition import AssetCondition
from asynsched.timetables.base import asked_at
from asynsched.timetables.decoding import RUN_NAME, CustomTimetable
from asynsched.timetables.own_partitions import answers_to
from asynsched.timetables.partitions import PartitionedAssetTimetable
from asynsched.timetables.simple import time_part
from sandbox.confine import ConfinementError, Policy, confine, use_reserves
from sandbox.processes import ForkCheck, flush_streams, keep_only, of_parse, set_title
from sandbox.sources.later_imports import note_later_imports
from sandbox.sources.local_imports import LocalImports, SourceRecorder

if TYPE_CHECKING:
    from types import ModuleType


T = TypeVar("T")
MAX_MISSED = 100_000
"""The largest number of missed runs that `catchup="latest"` skips."""
MAX_WARNINGS = 100
_MOST_OWNERS = 3
"""Tasks that a warning about arguments without effect names; it counts the others."""
READ_BYTES = 64 * 1024
_KINDS_ASKED: dict[str, Literal["variable", "connection"]] = {
    "variable_get": "variable", "connection_get": "connection"
}  # fmt: skip
STACK_SIGNAL = signal.SIGUSR1
"""Asks for the stack of user code, to show where it hangs."""


@dataclass(frozen=True, slots=True)
class ParseRequest:
    """Which file to parse, and how."""

    path: str
    """Relative to the DAG folder, with forward slashes."""
    dags_folder: Path
    """Absolute."""
    scratch: Path
    """An empty folder for this parse alone."""
    limits: ParseLimits
    questions: schema.ParseQuestions

    @property
    def policy(self) -> Policy:
        """The rights of the parse."""
        return Policy(self.limits, str(self.dags_folder), str(self.scratch))


class GuardianLink:
    """Answers the file's requests for variables and connections (the Supervisor of `asynsched.authoring`).

    The scheduler decides which ones a parse may have. Each is asked for once: a parse sees one value of it.
    """

    def __init__(self, channel: Channel, answers_fd: int) -> None:
        self._channel = channel
        self._answers_fd = answers_fd
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._n_asked = 0
        self._unread = b""
        self._known: dict[tuple[str, str], Answered] = {}

    def request(self, operation: str, **arguments: Any) -> Any:
        """Return the answer.

        Raises SupervisorNotFound, or SupervisorError if a parse may not have it, or for another operation.
        """
        if operation == "mask_secret":
            return None  # the scheduler masks its own answers
        kind = _KINDS_ASKED.get(operation)
        if kind is None:
            raise SupervisorError(f"{operation}: {NOT_WHILE_PARSED}")
        name = str(arguments["key" if kind == "variable" else "conn_id"])
        if not 0 < len(name) <= MOST_NAME:
            raise SupervisorNotFound(f"a {kind} has a name of at most {MOST_NAME} characters")
        if os.getpid() != self._process:
            raise SupervisorError(f"{operation}: only the process that parses the file can ask")
        with self._lock:
            answer = self._known.get((kind, name)) or self._ask(kind, name)
            self._known[kind, name] = answer
        if not answer.is_found:
            raise SupervisorNotFound(answer.error)
        if answer.error:
            raise SupervisorError(answer.error)
        return answer.value

    def _ask(self, kind: Literal["variable", "connection"], name: str) -> Answered:
        self._n_asked += 1
        self._channel.send(Asked(kind, encodable(name), self._n_asked))
        while True:
            line, separator, rest = self._unread.partition(b"\n")
            if not separator:
                data = os.read(self._answers_fd, READ_BYTES)
                if not data:
                    raise SupervisorError(f"the {kind} {name!r}: the process that watches this parse is gone")
                self._unread += data
                continue
            self._unread = rest
            answer = msgspec.json.decode(line.removeprefix(QUESTION), type=Answered)
            if answer.number == self._n_asked:  # another one is of a question that a signal has interrupted
                return answer


def enter_installation(limits: ParseLimits) -> None:
    """Provide Airflow's names to this process, whose forks are parses, and look for plugins. Call this once."""
    serve_airflow(limits.airflow, limits.airflow_options)
    installation.look()


def run_dag_file(request: ParseRequest, channel_fd: int, answers_fd: int, output_fd: int) -> NoReturn:
    """Run the file in this process, which was forked for it from one that called `enter_installation`; never return.

    Messages go to `channel_fd`, answers to its questions come from `answers_fd`, and user code's standard output and
    error go to `output_fd`.
    """
    channel = Channel(channel_fd)
    try:
        _enter(request, channel_fd, answers_fd, output_fd)
        check = ForkCheck(has_sockets=False)
        enforced = confine(request.policy)
    except (ConfinementError, OSError, DagError) as exc:
        channel.send(Refused(f"{type(exc).__name__}: {exc}"))
        os._exit(1)
    channel.send(Confined(enforced))
    set_supervisor(GuardianLink(channel, answers_fd), loads_file=True)
    found = _Finding(request, channel, check, is_confined=bool(enforced)).find()
    flush_streams()
    channel.send(found)
    os._exit(0)


def _enter(request: ParseRequest, channel_fd: int, answers_fd: int, output_fd: int) -> None:
    """Leave the watching process's session, descriptors, environment, signals and folder behind."""
    os.setsid()
    set_title(of_parse(request.path))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    keep_only(channel_fd, answers_fd)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable(channel_fd)
    faulthandler.register(STACK_SIGNAL, channel_fd, all_threads=False)
    for name, value in home_in(str(request.scratch)).items():
        os.environ[name] = value
    os.chdir(request.scratch)
    sys.argv = [f"{request.dags_folder}/{request.path}"]
    set_default_timezone(request.limits.default_timezone)


class _Finding:
    """One import, and its findings."""

    def __init__(self, request: ParseRequest, channel: Channel, check: ForkCheck, *, is_confined: bool) -> None:
        self._request = request
        self._check = check
        self._is_confined = is_confined
        self._channel = channel
        self._folder = str(request.dags_folder)
        self._sources: list[schema.SourceFile] = []
        self._warnings: list[schema.FileError] = []
        self._without_effect: list[tuple[NoEffectWarning, str, int]] = []
        self._moved: dict[str, list[tuple[str, int]]] = {}

    def find(self) -> Found:
        """Import the file, and return its DAGs and errors; a process that user code forked ends here."""
        owner = os.getpid()
        try:
            module = self._import()
            self._channel.send(Imported())
            note_later_imports(self._sources, self._request.dags_folder)
            dags, errors = self._dags_of(module)
            self._note_forgotten()
            self._note_no_effect()
            self._note_moved(works=not errors)
            if dags and os.getpid() == owner:
                self._note_obstacle()
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            dags, errors = (), (self._explain(exc),)
            with contextlib.suppress(BaseException):  # user code may have replaced anything that is used here, too
                self._note_moved(works=False)
        if os.getpid() != owner:
            os._exit(0)
        return Found(dags, errors, tuple(self._warnings), self._airflow(), options_read(MOST_OPTIONS))

    def _airflow(self) -> schema.AirflowKind:
        """Return what the file has got for `import airflow`."""
        kind = self._request.limits.airflow
        return kind if kind != "off" and "airflow" in sys.modules else ""

    def _import(self) -> "ModuleType":
        warnings.simplefilter("default")
        warnings.showwarning = self._note_warning  # type: ignore[assignment]
        local = LocalImports(
            self._request.dags_folder, SourceRecorder(self._request.dags_folder, self._note_source).note
        )
        local.install(self._request.path)
        try:
            installation.load(begin=self._note_plugin)
        finally:  # policies that cannot be loaded are an error that listeners hear of
            if installation.loaded is not None and (events := installation.loaded.import_error_events):
                self._channel.send(Hears(events))
        if installation.loaded is not None:
            self._note_errors(installation.loaded.plugins.errors)
        return local.load_dag_file(self._request.path)

    def _note_plugin(self, source: str) -> None:
        self._channel.send(Loading(source[:MOST_NAME]))

    def _note_errors(self, of_plugins: dict[str, BaseException]) -> None:
        """Warn of plugins that cannot be loaded."""
        for source, exc in of_plugins.items():
            what = f"the plugin {source} cannot be loaded: {type(exc).__name__}: {exc}"
            self._warnings.append(
                schema.FileError("warning", encodable(f"{self._request.path}: {what}"[:LONGEST_WARNING]))
            )

    def _explain(self, exc: BaseException) -> schema.FileError:
        use_reserves()
        try:
            with own_sandbox():  # loaded for a file with errors only
                from sandbox.parsing.explain import explain

            limits = self._request.limits if self._is_confined else None
            return explain(exc, self._request.path, self._folder, limits)
        except BaseException as worse:  # noqa: BLE001 - user code may have replaced anything that is used here
            why = f"{type(exc).__name__}, and then {type(worse).__name__}: the file has changed how Python itself works"
            return schema.FileError("exception", encodable(f"{self._request.path}: {why}"))

    def _note_source(self, source: schema.SourceFile) -> None:
        self._sources.append(source)
        self._channel.send(Sourced(source))

    def _note_warning(self, message: Warning, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
        if isinstance(message, NoEffectWarning):
            # In any file: an operator of a library passes a DAG file's arguments on.
            self._without_effect.append((message, filename.removeprefix(f"{self._folder}/"), lineno))
        elif not filename.startswith(f"{self._folder}/"):
            return  # a library's own affair
        elif isinstance(message, Airflow2Warning):
            self._moved.setdefault(filename.removeprefix(f"{self._folder}/"), []).append((message.advice, lineno))
        elif len(self._warnings) < MAX_WARNINGS:
            where = filename.removeprefix(f"{self._folder}/")
            is_doubtful = issubclass(category, DagWarning)
            what = f"{message}" if is_doubtful else f"{category.__name__}: {message}"
            self._warn(schema.DOUBTFUL if is_doubtful else "warning", where, lineno, what)

    def _warn(self, kind: str, where: str, lineno: int, what: str) -> None:
        line = lineno if where == self._request.path else None
        text = encodable(f"{where}:{lineno}: {what}"[:LONGEST_WARNING])
        self._warnings.append(schema.FileError(kind, text, line=line))

    def _note_forgotten(self) -> None:
        """Warn of `@dag` functions where the file calls none of them."""
        for function in forgotten_dag_functions(f"{self._folder}/{self._request.path}"):
            code, name = function.__code__, function.__name__
            what = f"{name} is decorated with @dag, but never called, so it makes no DAG: add {name}() below it"
            self._warn(schema.DOUBTFUL, code.co_filename.removeprefix(f"{self._folder}/"), code.co_firstlineno, what)

    def _note_no_effect(self) -> None:
        """Warn once for the whole file of arguments that do nothing: `default_args` give them to every task."""
        found = self._without_effect
        if not found:
            return
        arguments = tuple(dict.fromkeys(name for warning, _, _ in found for name in warning.arguments))
        owners = [warning.owner for warning, _, _ in found[:_MOST_OWNERS]]
        more = f"; and {len(found) - len(owners)} more" if len(found) > len(owners) else ""
        # A library's operator may have passed them on: then no line of the file does.
        line = next((lineno for _, where, lineno in found if where == self._request.path), None)
        place = self._request.path if line is None else f"{self._request.path}:{line}"
        what = f"{place}: {without_effect(arguments)} ({'; '.join(owners)}{more})"
        self._warnings.append(schema.FileError(schema.NO_EFFECT, encodable(what[:LONGEST_WARNING]), line=line))

    def _note_moved(self, *, works: bool) -> None:
        """Warn once for each file of the names, arguments and values that it has from Airflow 2, with their lines."""
        for source in self._sources:
            if any(name in source.text for name in OLD_VALUES):
                from sandbox.parsing.old_values import old_values  # loaded for a file of Airflow 2 only

                self._moved.setdefault(source.path, []).extend(old_values(source.text))
        for path, found in self._moved.items():
            for sentence in written_for_airflow_2(found, works=works, longest=LONGEST_FINDINGS):
                self._warnings.append(schema.FileError(schema.MOVED, encodable(f"{path}: {sentence}")))

    def _note_obstacle(self) -> None:
        """Warn of a file that no process can be forked from once it is loaded."""
        with contextlib.suppress(OSError):
            if obstacle := self._check.obstacle():
                what = f"each of its tasks imports it again, because {obstacle}; start that in a task"
                self._warnings.append(schema.FileError(schema.TEMPLATE, f"{self._request.path}: {what}"))

    def _dags_of(self, module: "ModuleType") -> tuple[tuple[schema.ParsedDag, ...], tuple[schema.FileError, ...]]:
        """Return the DAGs that can be serialized, and an error for each other one."""
        dags: list[schema.ParsedDag] = []
        errors: list[schema.FileError] = []
        own = installation.loaded
        for dag in collect_dags(module):
            try:
                if own is None or own.policies.admits(dag):
                    dags.append(self._parsed(dag, serialize_dag(dag)))
            except DagError as exc:
                errors.append(msgspec.structs.replace(self._explain(exc), dag_id=dag.dag_id))
        if own is not None:
            for said in own.policies.hook_errors():
                what = f"{self._request.path}: {said}"
                self._warnings.append(schema.FileError("warning", encodable(what[:LONGEST_WARNING])))
        return tuple(dags), tuple(errors)

    def _imported_from(self, dag: DAG) -> str:
        made_in = dag.importing_file.removeprefix(f"{self._folder}/")
        others = (source.path for source in self._sources)
        return made_in if made_in != self._request.path and made_in in others else ""

    def _parsed(self, dag: DAG, serialized: schema.SerializedDag) -> schema.ParsedDag:
        sources, known = tuple(self._sources), self._request.questions.known.get(dag.dag_id)
        if known is not None:
            known = msgspec.structs.replace(known, installation=serialized.installation)
        parsed = schema.ParsedDag(
            serialized,
            schema.version_hash(serialized, sources),
            known_hash=None if known is None else schema.version_hash(known, sources),
            imported_from=self._imported_from(dag),
        )
        questions = self._request.questions
        if isinstance(dag.timetable, PartitionedAssetTimetable) and dag.timetable.partitioning.needs_user_code:
            asked_keys = questions.of(dag.dag_id)
            answers = answers_to(asked_keys.partitions, dag.timetable.partitioning)
            plan = TimetablePlan(asked_at=questions.now, is_complete=True, partitions=answers)
            date = _date_of(dag.dag_id, dag.timetable, serialized.asset_condition, asked_keys.partition_key)
            return msgspec.structs.replace(parsed, plan=plan, partition_date=date)
        if serialized.timetable["kind"] != CustomTimetable.kind:
            return parsed
        question, asked = questions.of(dag.dag_id), AskedTimetable(dag, serialized, questions.now)
        if question.run_by_hand is None:
            return msgspec.structs.replace(parsed, plan=asked.plan(question))
        interval, run_id = asked.by_hand(question.run_by_hand)
        return msgspec.structs.replace(parsed, manual_interval=interval, manual_run_id=run_id)


def _date_of(
    dag_id: str, timetable: PartitionedAssetTimetable, condition: AssetCondition | None, key: str | None
) -> datetime | None:
    """Return the date of a partition by the DAG's mappers. Raises TimetableError if they cannot read its key."""
    try:
        return None if key is None else timetable.partitioning.date_of_key(condition, key)
    except Exception as exc:  # of user code
        raise TimetableError(f"DAG {dag_id!r} has no partition {key!r:.62}: {type(exc).__name__}: {exc}") from exc


def _for_author(interval: DataInterval | PlannedInterval) -> DataInterval:
    """Return a data interval with pendulum's dates, whose methods authors' timetables call."""
    return DataInterval(coerce_datetime(interval.start), coerce_datetime(interval.end))


class AskedTimetable:
    """A DAG's timetable, asked with a fixed current time, aware UTC.

    Every method raises TimetableError when the timetable raises or gives an invalid answer; the message names the DAG.
    """

    def __init__(self, dag: DAG, serialized: schema.SerializedDag, now: datetime) -> None:
        self._timetable: Timetable = time_part(dag.timetable)
        self._who = f"DAG {dag.dag_id!r}: its timetable {type(self._timetable).__name__}"
        self._bounds = restriction(serialized)
        self._now = now

    def plan(self, question: schema.TimetableQuestion) -> TimetablePlan:
        """Return the runs that follow one another after the last one."""
        last, bounds = None if question.last is None else question.last.value(), self._bounds
        if question.span is not None:
            bounds = TimeRestriction(question.span.start, question.span.end, catchup=True)
        after, before, is_complete = None if question.last is None else question.last.interval, None, False
        runs: list[PlannedRun] = []
        while len(runs) < question.n_runs:
            info = self._following(last, before, bounds)
            # A class may ignore the latest date.
            if info is None or (question.span is not None and info.data_interval.start > question.span.end):
                is_complete = True
                break
            last = before = info
            interval = PlannedInterval(*info.data_interval)
            if question.since is not None and info.run_after < question.since:
                after = interval
                continue
            name = "" if question.span is not None else self._run_id(DagRunType.SCHEDULED, info.run_after, interval)
            runs.append(PlannedRun(info.run_after, interval, name))
            if question.until is not None and info.run_after > question.until:
                break
        return TimetablePlan(
            asked_at=self._now, after=after, runs=tuple(runs), is_complete=is_complete, names_runs=self._names_runs
        )

    def by_hand(self, run: schema.RunByHand) -> tuple[PlannedInterval | None, str]:
        """Return the data interval and the name of a run that is triggered; an empty name stands for the usual one."""
        at, interval = coerce_datetime(run.date), run.interval
        if at is not None and interval is None:
            found = self._call(lambda: self._timetable.infer_manual_data_interval(run_after=at))
            interval = PlannedInterval(*self._checked_interval(found))
        return interval, "" if run.is_named else self._run_id(run.run_type, run.run_after, interval)

    @property
    def _names_runs(self) -> bool:
        return type(self._timetable).generate_run_id is not Timetable.generate_run_id

    def _run_id(self, run_type: DagRunType, run_after: datetime, interval: PlannedInterval | None) -> str:
        """Return the author's name of a run; empty if the class does not name runs."""
        if not self._names_runs:
            return ""
        more = {"partition_key": None} if run_type is DagRunType.SCHEDULED else {}
        shown = None if interval is None else _for_author(interval)
        found = self._call(
            lambda: self._timetable.generate_run_id(
                run_type=run_type, run_after=coerce_datetime(run_after), data_interval=shown, **more
            )
        )
        if not isinstance(found, str) or not found or not re.match(RUN_NAME, found):
            raise TimetableError(
                f"{self._who} gives the run id {found!r:.100}; it must be 1 to {schema.MAX_ID_LENGTH} letters, digits"
                " and the characters _.~:+- and neither `latest` nor `.` or `..`"
            )
        return found

    def _following(
        self, last: DagRunInfo | None, before: DagRunInfo | None, bounds: TimeRestriction
    ) -> DagRunInfo | None:
        """Return the run after `last`; with `catchup="latest"`, the newest of those that are due."""
        info = self._next(last, before, bounds)
        if bounds.catchup != "latest" or info is None:
            return info
        for _ in range(MAX_MISSED):
            following = self._next(info, info, bounds) if info.run_after <= self._now else None
            if following is None or following.run_after > self._now:
                return info
            info = following
        raise TimetableError(f"{self._who} gives more than {MAX_MISSED} missed runs")

    def _next(self, last: DagRunInfo | None, before: DagRunInfo | None, bounds: TimeRestriction) -> DagRunInfo | None:
        """Return the run after `last`, which must not be due before `before`."""
        limits = TimeRestriction(coerce_datetime(bounds.earliest), coerce_datetime(bounds.latest), bool(bounds.catchup))
        shown = None
        if last is not None:
            shown = DagRunInfo(coerce_datetime(last.run_after), _for_author(last.data_interval))
        found = self._call(lambda: self._timetable.next_dagrun_info_v2(last_dagrun_info=shown, restriction=limits))
        if found is None:
            return None
        info = DagRunInfo(self._instant("run_after", found), DataInterval(*self._checked_interval(found.data_interval)))
        if last is not None and info.data_interval.start <= last.data_interval.start:
            raise TimetableError(
                f"{self._who} gives the data interval from {info.data_interval.start.isoformat()} after that from"
                f" {last.data_interval.start.isoformat()}; each must start later than the one before"
            )
        if before is not None and info.run_after < before.run_after:
            raise TimetableError(
                f"{self._who} gives run_after {info.run_after.isoformat()} after {before.run_after.isoformat()};"
                " a run must not be due earlier than the one before"
            )
        return info

    def _call(self, question: Callable[[], T]) -> T:
        try:
            with asked_at(self._now):
                return question()
        except Exception as exc:
            raise TimetableError(f"{self._who} raised {type(exc).__name__}: {exc}") from exc

    def _checked_interval(self, interval: Any) -> tuple[datetime, datetime]:
        start, end = self._instant("start", interval), self._instant("end", interval)
        if end < start:
            raise TimetableError(
                f"{self._who} gives a data interval that ends at {end.isoformat()}, before it starts at"
                f" {start.isoformat()}"
            )
        return start, end

    def _instant(self, name: str, answer: Any) -> datetime:
        value = getattr(answer, name, None)
        if not isinstance(value, datetime):
            raise TimetableError(f"{self._who} returns an object whose {name} is not a datetime: {answer!r:.200}")
        if value.utcoffset() is None:
            raise TimetableError(f"{self._who} gives the naive date {value.isoformat()} as {name}; give it a time zone")
        return datetime.fromisoformat(value.isoformat()).astimezone(UTC)
