"""The versioned frames between a scheduler, its keeper, and the tries.

A frame (see `asynsched.protocol.frames`) holds one of the structs below, distinguished by `type`. The first frame of a
connection is a Hello in each direction. A reader skips frames and fields that it does not know, so that a keeper of one
version and a scheduler of the next understand each other. Values of users, as in deferrals and trigger arguments,
travel as `asynsched.authoring.transport` writes them.

    scheduler ──Launch, Kill, Acknowledge, LeaseTerm, Reply, Shutdown──▶ keeper ──fork──▶ try
    scheduler ◀──Inventory, Started, Ended, Request──────────────── keeper ◀──frames── try

Instants are aware UTC, lengths are seconds.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

PROTOCOL_VERSION = 1
READY = b"ready"
"""A keeper that accepts connections sends this to the process that started it; anything else is an error."""
LONGEST_REASON = 4096

Role = Literal["scheduler", "lease"]
EndState = Literal["success", "failed", "skipped", "up_for_reschedule", "deferred"]
FailureCause = Literal["task", "machine", "interrupted"]


Instant = Annotated[datetime, Meta(tz=True)]
"""An instant that a try has stamped. User code may write anything: one without an offset is refused."""


class SourceRef(Struct, frozen=True, omit_defaults=True):
    """A source of a version: its path, the name of its module, and the hash of its text."""

    path: str
    module: str
    content_hash: str


class CodeVersion(Struct, frozen=True, omit_defaults=True):
    """The code of one version of a DAG file, which a template loads."""

    version_hash: str
    dags_folder: str
    """Absolute path of the DAG folder; `__file__` of a source is this joined with its path."""
    sources: tuple[SourceRef, ...] = ()
    """The DAG file first."""
    is_plain: bool = False
    """Whether its tasks seem to look at nothing but their arguments (`asynsched.protocol.plainness`)."""
    installation: str = ""
    """Digest of the plugins, policies and helper modules beside the DAG folder: a template has loaded these, too."""


class RunContext(Struct, frozen=True, omit_defaults=True):
    """A task's DagRun."""

    dag_id: str
    run_id: str
    run_type: str
    run_after: datetime
    logical_date: datetime | None = None
    data_interval_start: datetime | None = None
    data_interval_end: datetime | None = None
    queued_at: datetime | None = None
    started_at: datetime | None = None
    conf: dict[str, Any] = {}
    state: str = "running"
    ended_at: datetime | None = None
    partition_key: str | None = None
    partition_date: datetime | None = None


class RaisedException(Struct, frozen=True, omit_defaults=True):
    """An exception of a try, from which another process can create one of the same class and text."""

    module: str
    qualname: str
    message: str
    """Its `str`."""
    arguments: tuple[Any, ...] = ()
    """Its `args` where all of them are plain values of JSON."""


class CausingTry(Struct, frozen=True, omit_defaults=True):
    """The try that a callback is about. That of a DAG's callback names its task instance, with its state."""

    max_tries: int
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exception: RaisedException | None = None
    """The exception that it raised; None if it raised none, or was ended from outside."""
    task_id: str = ""
    map_index: int = -1
    try_number: int = 0
    state: str = ""


class OutletEvent(Struct, frozen=True, omit_defaults=True):
    """A task's addition to the update of one of its outlets, or of an asset that it adds to an alias.

    Other outlets are updated as well.
    """

    name: str = ""
    """Of the asset; empty when it is known by its URI only."""
    uri: str = ""
    extra: dict[str, Any] = {}
    alias: str = ""
    """The alias that the event is added to."""
    group: str = "asset"
    asset_extra: dict[str, Any] = {}
    """Describes the asset, should it be new."""
    partition_key: str = ""
    """Of the event; empty for that of the run."""


def class_name(classpath: str) -> str:
    """Return the name of a trigger's class for people, without the generated module name of a DAG file."""
    return classpath.rpartition(".")[2]


class AwaitedInput(Struct, frozen=True, omit_defaults=True):
    """A person's answer that a task waits for.

    Attributes:
        subject: The question, in one line.
        defaults: The options that hold when the time is over; None: the task fails then.
        params: The values that hold with the defaults, as they were written.
    """

    subject: str
    defaults: tuple[str, ...] | None = None
    params: dict[str, Any] = {}


class Deferral(Struct, frozen=True, omit_defaults=True):
    """The trigger, or the answer, that a task waits for, and the method with which it goes on."""

    classpath: str
    trigger_kwargs: dict[str, Any]
    method_name: str
    method_kwargs: dict[str, Any] = {}
    timeout: float | None = None
    input: AwaitedInput | None = None
    """Instead of a trigger: the answer that the task waits for."""


