"""Programs that a task starts, and the environment that they get."""

from __future__ import annotations

import os
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


@contextmanager
def patch_environ(new_env_variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables in the block, and restore the earlier ones afterwards."""
    before = {name: os.environ.get(name) for name in new_env_variables}
    os.environ.update(new_env_variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def execute_in_subprocess(cmd: list[str], cwd: str | None = None, env: dict[str, str] | None = None) -> None:
    """Run a program, and log its output line by line. Raises CalledProcessError if it fails."""
    execute_in_subprocess_with_kwargs(cmd, cwd=cwd, env=env)


def execute_in_subprocess_with_kwargs(cmd: list[str], **kwargs: Any) -> None:
    """Run a program as `execute_in_subprocess` does, with further arguments of `subprocess.Popen`."""
    import logging
    import shlex
    import subprocess

    log = logging.getLogger(__name__)
    log.info("Running %s", shlex.join(cmd))
    with subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **kwargs) as process:  # noqa: S603
        assert process.stdout is not None
        for line in process.stdout:
            log.info("%s", line.decode(errors="backslashreplace").rstrip())
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, cmd)


def set_new_process_group() -> None:
    """Make this process the leader of a process group of its own, unless it leads a session."""
    if os.getpid() != os.getsid(0):
        os.setpgid(0, 0)
