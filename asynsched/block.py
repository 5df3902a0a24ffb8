"""`async with Scheduler(…)`: a scheduler serves while a block of a program runs."""

import asyncio
from typing import TYPE_CHECKING, Any

import anyio

from asynsched.errors import NotServing, only_cause
from asynsched.loggers import get_logger

if TYPE_CHECKING:
    from asynsched.scheduler import Scheduler

log = get_logger(__name__)


class Block:
    """The block of a program, and the task in which the scheduler serves meanwhile.

    The task that ends the block may be another one than the task that began it, as in fixtures and notebooks. So no
    scope is open in between: an error of the scheduler cancels the task that began the block, as a timeout would.
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler = scheduler
        self._serving: asyncio.Task[None]
        self._scope_of_serving = anyio.CancelScope()
        self._host: asyncio.Task[Any] | None = None
        """The task that began the block, until its end."""
        self._n_cancellations = 0
        """Requests to cancel that task, as the block began."""
        self._has_cancelled_host = False

    async def begin(self) -> None:
        """Return once it serves. Raises the errors of `serve`."""
        self._serving = asyncio.create_task(self._serve(), name="scheduler")
        started = asyncio.create_task(self._scheduler.started.wait())
        try:
            await asyncio.wait((self._serving, started), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._scope_of_serving.cancel()
            await self._until_over()
            if (failure := self._failure()) is None:
                raise
            raise failure from failure.__cause__
        finally:
            started.cancel()
        if self._serving.done() and (failure := self._failure()):
            raise failure from failure.__cause__
        self._host = asyncio.current_task()
        self._n_cancellations = 0 if self._host is None else self._host.cancelling()
        self._serving.add_done_callback(self._note_end)

    async def _serve(self) -> None:
        with self._scope_of_serving:
            await self._scheduler.serve()

    def _note_end(self, _: "asyncio.Task[None]") -> None:
        """Cancel the block if an error has ended the scheduler; log the error if no task is left to be cancelled."""
        failure = self._failure()
        if failure is None or self._host is None:
            return
        self._has_cancelled_host = self._host.cancel()
        if not self._has_cancelled_host:
            log.error("scheduler.failed", exc_info=failure)

    async def end(self, error: BaseException | None) -> None:
        """Stop gently, or at once for an error of the block. Raises the error of the scheduler that is the reason."""
        host, self._host = self._host, None
        if self._has_cancelled_host and host is not None and host is asyncio.current_task():
            is_cancelled_by_others = host.uncancel() > self._n_cancellations
            if isinstance(error, asyncio.CancelledError) and not is_cancelled_by_others:
                error = None
        if error is None:
            self._scheduler.request_stop()
        else:
            self._scope_of_serving.cancel()
        cancelled = await self._until_over()
        failure = self._failure()
        if failure is None or (self._serving.cancelled() and isinstance(error, asyncio.CancelledError)):
            if cancelled is not None:
                raise cancelled
        elif error is None or _tells_only_of_an_end(error):
            raise failure from failure.__cause__
        elif error is not failure:
            raise BaseExceptionGroup("errors of a block and of the scheduler in it", [error, failure])

    def _failure(self) -> BaseException | None:
        """Return the error that has ended the scheduler."""
        if self._serving.cancelled():
            return NotServing("The task in which the scheduler served was cancelled.")
        failure = self._serving.exception()
        return None if failure is None else only_cause(failure)

    async def _until_over(self) -> asyncio.CancelledError | None:
        """Wait until the scheduler has ended: at once if this is cancelled. Returns that cancellation."""
        cancelled = None
        with anyio.CancelScope() as scope:
            while not self._serving.done():
                try:
                    await asyncio.wait((self._serving,))
                except asyncio.CancelledError as exc:
                    cancelled, scope.shield = exc, True
                    self._scope_of_serving.cancel()
        return cancelled


def _tells_only_of_an_end(error: BaseException) -> bool:
    """Whether an error of a block may say only that the scheduler has ended, or that the block was cancelled."""
    kinds = (NotServing, asyncio.CancelledError)
    if isinstance(error, BaseExceptionGroup):
        return error.split(kinds)[1] is None
    return isinstance(error, kinds)
