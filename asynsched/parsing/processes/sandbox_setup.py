"""What every sandbox process that parses is started with: folders, limits, environment; and how one is made to end."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from asynsched.executors.user_environment import user_environment
from asynsched.home import TMP
from asynsched.protocol.parse_setup import ParseLimits, environment_of_parses, home_in
from asynsched.settings import Settings
from asynsched.store.engines.urls import is_postgresql

GUARD_SECONDS = 10.0
"""How much longer than its limit a parse may take to report that it took too long."""
TERM_SECONDS = 8.0
"""How long a parse that is told to end has to kill what it started: more than it takes for that itself."""
HASH_SEED = 0
"""Of the hashes of texts, so that the order of a set alone makes no new version of a DAG."""
FRAMING_BYTES = 1024**2
ESCAPE_FACTOR = 6
"""How much longer a character can be as JSON."""


class SandboxSetup(NamedTuple):
    """What is the same for all parses of a scheduler."""

    dags_folder: Path
    scratch: Path
    limits: ParseLimits
    is_postgresql: bool
    """Whether the scheduler's database is, so that no parse is shown its variables, whatever the settings allow."""

    @property
    def most_bytes(self) -> int:
        """Return the size of the largest report."""
        return ESCAPE_FACTOR * (self.limits.result_bytes + self.limits.output_bytes) + FRAMING_BYTES

    @property
    def longest_seconds(self) -> float:
        """Return how long a parse may take in all, until its guard is taken to hang."""
        return self.limits.timeout + GUARD_SECONDS

    def command(self, module: str, *arguments: str) -> list[str]:
        """Return the command that starts a module of the sandbox."""
        return [
            sys.executable, "-P", "-m", module, *arguments,
            "--dags-folder", str(self.dags_folder),
            "--scratch", str(self.scratch),
            "--limits", msgspec.json.encode(self.limits).decode(),
        ]  # fmt: skip

    def environment(self, hash_seed: int = HASH_SEED) -> dict[str, str]:
        """Return the environment of a process that parses, as of now."""
        shown = user_environment(os.environ, is_postgresql=self.is_postgresql)
        kept = environment_of_parses(shown, self.limits.environment)
        return kept | home_in(str(self.scratch)) | {"PYTHONHASHSEED": str(hash_seed)}


def setup_of(settings: Settings) -> SandboxSetup:
    """Return what parses are started with: paths absolute, the home hidden."""
    values = msgspec.structs.asdict(settings.parse)
    values["readable"] = tuple(str(Path(path).absolute()) for path in settings.parse.readable)
    values["hidden"] = (str(settings.home_path),)
    values["default_timezone"] = settings.default_timezone
    limits = ParseLimits(**{name: values[name] for name in ParseLimits.__struct_fields__})
    return SandboxSetup(settings.dags_path, settings.home_path / TMP, limits, is_postgresql(settings.database_url))


def kill_all(leader: int) -> None:
    """Kill a process and what it has started: the file's code has a process group of its own, which it cannot leave."""
    groups = {leader: None}
    todo = [leader]
    while todo:
        children = _children_of(todo.pop())
        for child in children:
            with suppress(ProcessLookupError):
                groups[os.getpgid(child)] = None
        todo += children
    # The leader goes last: while it lives, nobody else can have been given the number of a group of its children.
    for group in reversed(groups):
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _children_of(pid: int) -> list[int]:
    """Return the children of a process; none when it has ended."""
    with suppress(OSError):
        return [int(pid) for file in Path(f"/proc/{pid}/task").glob("*/children") for pid in file.read_text().split()]
    return []
