"""The errors that asynsched raises on purpose: who is at fault, and how the caller should react.

AsynschedError
├── SettingsError                  the configuration: refuse to start
├── DagError                       the author's mistake: record it, continue
│   ├── DagImportError
│   ├── DagCycleError
│   ├── TimetableError
│   │   └── PlanNeeded             parse the file again to ask the user's timetable
│   ├── KeysNeeded                 parse the file again to ask the user's partition mapper
│   └── SerializationError
├── SandboxError                   a parser timed out or died: record it, continue
│   ├── ParseTimeout
│   └── ParseCrashed
├── StoreError
│   ├── StoreUnavailable           transient: back off, try again
│   ├── DatabaseMissing            it has not been created yet: tell the user where it should be
│   ├── StoreVersionError          the database has another version: refuse to start
│   ├── SecretsUnreadable          the key of the database's secrets is missing: refuse to start
│   ├── AlreadyExists              the key is taken: tell the user
│   └── NotFound (LookupError)     tell the user, with similar names
├── LogStoreUnavailable            transient: back off, try again
├── ExecutorError                  the executor failed: try again, or stop
│   ├── KeeperGone                 it was killed: try again
│   ├── DataFilesUnavailable       a try does not get its data files: it fails
│   └── TicketRefused              the try is another worker's, or over: drop its ticket
├── HomeInUse                      another scheduler holds the home: refuse to start
├── HomeGone                       our home was removed or replaced: stop serving
├── LeaseLost                      another scheduler may have claimed our runs: stop serving
├── Standstill                     no active run can continue without the user: tell the user
├── NotServing (RuntimeError)      the program uses a scheduler before or after it serves: its mistake
├── SimulationStalled              nothing can happen any more in a simulation: end it
└── InvalidTransition              our bug: let it stop serve()
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


ERROR_HEADER = "Asynsched-Error"
"""Header of an HTTP answer: names the class of the error that it reports."""


def did_you_mean(near: tuple[str, ...] | list[str]) -> str:
    """Return a question to append to an error about an unknown name; empty without near names."""
    return f" Did you mean {' or '.join(near)}?" if near else ""


class AsynschedError(Exception):
    """The base of all errors that asynsched raises on purpose."""


class SettingsError(AsynschedError):
    """A setting is invalid. The message names the option and where it was set."""


class DagError(AsynschedError):
    """A mistake in a DAG file. The message explains it and how to correct it."""


class DagWarning(UserWarning):
    """A probable mistake in a DAG file. The message says how to correct it. Warned, not raised."""


class NoEffectWarning(UserWarning):
    """Arguments of Airflow that have no effect here. `owner`: the task's name in messages. Warned, not raised."""

    def __init__(self, owner: str, arguments: tuple[str, ...]) -> None:
        super().__init__(f"{owner}: {without_effect(arguments)}")
        self.owner = owner
        self.arguments = arguments


class Airflow2Warning(UserWarning):
    """Something in a file that is written for Airflow 2, and works. Warned, not raised.

    Attributes:
        advice: What has changed, such as `schedule_interval is now schedule`.
    """

    def __init__(self, advice: str, message: str = "") -> None:
        super().__init__(message or advice)
        self.advice = advice


class MovedNameWarning(Airflow2Warning):
    """A name of Airflow 2 that is elsewhere in Airflow 3. Warned, not raised.

    Attributes:
        old: The name, with its module.
        new: The same in Airflow 3.
    """

    def __init__(self, old: str, new: str) -> None:
        super().__init__(f"{old} is now {new}", f"{old} is {new} in Airflow 3")
        self.old = old
        self.new = new


_MOST_LINES = 10
"""Lines that are named with one thing that a file should change."""


def written_for_airflow_2(found: "Iterable[tuple[str, int]]", *, works: bool, longest: int) -> list[str]:
    """Return sentences that say how to write a file for Airflow 3: several where one would be longer than `longest`.

    Args:
        found: Each advice with its line, in any order; one may be there often.
        works: Whether the file can be used as it is.
    """
    lines_of: dict[str, set[int]] = {}
    for advice, line in found:
        lines_of.setdefault(advice, set()).add(line)
    begin = f"this file is written for Airflow 2{', and works' if works else ''}; "
    sentences: list[str] = []
    for advice, lines in sorted(lines_of.items(), key=lambda pair: min(pair[1])):
        named = ", ".join(map(str, sorted(lines)[:_MOST_LINES]))
        more = f" and {len(lines) - _MOST_LINES} more" if len(lines) > _MOST_LINES else ""
        part = f"{advice} (line{'s' if len(lines) > 1 else ''} {named}{more})"
        if sentences and len(sentences[-1]) + len(part) < longest:
            sentences[-1] += f", {part}"
        else:
            sentences.append(begin + part)
    return sentences


WITHOUT_EFFECT = {
    "access_control": "there are no teams, so every DAG may use the asset",
    "allow_nested_operators": "operators may always call one another",
    "disable_bundle_versioning": "a run keeps its version; `asynsched runs clear --latest` moves it",
    "doc": "the page shows doc_md",
    "doc_json": "the page shows doc_md",
    "doc_rst": "the page shows doc_md",
    "doc_yaml": "the page shows doc_md",
    "executor_config": "the executor runs tasks on this machine; pools limit them",
    "owner_links": "put the link into doc_md",
    "rerun_with_latest_version": "a run keeps its version; `asynsched runs clear --latest` moves it",
    "resources": "limit tasks by pool and pool_slots",
    "run_as_user": "tasks run as the scheduler's user; let a command change it, such as sudo -u",
    "sla": "give the DAG a deadline",
}
"""Arguments of Airflow that have no effect here, and what to do. `access_control` is that of assets, and
`executor_config` has an effect with other executors."""


