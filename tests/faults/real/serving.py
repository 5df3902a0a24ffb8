"""Schedulers that are started again whenever they have ended, and the end of each."""

import random
import re
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.up import Site

CLEAN_STOP_SECONDS = 60.0
MOST_COMPLAINTS = 20
MOST_WORDS = 6000
NOT_ITS_FAULT = re.compile("database .* cannot be (used|reached)|Error: the keeper .*(without a word|hung up|is gone)")
"""Why a scheduler may end as it starts: its database was away, or each keeper that it started was killed."""


@dataclass
class Served:
    """The schedulers of one home, one after another."""

    site: Site
    chance: random.Random
    longest_pause: float
    """How long the home is without a scheduler at most, seconds."""
    process: "subprocess.Popen[bytes] | None" = None
    n_starts: int = 0
    exits: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    _may_exit: set[int] = field(default_factory=set)
    _rests: bool = False
    _start_at: float = 0.0
    _log_begins_at: int = 0

    @property
    def pid(self) -> int | None:
        """The process of the scheduler, None while there is none."""
        return None if self.process is None else self.process.pid

    @property
    def is_serving(self) -> bool:
        """Whether a scheduler is there, and has started."""
        if self.process is None:
            return False
        with self._log.open("rb") as file:
            file.seek(self._log_begins_at)
            return b"scheduler.started" in file.read()

    def tend(self) -> None:
        """Take note of a scheduler that has ended, and start the next one when that is due."""
        if self.process is not None and (code := self.process.poll()) is not None:
            self._ended(code)
        if self.process is None and time.monotonic() >= self._start_at:
            self._start()

    def will_stop(self) -> None:
        """Take note that the scheduler was told to end in a clean way."""
        if self.process is not None:
            self._may_exit.add(self.process.pid)

    def will_rest(self) -> None:
        """Leave this home without a scheduler for as long as possible, once its scheduler has ended."""
        self._rests = True

    def stop(self) -> None:
        """Stop the scheduler for good, in a clean way; complain when it does not."""
        if self.process is None:
            return
        self.will_stop()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(CLEAN_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.complaints.append(f"a scheduler did not stop within {CLEAN_STOP_SECONDS:g} s:\n{self.last_words()}")
            self.process.kill()
            code = self.process.wait()
        self._ended(code)

    def last_words(self) -> str:
        """Return the last log lines of this home's scheduler, present or last."""
        return last_of(self._log, self._log_begins_at)

    @property
    def _log(self) -> Path:
        return self.site.root / f"up-{self.site.home_name}.log"

    def _start(self) -> None:
        with self._log.open("ab") as output:
            self._log_begins_at = output.tell()
            self.process = subprocess.Popen(
                self.site.command("up", str(self.site.dags)), cwd=self.site.root, env=self.site.environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.n_starts += 1

    def _ended(self, code: int) -> None:
        assert self.process is not None
        was_asked = self.process.pid in self._may_exit
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self.exits[how] += 1
        if not self._is_fine(how, was_asked=was_asked) and len(self.complaints) < MOST_COMPLAINTS:
            asked = "though it was asked to stop" if was_asked else "without a request"
            self.complaints.append(f"a scheduler ended with {how}, {asked}:\n{self.last_words()}")
        self.process = None
        pause = self.longest_pause if self._rests else self.chance.choice([0.0, 0.0, 0.0, 0.5, self.longest_pause])
        self._rests = False
        self._start_at = time.monotonic() + pause

    def _is_fine(self, how: str, *, was_asked: bool) -> bool:
        if was_asked and how in {"exit code 0", "SIGTERM"}:
            # Before it listens to it, SIGTERM ends it as it ends any process.
            return True
        words = self.last_words()
        if was_asked and "second signal" in words:
            return True
        lost_lease = "lease.lost" in words
        could_not_start = "scheduler.started" not in words and NOT_ITS_FAULT.search(words) is not None
        return how == "SIGKILL" or lost_lease or could_not_start


def last_of(log: Path, begins_at: int = 0) -> str:
    """Return the last characters of a log, of those from a byte on."""
    with log.open("rb") as file:
        file.seek(max(begins_at, file.seek(0, 2) - MOST_WORDS))
        return file.read().decode(errors="replace")