class Resume(Struct, frozen=True, omit_defaults=True):
    """The method that a deferred task goes on with, and its arguments, `event` among them, as they were written."""

    method_name: str
    kwargs: dict[str, Any] = {}


class TriggerHost(Struct, frozen=True):
    """The launch of a trigger host. `block_timeout`: longest that a trigger may block the others."""

    block_timeout: float


class TriggerSpec(Struct, frozen=True, omit_defaults=True):
    """A trigger that a host is to run, and the task instance that waits for it. `id`: token of the try.

    One that watches assets has a `watcher`, its name for people, and the name and URI of each asset, instead of a task
    instance. It may fire many times.
    """

    id: str
    classpath: str
    kwargs: dict[str, Any]
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    watcher: str = ""
    assets: tuple[tuple[str, str], ...] = ()


class TriggerOutcome(Struct, frozen=True, omit_defaults=True):
    """How a trigger ended: it fired an event, it ended its task, it failed, or it took too long.

    That of a watcher's trigger also has an `event_id` that names this event or failure among others; the kind
    `recovered` says that the trigger has run for a while since it failed.
    """

    id: str
    kind: Literal["event", "success", "failed", "skipped", "error", "timeout", "recovered"]
    payload: Any = None
    xcoms: dict[str, Any] = {}
    detail: str = ""
    traceback: tuple[str, ...] = ()
    event_id: str = ""


class TriggerWork(Struct, frozen=True, omit_defaults=True):
    """The answer to `trigger_work`: the triggers to start and to stop since the answer of the number before.

    `session` names the scheduler's memory of the host. With `tell_all`, the host is to list its triggers. `kill` has
    those triggers in `stop` whose task instances somebody has ended or cleared.
    """

    session: str
    number: int = 0
    start: tuple[TriggerSpec, ...] = ()
    stop: tuple[str, ...] = ()
    kill: tuple[str, ...] = ()
    tell_all: bool = False
    end: bool = False


class LeaseTerm(Struct, frozen=True, tag="lease", omit_defaults=True):
    """Until when the scheduler's lease is valid, on the machine's CLOCK_BOOTTIME, in seconds.

    Tries go on until then and for `grace` seconds more, without any other news of the scheduler. They have `kill_time`
    seconds from then on to end themselves. Others take the runs over a moment after that.
    """

    valid_until: float
    grace: float
    kill_time: float | None = None
    """None: as the keeper was told when it was started."""


class Hello(Struct, frozen=True, tag="hello", omit_defaults=True):
    """First frame of a connection, either way.

    A keeper serves the scheduler with the highest lease epoch that it has heard of, on one connection; a newer one
    takes its place. It refuses an older epoch: it answers with a Hello that names the higher epoch, and hangs up.
    """

    version: int
    pid: int
    scheduler_id: str = ""
    lease_epoch: int = 0
    role: Role = "scheduler"
    """`lease`: a second connection, written by the thread that renews the lease; it carries LeaseTerm frames only."""
    shares_database: bool = False
    """Whether other schedulers may take over the runs of this one, once its lease is over and its tries have ended."""
    lease: LeaseTerm | None = None
    """The lease as it is now. None: it was renewed just now, and a LeaseTerm follows in a moment."""


class Route(Struct, frozen=True):
    """Where a try waits and runs, and how urgent it is: `priority_weight` is the total."""

    pool: str
    pool_slots: int
    queue: str
    executor: str | None
    executor_config: dict[str, Any]
    priority_weight: int


class Launch(Struct, frozen=True, tag="launch", omit_defaults=True):
    """Start a try, once: a token that was launched before is not launched again.

    A launch with `callback` runs callbacks, one with `trigger_host` runs triggers until it is told to end; it has no
    task, and no run.
    """

    token: str
    task_id: str
    map_index: int
    try_number: int
    max_tries: int
    run: RunContext
    code: CodeVersion
    log_path: str
    """Relative to the log folder of the home."""
    execution_timeout: float | None = None
    reschedule_started_at: datetime | None = None
    """When the first process of a task that was rescheduled began."""
    max_map_length: int = 1024
    """How many values the task may return where another one is mapped over them."""
    callback: dict[str, Any] = {}
    """Not empty: run a callback instead of the task (`event`, `reason`)."""
    resume: Resume | None = None
    """Of a task that was deferred: how it goes on."""
    started_at: datetime | None = None
    """When the try of a task that was deferred began."""
    trigger_host: TriggerHost | None = None
    executor: str | None = None
    """The executor that the try names, where there are several."""
    queue: str = "default"
    """Of the try, as are the next fields: an executor may act by them, and the task sees them."""
    pool: str = "default_pool"
    pool_slots: int = 1
    priority_weight: int = 1
    executor_config: dict[str, Any] = {}
    caused_by: CausingTry | None = None
    """Of a task's callback: the try that it is about."""

    @property
    def timeout_reason(self) -> str:
        """The reason of a try that took longer than `execution_timeout`, with the name of the user's setting."""
        name = "callbacks.timeout" if self.callback else "execution_timeout"
        return f"{name} of {self.execution_timeout or 0:g} s is over"