def without_effect(arguments: tuple[str, ...]) -> str:
    """Return a sentence about arguments without effect, with advice."""
    have = "has" if len(arguments) == 1 else "have"
    advice = "; ".join(dict.fromkeys(WITHOUT_EFFECT[name] for name in arguments))
    return f"{', '.join(arguments)} {have} no effect in asynsched: {advice}"


class DagImportError(DagError):
    """A DAG file cannot be imported."""


class DagCycleError(DagError):
    """The tasks of a DAG depend on each other in a cycle."""


class TimetableError(DagError):
    """A schedule is invalid, or has no future run."""


class PlanNeeded(TimetableError):
    """The next run of a user's timetable is not known yet: its DAG file must be parsed again."""

    def __init__(self, timetable: str) -> None:
        super().__init__(f"the timetable {timetable}, which is code of the DAG file, has not been asked for this yet")


class KeysNeeded(DagError):
    """What a user's partition mapper makes of a key is not known yet: its DAG file must be parsed again."""

    def __init__(self, mapper: str) -> None:
        super().__init__(f"{mapper}, which is code of the DAG file, has not been asked for this yet")


class SerializationError(DagError):
    """A DAG cannot be written in, or read from, the serialized form."""


class SandboxError(AsynschedError):
    """A parse ended without a result. `asked`: the variables and connections (AskedName) that it had read."""

    asked: "tuple[Any, ...]" = ()


class ParseTimeout(SandboxError):
    """A parse exceeded its time limit."""

    def __init__(self, path: str, timeout_seconds: float) -> None:
        super().__init__(f"{path}: parsing took longer than {timeout_seconds:g} s")


class ParseCrashed(SandboxError):
    """A parse process died."""

    def __init__(self, path: str, how: str) -> None:
        super().__init__(f"{path}: the parse process {how}")


class StoreError(AsynschedError):
    """The database rejected a request or failed."""


class StoreUnavailable(StoreError):
    """The database cannot be reached at the moment. Back off and try again: a write may have been done, or not."""


class DatabaseMissing(StoreError):
    """The database does not exist or has no tables of asynsched, and the caller does not create them."""

    def __init__(self, shown: str) -> None:
        super().__init__(f"There is no database {shown}")


class StoreVersionError(StoreError):
    """The database has a schema that this version of asynsched does not know."""


class SecretsUnreadable(StoreError):
    """The encryption key of the secrets in the database is missing or invalid. The message says where it belongs."""


class AlreadyExists(StoreError):
    """A row with this key already exists."""


class NotFound(StoreError, LookupError):
    """A DAG, run, task, pool, variable or connection does not exist."""

    kind = name = ""
    near: tuple[str, ...] = ()

    def __init__(self, kind: str, name: str, near: tuple[str, ...] = (), *, where: str = "") -> None:
        hint = did_you_mean(near)
        super().__init__(f"There is no {kind} {name!r}{f' in {where}' if where else ''}.{hint}")
        self.kind = kind
        self.name = name
        self.near = near


class LogStoreUnavailable(AsynschedError):
    """The store of logs (`log.store`) does not answer, or refuses. Back off and try again."""


class ExecutorError(AsynschedError):
    """An executor failed."""


class KeeperGone(ExecutorError):
    """The keeper ended without a message: it was killed."""


class DataFilesUnavailable(ExecutorError):
    """The data files that `workers.files` names cannot be sent. The message says which, and why."""


class TicketRefused(ExecutorError):
    """A worker may not start a try, or not report its end."""


class HomeInUse(AsynschedError):
    """Another scheduler is serving this home."""


class HomeGone(AsynschedError):
    """The folder of the home is no longer the one that this scheduler has locked."""

    def __init__(self, home: str) -> None:
        super().__init__(
            f"The home {home} was removed, moved or replaced while a scheduler served it. Put it back, or start with a"
            " new one."
        )
        self.home = home


class LeaseLost(AsynschedError):
    """This scheduler's lease has expired, and another scheduler may have claimed its runs."""

    def __init__(self, scheduler_id: str) -> None:
        super().__init__(
            f"The scheduler {scheduler_id} has lost its lease, and another may have claimed its runs. Start it again."
        )
        self.scheduler_id = scheduler_id


class Standstill(AsynschedError):
    """Runs are active, but none of them can continue unless a user does something."""

    def __init__(self, reasons: str) -> None:
        super().__init__(f"No active run can continue. {reasons}. `asynsched why DAG RUN` explains why.")
        self.reasons = reasons


class NotServing(AsynschedError, RuntimeError):
    """A scheduler was used before or after it serves."""


class SimulationStalled(AsynschedError):
    """Everything in a simulation waits, and no timer is set."""

    def __init__(self) -> None:
        super().__init__("The simulation has stalled: everything waits, and no timer is set")


class InvalidTransition(AsynschedError):
    """A state change that is not in the tables of states.py. This is a bug in asynsched."""

    def __init__(self, what: str, before: object, after: object) -> None:
        super().__init__(f"illegal state change of a {what}: {before or 'no state'} -> {after or 'no state'}")


def only_cause(error: BaseException) -> BaseException:
    """Return the error inside of exception groups with one member; otherwise the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class ungrouped:  # noqa: N801 - it is used like a function
    """Raises the error inside of exception groups with one member in their place: `with ungrouped():`."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BaseExceptionGroup):
            cause = only_cause(error)
            raise cause from cause.__cause__
