"""A program that embeds a scheduler: its folder of DAG files, its home, and its remains."""

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from asynsched.settings import Settings
from tests.support.up import UNSYNCED

HANGS = "HANGS"
"""Environment variable that names the file into which a task that hangs writes its process id."""


@dataclass
class Program:
    """Where a program and its scheduler are."""

    root: Path

    @property
    def dags(self) -> Path:
        return self.root / "dags"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def hangs(self) -> Path:
        return self.root / "hangs"

    def write(self, text: str, name: str = "all.py") -> None:
        """Write a DAG file; its text may be indented."""
        self.dags.mkdir(exist_ok=True)
        (self.dags / name).write_text(textwrap.dedent(text))

    def options(self, **settings: Any) -> dict[str, Any]:
        """Return the arguments of its Scheduler."""
        own = {"home": str(self.home), "shutdown_grace": 0.2, "sqlite_synchronous": UNSYNCED}
        return {"dags": self.dags, "settings": Settings(**own | settings)}

    def hanging_pid(self) -> int:
        """Return the process id of the task that hangs, 0 before there is one."""
        return int(self.hangs.read_text() or 0) if self.hangs.exists() else 0

    def processes(self, *words: str) -> list[psutil.Process]:
        """Return the processes that its scheduler has started, and that are left; all words are in their commands."""
        named = [(process, " ".join(process.info["cmdline"] or [])) for process in psutil.process_iter(["cmdline"])]
        return [process for process, command in named if all(word in command for word in (str(self.root), *words))]
