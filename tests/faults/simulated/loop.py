"""An event loop in virtual time that runs ready callbacks in a random order, and can stop or end a process.

A *process* is everything that was begun in its context: tasks, callbacks, timers. While it is stopped none of it runs,
as after SIGSTOP. When it is killed its tasks are cancelled, and nothing that they still do has an effect.
"""

import asyncio
import contextvars
import heapq
import inspect
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from asynsched.clock import VirtualClock
from asynsched.errors import SimulationStalled
from asynsched.simulation.simulation import TIMER_RESOLUTION, VirtualLoop


class Process:
    """The tasks, callbacks and timers that are stopped and killed together.

    Args:
        name: Shown in the trace.
        crash: Has it die, at a moment that is told.

    Attributes:
        signal_handlers: Its handler of each signal, if it has set one.
    """

    def __init__(self, name: str, crash: Callable[[str], None] | None = None) -> None:
        self.name = name
        self.crash = crash
        self.signal_handlers: dict[int, Callable[[], Any]] = {}
        self.is_stopped = False
        self.is_dead = False
        self.lease_epoch: int | None = None
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def start(self, work: Any, name: str) -> "asyncio.Task[Any]":
        """Begin its main task."""
        return asyncio.get_running_loop().create_task(work, name=name, context=self.context)

    def kill(self) -> None:
        """End everything of it, as soon as the current callback has returned."""
        was_stopped, self.is_dead, self.is_stopped = self.is_stopped, True, False
        self.bury()
        if was_stopped:
            # A task whose wake-up is held back would never end, and its scope would cancel it for ever.
            loop = asyncio.get_running_loop()
            assert isinstance(loop, ShuffledLoop)
            loop.resume_stopped()

    def bury(self) -> None:
        """Cancel the rest of it, without its cleanup: a killed process does none."""
        for task in [task for task in self.tasks if task.done()]:
            del self.tasks[task]
        for task in self.tasks:
            # One that has not begun would leave its coroutine behind, unawaited.
            if inspect.getcoroutinestate(task.get_coro()) != inspect.CORO_CREATED:
                task.cancel()


class NotYet(Exception):
    """Raised by a function that would block in a thread: call it again a little later."""

    AGAIN_SECONDS = 0.2


MOST_AT_ONCE = 100_000
"""Callbacks between two leaps of time; a seed has some hundreds at most. More are a loop without an end."""


class TimeStandsStill(Exception):
    """Callbacks follow each other for ever, and no time passes."""


class NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where it is in memory: a scope cancels its tasks in that order."""

    _numbers = count()

    def __init__(self, *args: Any, **options: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
NOBODY = contextvars.Context()
"""The context of everything outside of processes: the world."""


class ShuffledLoop(VirtualLoop):
    """Runs one ready callback after the other, each time one that was drawn.

    Attributes:
        after_step: Called after each callback, with the process that it belongs to.
        before_leap: Called when nothing is ready, before time goes on.
    """

    def __init__(self, clock: VirtualClock, random: Random) -> None:
        super().__init__(clock)
        self._random = random
        NumberedTask._numbers = count()
        self.set_task_factory(lambda loop, coro, **options: NumberedTask(coro, loop=loop, **options))
        self._held: list[asyncio.Handle] = []
        self.n_steps = 0
        self._n_at_once = 0
        self.after_step: Callable[[Process | None], None] = lambda _: None
        self.before_leap: Callable[[], None] = lambda: None

    def resume_stopped(self) -> None:
        """Make the callbacks of a stopped process ready again; the others are held back once more."""
        self._ready.extend(self._held)
        self._held.clear()

    def create_task(self, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        """Begin a task, and note whose it is."""
        task = super().create_task(coro, **options)
        context = options.get("context")
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks[task] = None
        return task

    def run_in_executor(self, _executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """Call a function as if in a thread: not at once, and in no thread."""
        future = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                value = func(*args)
            except NotYet:
                self.call_later(NotYet.AGAIN_SECONDS, call)
            except Exception as exc:  # noqa: BLE001 - the awaiting task gets it
                future.set_exception(exc)
            else:
                future.set_result(value)

        self.call_soon(call)
        return future

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:
        """Set the current process's handler of a signal."""
        process = PROCESS.get()
        assert process is not None
        process.signal_handlers[sig] = lambda: callback(*args)

    async def create_connection(self, protocol_factory: Any, *, sock: Any) -> Any:
        """Connect a protocol to a simulated stream."""
        protocol = protocol_factory()
        sock.attach(protocol)
        return sock, protocol

    def _run_once(self) -> None:
        if not self._ready:
            self._n_at_once = 0
            self.before_leap()
            self._leap()
        self._take_due()
        handle = self._draw()
        if handle is None or handle._cancelled:
            return
        self.n_steps += 1
        self._n_at_once += 1
        handle._run()
        process = handle._context.get(PROCESS)
        if process is not None and process.is_dead:
            process.bury()
        self.after_step(process)
        if self._n_at_once == MOST_AT_ONCE:
            raise TimeStandsStill(f"{MOST_AT_ONCE} callbacks have run, and no time has passed")

    def _leap(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(self._scheduled)._scheduled = False
        if not self._ready:
            if not self._scheduled:
                raise SimulationStalled
            self._virtual_clock.leap(self._scheduled[0]._when - self.time())
            while self.time() < self._scheduled[0]._when:
                # A sum of floats may stop short of it, and a timer that is called too early sets itself again.
                self._virtual_clock.leap(TIMER_RESOLUTION)

    def _take_due(self) -> None:
        while self._scheduled and self._scheduled[0]._when <= self.time():
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            else:
                self._ready.append(timer)

    def _draw(self) -> asyncio.Handle | None:
        """Take one of the ready callbacks, or set it aside where its process is stopped."""
        if not self._ready:
            return None
        if len(self._ready) > 1:
            self._ready.rotate(-int(self._random.random() * len(self._ready)))
        handle = self._ready.popleft()
        process = handle._context.get(PROCESS)
        if process is not None and process.is_stopped:
            self._held.append(handle)
            return None
        return handle
