"""A limit of time for a part of a task: `with timeout(seconds=10): ...`."""

from __future__ import annotations

import os

from asynsched.authoring.exceptions import AsynschedTaskTimeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class timeout:  # noqa: N801 - Airflow's name
    """Within `with`, raise AsynschedTaskTimeout when the time is over.

    It needs the main thread; in others it does nothing, and logs that.

    Args:
        seconds: The limit.
        error_message: The exception's message; the process's number is added.
    """

    def __init__(self, seconds: float = 1, error_message: str = "Timeout") -> None:
        self.seconds = seconds
        self.error_message = f"{error_message}, PID: {os.getpid()}"
        self._before: Any = None

    def handle_timeout(self, _number: int, _frame: object) -> None:
        """Raise AsynschedTaskTimeout."""
        raise AsynschedTaskTimeout(self.error_message)

    def __enter__(self) -> timeout:
        import signal

        try:
            self._before = signal.signal(signal.SIGALRM, self.handle_timeout)
        except ValueError:
            import logging

            logging.getLogger(__name__).warning("timeout() has no effect outside of the main thread")
        else:
            signal.setitimer(signal.ITIMER_REAL, self.seconds)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            return
        import signal

        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)
