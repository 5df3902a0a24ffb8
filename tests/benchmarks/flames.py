"""Flame graphs: py-spy beside a workload, on the processes of a system, written as SVG."""

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.benchmarks.systems import System

LOOK_SECONDS = 0.1
RATE = 200
"""Samples a second."""
LEADERS = ("asynsched", "asynsched: keeper", "asynsched: parse server")
"""The parts of a command line that select a process to record, together with its children."""


@contextmanager
def recorded(system: System, folder: Path | None, name: str) -> Iterator[None]:
    """Record the system's processes as they start, until the end of the block; None: do not."""
    if folder is None:
        yield
        return
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    if spy is None:
        raise SystemExit("Flame graphs are recorded by py-spy: python -m pip install -e '.[benchmark]'")
    folder.mkdir(parents=True, exist_ok=True)
    recorder = _Recorder(system, spy, folder, name)
    recorder.start()
    try:
        yield
    finally:
        recorder.stop()


class _Recorder:
    """Starts a py-spy for each leader that appears."""

    def __init__(self, system: System, spy: str, folder: Path, name: str) -> None:
        self._system, self._spy, self._folder, self._name = system, spy, folder, name
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._spies: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        for each in self._spies.values():
            each.send_signal(signal.SIGINT)
        for each in self._spies.values():
            each.wait()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            for process in self._system.processes():
                leader = self._leader(process)
                if leader and process.pid not in self._spies:
                    output = self._folder / f"{self._name}-{leader.rpartition(' ')[2]}-{process.pid}.svg"
                    command = [self._spy, "record", "--rate", str(RATE), "--nonblocking", "--output", str(output)]
                    self._spies[process.pid] = subprocess.Popen(
                        [*command, "--pid", str(process.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                    )

    @staticmethod
    def _leader(process: psutil.Process) -> str:
        try:
            words = process.cmdline()
            if process.ppid() and psutil.Process(process.ppid()).cmdline() == words:
                return ""  # a fork of one that is recorded
        except psutil.Error:
            return ""
        return next((leader for leader in LEADERS if leader in words), "")
