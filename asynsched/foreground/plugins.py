"""Lists the plugins and policies of an installation, for `asynsched plugins list` and the scheduler's log.

Started as `python -P -m asynsched.foreground.plugins REQUEST`. It loads them as a task's process would, with the user's
own rights, and writes a JSON list to its standard output; what their code prints goes to standard error.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

import msgspec
from msgspec import Struct

from asynsched.airflow import installation
from asynsched.airflow.finder import serve_airflow
from asynsched.airflow.plugins_manager import IGNORED, USED
from asynsched.airflow.policies import NAMES
from asynsched.authoring.timezone import set_default_timezone
from asynsched.errors import DagError
from sandbox.processes import flush_streams
from sandbox.sources.local_imports import LocalImports


class PluginsRequest(Struct, frozen=True):
    """Where to look."""

    dags_folder: str
    default_timezone: str
    airflow: str
    airflow_options: dict[str, str]


class PluginRow(Struct, frozen=True):
    """A plugin, the policies, or the reason why a file or package gives none.

    `adds` are the parts that have an effect, `ignored` the parts without one here, and `parts` the names in each part.
    """

    plugin: str
    source: str
    adds: str = ""
    ignored: str = ""
    error: str = ""
    parts: dict[str, list[str]] = {}


def main(request: PluginsRequest) -> NoReturn:
    """Load and list, and never return: threads of plugins are not waited for."""
    answer = os.dup(1)
    os.dup2(2, 1)
    set_default_timezone(request.default_timezone)
    serve_airflow(request.airflow, request.airflow_options)
    LocalImports(Path(request.dags_folder)).install("")
    rows = _listed()
    flush_streams()
    os.write(answer, msgspec.json.encode(rows))
    os._exit(0)


def _listed() -> list[PluginRow]:
    rows = []
    try:
        installation.load()
    except DagError as exc:
        rows.append(PluginRow(installation.LOCAL_SETTINGS, "", error=str(exc)))
    own = installation.loaded
    if own is None:
        return rows
    for plugin in own.plugins.plugins:
        adds, ignored = (", ".join(part for part in parts if getattr(plugin, part)) for parts in (USED, IGNORED))
        parts = {part: [_name(one) for one in getattr(plugin, part) or ()] for part in (*USED, *IGNORED)}
        rows.append(PluginRow(str(plugin.name), str(plugin.source), adds, ignored, parts=parts))
    for source, raised in own.plugins.errors.items():
        rows.append(PluginRow("", source, error=f"{type(raised).__name__}: {raised}"))
    found: dict[str, list[str]] = {}
    for name in NAMES:
        for source in own.policies.sources(name):
            found.setdefault(source, []).append(name)
    return rows + [PluginRow("policies", source, ", ".join(names)) for source, names in found.items()]


def _name(part: object) -> str:
    """Return the name of a class, function or module; of another object, that of its class."""
    if isinstance(part, dict):
        return str(part.get("name", ""))
    return str(getattr(part, "__qualname__", None) or getattr(part, "__name__", None) or type(part).__qualname__)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=PluginsRequest))
