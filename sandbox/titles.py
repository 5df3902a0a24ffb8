"""The title of each process that runs user code in `ps`: its purpose, in place of its ancestor's command.

A title overwrites the command in the process's own memory, and nothing else. `setproctitle` would overwrite the
environment, too, by which `sandbox.supervision.lifeline` finds processes that a keeper has left behind. Linux only.
"""

import os
import sys

from asynsched.protocol.messages import CodeVersion, Launch
from sandbox.confinement import kernel

_PREFIX = "asynsched: "
_LONGEST = 60
"""Characters of one id or path in a title."""

_place = b""


def set_title(title: str, *place: str) -> None:
    """Give this process a title, cut to the available room.

    Args:
        title: Must not contain secrets: every user of the machine may read it.
        place: An option that names the home or the DAG folder, and its value. Forks of this process keep it.
    """
    global _place
    if place:
        _place = b"".join(os.fsencode(word) + b"\0" for word in place)
    if sys.platform == "linux":
        shown = title if title.isprintable() else "".join(filter(str.isprintable, title))
        kernel.write_arguments(f"{_PREFIX}{shown}".encode("utf-8", "replace"), _place)


def of_template(code: CodeVersion) -> str:
    """Return the title of a process that has a version of a DAG file loaded."""
    return f"template of {_file(code)}"


def of_ready_process(code: CodeVersion) -> str:
    """Return the title of a process that waits for a launch, and may have to load the file first."""
    return f"ready for a task of {_file(code)}"


def of_launch(launch: Launch) -> str:
    """Return the title of the process of a launch."""
    if launch.trigger_host is not None:
        return f"triggers of {_file(launch.code)}"
    task = _cut(launch.run.dag_id)
    if launch.task_id:
        task += f".{_cut(launch.task_id)}" if launch.map_index < 0 else f".{_cut(launch.task_id)}[{launch.map_index}]"
    what = "callback" if launch.callback else f"try {launch.try_number}"
    return f"{what} of {task}, run {_cut(launch.run.run_id)}"


def of_parse(path: str) -> str:
    """Return the title of a process that runs a DAG file to find its DAGs."""
    return f"parse of {_cut(path)}"


def of_test(dag_id: str) -> str:
    """Return the title of a run in the foreground."""
    return f"test of {_cut(dag_id)}"


def _file(code: CodeVersion) -> str:
    return _cut(code.sources[0].path) if code.sources else "no file"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
