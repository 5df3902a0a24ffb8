"""What the protocol says of deferred tasks, and of the triggers that they wait for.

Values of users travel as `asynsched.authoring.transport` writes them.
"""

from typing import Any, Literal

from msgspec import Struct


def class_name(classpath: str) -> str:
    """Return the name of a trigger's class, for a person: the module of a DAG file has a name that nobody gave it."""
    return classpath.rpartition(".")[2]


class Deferral(Struct, frozen=True, omit_defaults=True):
    """What a task waits for, and how it goes on."""

    classpath: str
    trigger_kwargs: dict[str, Any]
    method_name: str
    method_kwargs: dict[str, Any] = {}
    timeout: float | None = None


class Resume(Struct, frozen=True, omit_defaults=True):
    """The method that a deferred task goes on with, and its arguments, `event` among them, as they were written."""

    method_name: str
    kwargs: dict[str, Any] = {}


class TriggerHost(Struct, frozen=True):
    """What a trigger host is told at its launch. `block_timeout`: longest that a trigger may block the others."""

    block_timeout: float


class TriggerSpec(Struct, frozen=True):
    """A trigger that a host is to run, and the task instance that waits for it. `id`: token of the try."""

    id: str
    classpath: str
    kwargs: dict[str, Any]
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int


class TriggerOutcome(Struct, frozen=True, omit_defaults=True):
    """What became of a trigger: it fired an event, it ended its task, it failed, or it took too long."""

    id: str
    kind: Literal["event", "success", "failed", "skipped", "error", "timeout"]
    payload: Any = None
    xcoms: dict[str, Any] = {}
    detail: str = ""
    traceback: tuple[str, ...] = ()


class TriggerWork(Struct, frozen=True, omit_defaults=True):
    """The answer to `trigger_work`: what to start and to stop since the answer of the number before.

    `session` names the scheduler's memory of the host. With `tell_all`, the host is to say what it runs.
    """

    session: str
    number: int = 0
    start: tuple[TriggerSpec, ...] = ()
    stop: tuple[str, ...] = ()
    tell_all: bool = False
    end: bool = False