class TaskInstanceFacts(Struct, frozen=True, kw_only=True):
    """What a task can see of its launch and of its end.

    Attributes:
        route: None, as for a callback: what the task itself says.
    """

    map_index: int = -1
    try_number: int = 1
    max_tries: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    reschedule_started_at: datetime | None = None
    max_map_length: int = 1024
    test_mode: bool = False
    route: Route | None = None


class Kill(Struct, frozen=True, tag="kill", omit_defaults=True):
    """End a try: SIGTERM to its group, SIGKILL after the grace. The end is reported as `cause`."""

    token: str
    reason: str
    grace: float = 5.0
    cause: FailureCause = "task"


class Acknowledge(Struct, frozen=True, tag="acknowledge"):
    """The ends of these tries are stored in the database: the keeper may forget them."""

    tokens: tuple[str, ...]


class Shutdown(Struct, frozen=True, tag="shutdown", omit_defaults=True):
    """End every try as interrupted within `grace` seconds, then exit."""

    grace: float = 5.0


class Started(Struct, frozen=True, tag="started"):
    """User code of a try is about to run. Stamped in the try."""

    token: str
    started_at: Instant
    pid: int


class BranchDecision(Struct, frozen=True, tag="branch"):
    """A branch ran: only these direct downstream tasks (or groups' roots) are followed."""

    follow: tuple[str, ...]


class ShortCircuitDecision(Struct, frozen=True, tag="short_circuit"):
    """A short circuit's condition was false: skip the tasks downstream."""

    ignore_downstream_trigger_rules: bool = True


class SkipDecision(Struct, frozen=True, tag="skip"):
    """A task skipped these tasks, which may be anywhere in its run."""

    task_ids: tuple[str, ...]


Decision = BranchDecision | ShortCircuitDecision | SkipDecision
"""A task's decisions about other tasks of its run."""


class Ended(Struct, frozen=True, tag="ended", omit_defaults=True):
    """A try ended. `started_at` and `ended_at` are stamped in the try where it lived to do so."""

    token: str
    state: EndState
    ended_at: Instant
    started_at: Instant | None = None
    reason: str = ""
    """One line for the user: the exception, the exit code, the signal."""
    retry: bool = True
    """False: the task, or its retry policy, asked to fail without a retry."""
    cause: FailureCause = "task"
    return_value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """JSON of the value returned, for XCom `return_value`; absent: None was returned, or nothing is pushed."""
    decision: Decision | None = None
    reschedule_at: Instant | None = None
    deferral: Deferral | None = None
    """Of a task that is deferred."""
    rendered_map_index: str | None = None
    rendered_fields: str | None = None
    """JSON of the template fields, if a template was rendered in them."""
    result_length: int | None = None
    """The number of values that `expand` over the result would give, -1 if it is not a list or dict."""
    retry_delay: float | None = None
    """How long the task's retry policy wants a retry to wait, seconds; None: as the task's settings say."""
    exception: RaisedException | None = None
    outlet_events: tuple[OutletEvent, ...] = ()


class Request(Struct, frozen=True, tag="request", omit_defaults=True):
    """A try asks for, or stores, something of its own run.

    `asynsched.authoring.supervisor` lists the operations and their arguments.
    Those of a trigger host: `trigger_work` (session, number, running) waits for news, and its answer is a TriggerWork;
    `trigger_outcomes` (outcomes) is answered when they are stored.
    """

    token: str
    request_id: int
    operation: Annotated[str, Meta(max_length=100)]
    arguments: dict[str, Any] = {}


class Reply(Struct, frozen=True, tag="reply", omit_defaults=True):
    """The answer to a Request: a value, or an error in one line."""

    token: str
    request_id: int
    value: Any = None
    found: bool = True
    error: str = ""


class Inventory(Struct, frozen=True, tag="inventory"):
    """The tries of a keeper. It follows the Hello, after every Ended that is not acknowledged."""

    running: tuple[Started, ...]
    """Tries whose user code has begun."""
    starting: tuple[str, ...]
    """Tokens whose try has not begun yet."""
    lease_until: float | None = None
    """When the keeper's lease ends, on CLOCK_BOOTTIME; None: the keeper is of an earlier version."""


ToKeeper = Hello | Launch | Kill | Acknowledge | LeaseTerm | Shutdown | Reply
FromKeeper = Hello | Inventory | Started | Ended | Request
