"""Lists the plugins and policies of an installation, for `asynsched plugins list` and the scheduler's log.

Started as `python -P -m asynsched.foreground.plugins REQUEST`. It loads them as a task's process would, with the user's
own rights, and writes a JSON list to its standard output; what their code prints goes to standard error.

With a `component`, a scheduler, it stays while listeners hear of the scheduler's start or stop. It calls `on_starting`
at once and `before_stopping` after a line on its standard input, and ends without that call if its input ends: then the
scheduler was killed. It answers the errors of each call in a line of JSON.

A fork does all of this. If it dies or hangs while it loads a plugin, another fork leaves that plugin out, and lists it
as an error. If a second plugin hangs, the list has only the errors.
"""

import mmap
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from getpass import getuser
from pathlib import Path
from typing import NoReturn

import msgspec
from msgspec import Struct

from asynsched.airflow import installation
from asynsched.airflow.finder import serve_airflow
from asynsched.airflow.plugins_manager import IGNORED, USED
from asynsched.airflow.policies import NAMES
from asynsched.authoring.timezone import set_default_timezone
from asynsched.errors import DagError
from sandbox.confine import die_with
from sandbox.processes import configure_logging, flush_streams, signal_name
from sandbox.sources.local_imports import LocalImports

MOST_LATE = 1
"""Plugins that may hang before the loading is given up."""


class ComponentFacts(Struct, frozen=True):
    """The scheduler that the process accompanies, and the folder for the output of listeners."""

    process_id: int
    scheduler_id: str
    hostname: str
    started_at: datetime
    output_folder: str


class PluginsRequest(Struct, frozen=True):
    """Where to look, and the scheduler to accompany, if any."""

    dags_folder: str
    default_timezone: str
    airflow: str
    airflow_options: dict[str, str]
    import_timeout: float
    component: ComponentFacts | None = None


class ListenerErrors(Struct, frozen=True):
    """The end of a hook's call: the errors of listeners, each in one line."""

    hook: str
    errors: list[str]


class PluginRow(Struct, frozen=True):
    """A plugin, the policies, or the reason why a file or package gives none.

    `adds` are the parts that have an effect, `ignored` the parts without one here, and `parts` the names in each part.
    """

    plugin: str
    source: str
    adds: str = ""
    ignored: str = ""
    error: str = ""
    parts: dict[str, list[str]] = {}


def main(request: PluginsRequest) -> NoReturn:
    """Load and list, accompany the scheduler, and never return: threads of plugins are not waited for."""
    if request.component is not None:
        die_with(request.component.process_id)  # also while a hook hangs
    answer = os.dup(1)
    os.dup2(2, 1)
    configure_logging()
    set_default_timezone(request.default_timezone)
    serve_airflow(request.airflow, request.airflow_options)
    LocalImports(Path(request.dags_folder)).install("")
    mark = _Mark()
    deadly: dict[str, str] = {}
    n_late = 0
    while n_late <= MOST_LATE:
        flush_streams()
        owner, pid = os.getpid(), os.fork()
        if not pid:
            die_with(owner)
            _serve(request, answer, mark, deadly)
        with _killed_after(request.import_timeout, pid, mark) as is_late:
            _, status = os.waitpid(pid, 0)
        if not (source := mark.read()) or source in deadly:
            os._exit(0 if status == 0 else 1)
        n_late += is_late.is_set()
        took = f"it takes longer than {request.import_timeout:g} s (parse.import_timeout)"
        deadly[source] = took if is_late.is_set() else f"it ended its process: {_end_of(status)}"
    _write(answer, _left_out(deadly))
    os._exit(0)


@contextmanager
def _killed_after(seconds: float, pid: int, mark: "_Mark") -> Iterator[threading.Event]:
    """Kill a fork that still loads plugins after these seconds of the block, and set the event that this yields."""
    is_late = threading.Event()

    def kill() -> None:
        if mark.read():
            is_late.set()
            os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(seconds, kill)
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()
        timer.join()  # no other thread is there at the next fork


