"""Every error that asynsched raises on purpose: who is at fault, and what the caller does.

AsynschedError
├── SettingsError                  the configuration: refuse to start
├── DagError                       the author's mistake: record it, go on
│   ├── DagImportError
│   ├── DagCycleError
│   ├── TimetableError
│   │   └── PlanNeeded             parse the file again, which asks the author's timetable
│   └── SerializationError
├── SandboxError                   a parser timed out or died: record it, go on
│   ├── ParseTimeout
│   └── ParseCrashed
├── StoreError
│   ├── StoreUnavailable           transient: back off, try again
│   ├── DatabaseMissing            nothing has been made there yet: say where that is
│   ├── StoreVersionError          the database is of another version: refuse to start
│   ├── SecretsUnreadable          the key of the database's secrets is missing: refuse to start
│   ├── AlreadyExists              the key is taken: tell the user
│   └── NotFound (LookupError)     tell the user, with the nearest names
├── ExecutorError                  the place where tries run is at fault: try again, or stop
│   └── KeeperGone                 it was killed: try again
├── HomeInUse                      another scheduler holds the home: refuse to start
├── LeaseLost                      another scheduler may have taken our runs: stop serving
├── Standstill                     runs wait for what nobody does: tell the user
├── NotServing (RuntimeError)      a scheduler is used before or after it serves: the program's mistake
├── SimulationStalled              a simulation in which nothing can happen any more: end it
└── InvalidTransition              our bug: let it stop serve()
"""


class AsynschedError(Exception):
    """Base of every error that asynsched raises on purpose."""


class SettingsError(AsynschedError):
    """A setting is wrong. The message names the option and where it was set."""


class DagError(AsynschedError):
    """A DAG file's author made a mistake. The message says which and what to do."""


class DagWarning(UserWarning):
    """A DAG file does what its author hardly means. The message says what to do. Warned, not raised."""


class NoEffectWarning(UserWarning):
    """A task is given arguments that Airflow has, and that do nothing here. Warned, not raised.

    Attributes:
        owner: How messages name the task.
        arguments: The names of the arguments.
    """

    def __init__(self, owner: str, arguments: tuple[str, ...]) -> None:
        super().__init__(f"{owner}: {without_effect(arguments)}")
        self.owner = owner
        self.arguments = arguments


def without_effect(arguments: tuple[str, ...]) -> str:
    """Return in a sentence that these arguments of tasks do nothing, and what to do instead."""
    have = "has" if len(arguments) == 1 else "have"
    hint = "; no mail is sent: write an on_failure_callback or on_retry_callback" if "email" in arguments else ""
    return f"{', '.join(arguments)} {have} no effect in asynsched{hint}"


class DagImportError(DagError):
    """A DAG file cannot be imported."""


class DagCycleError(DagError):
    """The tasks of a DAG depend on each other in a cycle."""


class TimetableError(DagError):
    """A schedule is invalid, or has no future run."""


class PlanNeeded(TimetableError):
    """An author's timetable has not said yet which run comes next: its DAG file is to be parsed again."""

    def __init__(self, timetable: str) -> None:
        super().__init__(f"the timetable {timetable}, which is code of the DAG file, has not been asked for this yet")
        self.timetable = timetable


class SerializationError(DagError):
    """A DAG cannot be written as, or read from, the serialized form."""


class SandboxError(AsynschedError):
    """A parse ended without a result."""


class ParseTimeout(SandboxError):
    """A parse took longer than it may."""

    def __init__(self, path: str, timeout_seconds: float) -> None:
        super().__init__(f"{path}: parsing took longer than {timeout_seconds:g} s")
        self.path = path
        self.timeout_seconds = timeout_seconds


class ParseCrashed(SandboxError):
    """A parse process died."""

    def __init__(self, path: str, how: str) -> None:
        super().__init__(f"{path}: the parse process {how}")
        self.path = path
        self.how = how


class StoreError(AsynschedError):
    """The database refused or failed."""


class StoreUnavailable(StoreError):
    """The database cannot be reached at the moment. Back off and try again."""


class DatabaseMissing(StoreError):
    """There is no database, or it has no tables of asynsched, and the caller does not make them."""

    def __init__(self, shown: str) -> None:
        super().__init__(f"There is no database {shown}")


class StoreVersionError(StoreError):
    """The database has a schema that this version of asynsched does not know."""


class SecretsUnreadable(StoreError):
    """The key that the secrets in the database are encrypted with is missing, or is no key. Names where it belongs."""


class AlreadyExists(StoreError):
    """A row with that key exists."""


class NotFound(StoreError, LookupError):
    """No such DAG, run, task, pool, variable or connection."""

    def __init__(self, kind: str, name: str, near: tuple[str, ...] = (), *, where: str = "") -> None:
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        super().__init__(f"There is no {kind} {name!r}{f' in {where}' if where else ''}.{hint}")
        self.kind = kind
        self.name = name
        self.near = near


class ExecutorError(AsynschedError):
    """An executor failed."""


class KeeperGone(ExecutorError):
    """The keeper has ended without a word, as what is killed does."""


class HomeInUse(AsynschedError):
    """Another scheduler is serving this home."""


class LeaseLost(AsynschedError):
    """This scheduler's lease is over, and another may have taken its runs."""

    def __init__(self, scheduler_id: str) -> None:
        super().__init__(
            f"The scheduler {scheduler_id} has lost its lease: another one may run what it ran. Start anew."
        )
        self.scheduler_id = scheduler_id


class Standstill(AsynschedError):
    """Runs are active, and none of them goes on unless somebody does something."""

    def __init__(self, reasons: str) -> None:
        super().__init__(f"No active run can go on. {reasons}. `asynsched why DAG RUN` tells more.")
        self.reasons = reasons


class NotServing(AsynschedError, RuntimeError):
    """A scheduler was used that does not serve yet, or no more."""


class SimulationStalled(AsynschedError):
    """Everything in a simulation waits for something that no timer will bring."""

    def __init__(self) -> None:
        super().__init__("The simulation has stalled: everything waits, and no timer is set")


class InvalidTransition(AsynschedError):
    """A state change that the table in states.py does not have. This is a bug of asynsched."""

    def __init__(self, what: str, before: object, after: object) -> None:
        super().__init__(f"illegal change of a {what}: {before or 'no state'} -> {after or 'no state'}")
        self.before = before
        self.after = after


def only_cause(error: BaseException) -> BaseException:
    """Return what an exception group wraps, where it is one error; else the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
