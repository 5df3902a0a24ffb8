"""A limit of time for a part of a task: `with timeout(seconds=10): ...`."""

from __future__ import annotations

import os

from asynsched.authoring.exceptions import AsynschedTaskTimeout
from asynsched.authoring.running.execution import interrupted_after

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
        self._limit: Any = None

    def __enter__(self) -> timeout:
        limit = interrupted_after(self.seconds, AsynschedTaskTimeout(self.error_message))
        try:
            limit.__enter__()
        except ValueError:
            import logging

            logging.getLogger(__name__).warning("timeout() has no effect outside of the main thread")
        else:
            self._limit = limit
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._limit is not None:
            self._limit.__exit__(*exc)