class _Mark:
    """The source of the plugin that a fork is about to load; "" while it loads none."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 4096)

    def write(self, source: str) -> None:
        n_bytes = len(self._shared)
        self._shared[:] = source.encode("utf-8", "surrogateescape")[:n_bytes].ljust(n_bytes, b"\0")

    def read(self) -> str:
        return self._shared[:].rstrip(b"\0").decode("utf-8", "surrogateescape")


def _serve(request: PluginsRequest, answer: int, mark: _Mark, deadly: Mapping[str, str]) -> NoReturn:
    """List the plugins, and tell their listeners of the scheduler. Ends this process.

    Args:
        deadly: The sources of plugins that are left out, with the reasons.
    """
    _write(answer, _listed(mark, deadly))
    if request.component is not None:
        _accompany(request.component, answer)
    os._exit(0)


def _end_of(status: int) -> str:
    number = os.waitstatus_to_exitcode(status)
    return f"exit code {number}" if number >= 0 else signal_name(-number)


def _accompany(facts: ComponentFacts, answer: int) -> None:
    own = installation.loaded
    if own is None or not (heard := own.component_events):
        return
    from asynsched.airflow.listeners import Job  # loads pluggy, as the listeners have done

    component = Job(facts.scheduler_id, facts.hostname, getuser(), facts.started_at)
    if "on_starting" in heard:
        _call(own, "on_starting", component, facts, answer)
    # Threads of `on_starting` live as long as the scheduler.
    if os.read(0, 1) and "before_stopping" in heard:
        _call(own, "before_stopping", component, facts, answer)


def _call(own: installation.Installation, hook: str, component: object, facts: ComponentFacts, answer: int) -> None:
    """Call a hook, with its output in its own file, and answer the errors."""
    folder = Path(facts.output_folder)
    folder.mkdir(parents=True, exist_ok=True)
    output = os.open(folder / f"{hook}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    flush_streams()
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    _write(answer, ListenerErrors(hook, own.tells_of_component(hook, component)))


def _write(answer: int, told: object) -> None:
    flush_streams()
    rest = memoryview(msgspec.json.encode(told) + b"\n")
    while rest:
        rest = rest[os.write(answer, rest) :]


def _listed(mark: _Mark, deadly: Mapping[str, str]) -> list[PluginRow]:
    rows = _left_out(deadly)
    try:
        installation.load(without=deadly, begin=mark.write)
    except DagError as exc:
        rows.append(PluginRow(installation.LOCAL_SETTINGS, "", error=str(exc)))
    own = installation.loaded
    if own is None:
        return rows
    for plugin in own.plugins.plugins:
        adds, ignored = (", ".join(part for part in parts if getattr(plugin, part)) for parts in (USED, IGNORED))
        parts = {part: [_name(one) for one in getattr(plugin, part) or ()] for part in (*USED, *IGNORED)}
        rows.append(PluginRow(str(plugin.name), str(plugin.source), adds, ignored, parts=parts))
    for source, raised in own.plugins.errors.items():
        rows.append(PluginRow("", source, error=f"{type(raised).__name__}: {raised}"))
    found: dict[str, list[str]] = {}
    for name in NAMES:
        for source in own.policies.sources(name):
            found.setdefault(source, []).append(name)
    return rows + [PluginRow("policies", source, ", ".join(names)) for source, names in found.items()]


def _left_out(deadly: Mapping[str, str]) -> list[PluginRow]:
    return [PluginRow("", source, error=reason) for source, reason in deadly.items()]


def _name(part: object) -> str:
    """Return the name of a class, function or module; of another object, that of its class."""
    if isinstance(part, dict):
        return str(part.get("name", ""))
    return str(getattr(part, "__qualname__", None) or getattr(part, "__name__", None) or type(part).__qualname__)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=PluginsRequest))
