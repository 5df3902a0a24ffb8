"""The parts of the program that the simulation replaces: threads, sockets, processes, random numbers, logs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import anyio.to_thread
import msgspec
import structlog
from anyio._backends._asyncio import CancelScope

from asynsched import assembly, clock, scheduler
from asynsched.assembly import Foundation
from asynsched.executors import local
from asynsched.executors.tokens import host_key
from asynsched.housekeeping import notification_listener
from asynsched.lease import held_lease
from asynsched.parsing import dispatcher
from asynsched.scheduling import storing, triggerer
from asynsched.scheduling import transfers as run_transfers
from asynsched.scheduling.creation import dagrun_creator
from asynsched.scheduling.requests import run_requests
from asynsched.web import workers
from asynsched.worker import agent, logs
from sandbox import trigger_host
from tests.faults.simulated.dag_folder import ScriptedParser
from tests.faults.simulated.loop import PROCESS
from tests.faults.simulated.trigger_hosts import log_of

NOTIFYING = (held_lease, dagrun_creator, run_requests, run_transfers, storing, workers)
"""The modules that notify other schedulers. The command line does so, too, and is not simulated."""


@contextmanager
def exchanged(exploration: Any) -> Iterator[None]:
    """Replace the real world by the simulated one for the program."""

    def connect(home: Path) -> Any:
        return exploration.machine_of(home).connect()

    def start_keeper(home: Path, _settings: Any, **_: Any) -> None:
        exploration.machine_of(home).start_keeper()

    async def run_sync(function: Any, *args: Any, **_: Any) -> Any:
        return await exploration.loop.run_in_executor(None, function, *args)

    def assembled(base: Foundation, **options: Any) -> Any:
        return exploration.site_of(base.settings.home_path).scheduler.made(base, **options)

    def note(_logger: Any, method: str, event: dict[str, Any]) -> Any:
        process = PROCESS.get()
        said = " ".join(f"{name}={value}" for name, value in event.items() if name not in ("event", "stack", "home"))
        exploration.say("log" if process is None else process.name, f"{method}: {event['event']} {said}")
        raise structlog.DropEvent

    chance, folder = exploration.chance, exploration.folder
    scopes: dict[int, tuple[int, Any]] = {}

    def number(scope: Any) -> int:
        """Hash a scope of anyio by its number: one around it cancels those inside in the order of a set."""
        # With the scope itself, so that no later one is taken for it.
        return scopes.setdefault(id(scope), (len(scopes), scope))[0]

    exchanges = [
        (CancelScope, "__hash__", number),
        (local, "connect", connect),
        (local, "start_keeper", start_keeper),
        (scheduler, "assemble", assembled),
        (notification_listener, "connect", exploration.notifications.connect),
        *((module, "notify", exploration.notifications.notify) for module in NOTIFYING),
        (assembly, "SandboxParser", lambda *_: ScriptedParser(folder)),
        (dispatcher, "look_at", folder.look_at if folder is not None else dispatcher.look_at),
        # The folder of a home has a name of its own in each process, which no trace may depend on.
        (triggerer, "host_key", lambda code: host_key(msgspec.structs.replace(code, dags_folder="dags"))),
        (trigger_host, "log", log_of(exploration)),
        *((module, "run_sync", run_sync) for module in (anyio.to_thread, agent, logs, workers)),
        (clock, "os", SimpleNamespace(urandom=chance.tokens.randbytes)),
        (clock, "random", SimpleNamespace(random=chance.tokens.random)),
    ]
    logging = structlog.get_config()
    with ExitStack() as stack:
        for owner, name, replacement in exchanges:
            stack.enter_context(patch.object(owner, name, replacement))
        stack.callback(structlog.configure, **logging)
        structlog.configure(processors=[note], cache_logger_on_first_use=False)
        yield
