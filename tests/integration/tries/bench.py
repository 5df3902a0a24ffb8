"""Drives a LocalExecutor with real keepers and real forks, and checks their remains."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psutil

from asynsched.clock import Clock, new_token
from asynsched.executors.base import ExecutorContext, Held
from asynsched.executors.local import LocalExecutor
from asynsched.executors.log_paths import log_path
from asynsched.home import prepare_home
from asynsched.keys import TaskInstanceKey
from asynsched.protocol.messages import CodeVersion, Ended, Launch, Reply, Request, RunContext, SourceRef, Started
from asynsched.protocol.plainness import looks_plain
from asynsched.settings import LeaseSettings, LogSettings, Settings
from sandbox.sources.local_imports import DAG_MODULE_PREFIX
from tests.support.stored import log_file

DEADLINE = 60.0
STAMP = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)\] (.*\n)")
"""A line of a log."""


class Bench:
    """A home, a DAG folder, and the executors that are started on them."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.dags = folder / "dags"
        self.dags.mkdir(parents=True)
        prepare_home(self.home)
        self.settings = Settings(lease=LeaseSettings(kill_time=1.0), log=LogSettings(task_bytes=100_000))
        self.started: dict[str, Started] = {}
        self.ended: dict[str, list[Ended]] = {}
        self.requests: list[Request] = []
        self.answers: dict[str, Callable[[Request], Reply]] = {}
        self.answer_later: dict[str, Callable[[Request], Awaitable[Reply]]] = {}
        self.shares_database = False
        self._changed = asyncio.Event()

    def code(self, text: str, path: str = "dag_file.py") -> CodeVersion:
        """Write a DAG file, store its version as the scheduler does, and return that."""
        (self.dags / path).write_text(text)
        content_hash = hashlib.sha256(text.encode()).hexdigest()
        (self.home / "sources" / f"{content_hash}.py").write_text(text)
        module = f"{DAG_MODULE_PREFIX}{path.removesuffix('.py')}"
        is_plain = looks_plain([text], [module])
        return CodeVersion(content_hash, str(self.dags), (SourceRef(path, module, content_hash),), is_plain=is_plain)

    def launch(self, code: CodeVersion, task_id: str, *, try_number: int = 1, **fields: Any) -> Launch:
        """Return the launch of a task of the DAG `d`."""
        run = RunContext("d", "r", "manual", datetime.now(UTC), conf=fields.pop("conf", {}))
        path = log_path(TaskInstanceKey("d", "r", task_id), try_number)
        return Launch(new_token(), task_id, -1, try_number, 0, run, code, path, **fields)

    def log(self, task_id: str, try_number: int = 1) -> str:
        """Return the log of a try."""
        file = log_file(self.home, TaskInstanceKey("d", "r", task_id), try_number)
        return file.read_text() if file.exists() else ""

    def said(self, task_id: str, try_number: int = 1) -> str:
        """Return the log of a try without the time that begins each of its lines."""
        return "".join(STAMP.fullmatch(line)[2] for line in self.log(task_id, try_number).splitlines(keepends=True))

    def executor(self, kind: type[LocalExecutor] = LocalExecutor) -> LocalExecutor:
        """Return a new executor on this home."""
        clock, shares = Clock(), self.shares_database
        return kind(ExecutorContext(self.home, self.settings, clock, "test", self._report, self._answer, shares))

    @asynccontextmanager
    async def running(self, lease_epoch: int = 1) -> AsyncIterator[LocalExecutor]:
        """Start an executor, and at the end drain it."""
        executor = self.executor()
        await executor.start(lease_epoch)
        try:
            yield executor
            await executor.drain(datetime.now(UTC))
        finally:
            await executor.close()

    async def run(self, executor: LocalExecutor, launch: Launch) -> Ended:
        """Launch a try and return its end."""
        await executor.launch([launch])
        return await self.end_of(launch)

    async def end_of(self, launch: Launch) -> Ended:
        """Wait for the end of a try."""
        await self.until(lambda: launch.token in self.ended, f"the end of {launch.task_id}")
        return self.ended[launch.token][0]

    async def start_of(self, launch: Launch) -> Started:
        """Wait until user code of a try runs."""
        await self.until(lambda: launch.token in self.started, f"the start of {launch.task_id}")
        return self.started[launch.token]

    async def until(self, check: Callable[[], object], what: str) -> None:
        """Wait for something that an event of a try brings about."""
        try:
            async with asyncio.timeout(DEADLINE):
                while not check():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"not within {DEADLINE:g} s: {what}\n{self.keeper_log()}") from None

    def processes(self) -> list[psutil.Process]:
        """Return the keeper, its zygote, its templates and its tries: all have the home on their command line."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(self.home) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def called(self, name: str) -> list[psutil.Process]:
        """Return those of these processes that have this name."""
        found = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):  # a try may have ended meanwhile
                if process.name() == name:
                    found.append(process)
        return found

    def keeper(self) -> psutil.Process:
        """Return the keeper's process: the oldest that is not a child of another one."""
        found: dict[psutil.Process, tuple[int, float]] = {}
        for process in self.processes():
            # Any of them may end just now.
            with suppress(psutil.NoSuchProcess):
                found[process] = process.ppid(), process.create_time()
        pids = {process.pid for process in found}
        # Others may have lost their parent just now.
        return min((one for one in found if found[one][0] not in pids), key=lambda one: found[one][1])

    def children_of_keeper(self) -> tuple[list[psutil.Process], list[psutil.Process]]:
        """Return the plain zygote, if there is one, and the keeper's children beside zygotes: templates, lone tries."""
        keeper = self.keeper().pid
        found: tuple[list[psutil.Process], list[psutil.Process]] = [], []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                if process.ppid() == keeper and process.name() != "zygote-full":
                    found[process.name() != "zygote"].append(process)
        return found

    def end_processes(self) -> None:
        """Kill the processes that a failed test has left."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _report(self, event: Started | Ended) -> None:
        if isinstance(event, Started):
            self.started[event.token] = event
        else:
            self.ended.setdefault(event.token, []).append(event)
        self._changed.set()

    async def _answer(self, request: Request) -> Reply:
        self.requests.append(request)
        self._changed.set()
        if request.operation in self.answer_later:
            reply = await self.answer_later[request.operation](request)
            self._changed.set()
            return reply
        answer = self.answers.get(request.operation)
        return Reply(request.token, request.request_id) if answer is None else answer(request)

    def keeper_log(self) -> str:
        """Return the log of the keeper, its zygotes and templates."""
        return (self.home / "logs" / "keeper.log").read_text()


def value(ended: Ended) -> Any:
    """Return the result of a task."""
    return msgspec.json.decode(ended.return_value) if ended.return_value else None


def replies(answer: Any) -> Callable[[Request], Reply]:
    """Return an answerer that always gives this value."""
    return lambda request: Reply(request.token, request.request_id, answer)


__all__ = ["Bench", "Held", "replies", "timedelta", "value"]
