"""Interruption of a foreground run by signals, in a process that runs nothing else."""

import os
import signal


class Interruption:
    """Interrupts the run's code by KeyboardInterrupt at the first SIGINT or SIGTERM, and not again: it may clean up.

    Nothing of the run begins after that, also where its code goes on as if nothing had happened.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._has_come = False

    def take_signals(self) -> None:
        """Handle these signals from now on, unless they are ignored. They may have been blocked until now."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come."""
        if self._has_come:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, _frame: object) -> None:
        if os.getpid() != self._process:
            # A process that the task has forked has nothing to clean up, and ends as others do.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        elif not self._has_come:
            self._has_come = True
            raise KeyboardInterrupt
