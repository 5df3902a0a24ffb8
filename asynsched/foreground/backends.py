"""Checks at the start of a scheduler that the classes which settings name can be imported: user code, in a process.

Started as `python -P -m asynsched.foreground.backends REQUEST`. It imports them as a task's process would, with the
user's own rights, and writes a JSON list with a problem or "" for each class to its standard output; what their code
prints goes to standard error.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import msgspec
from msgspec import Struct

from asynsched.airflow.finder import serve_airflow
from asynsched.airflow.installation import load, options_of_processes
from asynsched.authoring.class_paths import imported, imported_class
from asynsched.authoring.running.state_backend import BaseStoreBackend
from asynsched.authoring.xcom import BaseXCom
from asynsched.errors import DagError, SettingsError
from asynsched.executors.base import user_environment
from asynsched.loggers import get_logger
from asynsched.protocol.frames import UNDECODABLE
from asynsched.settings import Settings
from asynsched.store.engines.urls import is_postgresql
from sandbox.sources.local_imports import LocalImports

log = get_logger(__name__)
LOADED = b" "
"""Begins the answer once plugins and policies are loaded; white space of JSON."""
_BASES = {"xcom_backend": BaseXCom, "state_store_backend": BaseStoreBackend}


class BackendsRequest(Struct, frozen=True):
    """The classes, by the names of their settings, and where to look for them."""

    classes: dict[str, str]
    dags_folder: str
    airflow: str
    airflow_options: dict[str, str]


def check_backends(settings: Settings) -> None:
    """Import the classes that settings name, in another process. Blocks; starts nothing if no setting names one.

    A plugin that hangs or ends the process is no reason to refuse them: the list of plugins, which the log has, tells
    of it.

    Raises SettingsError for a class that cannot be imported, or is of the wrong kind.
    """
    named = {
        "xcom_backend": settings.xcom_backend,
        "state_store_backend": settings.state_store_backend,
        "secrets.backend": settings.secrets.backend,
    }
    classes = {name: path for name, path in named.items() if path}
    if not classes:
        return
    options = options_of_processes(settings.airflow_options, settings.airflow_cfg_path)
    request = BackendsRequest(classes, str(settings.dags_path), settings.airflow, options)
    arguments = [sys.executable, "-P", "-m", __name__, msgspec.json.encode(request).decode()]
    environment = user_environment(os.environ, is_postgresql=is_postgresql(settings.database_url))
    seconds = settings.parse.import_timeout
    with TemporaryFile() as stderr:  # a process that they start may keep it open
        try:
            done = subprocess.run(  # noqa: S603 - our own interpreter and module
                arguments, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
                check=False, timeout=seconds,
            )  # fmt: skip
            answer, problem = done.stdout, ""
        except subprocess.TimeoutExpired as exc:
            answer, problem = exc.stdout or b"", f"the import takes longer than parse.import_timeout = {seconds:g} s"
        stderr.seek(0)
        said = stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
    if not answer.startswith(LOADED):
        log.warning("settings.not_checked", names=", ".join(classes), reason=problem or "the plugins ended the process")
        return
    try:
        problems = msgspec.json.decode(answer, type=list[str])
    except UNDECODABLE:
        problem = problem or said or "the import has ended its process"
        raise SettingsError(f"{', '.join(classes)}: {problem}") from None
    for name, problem in zip(classes, problems, strict=True):
        if problem:
            raise SettingsError(f"{name}: {problem}")


def _problem_of(name: str, path: str) -> str:
    path = path.replace(":", ".")
    try:
        if name in _BASES:
            imported_class(path, _BASES[name])
        else:
            imported(path)
    except ImportError as exc:
        return str(exc) if name in _BASES else f"{path!r} cannot be imported: {exc}"
    except Exception as exc:  # noqa: BLE001 - user code
        return f"{path!r} cannot be imported: {type(exc).__name__}: {exc}"
    return ""


def main(request: BackendsRequest) -> None:
    """Import the classes, and write the problems."""
    answer = os.dup(1)
    os.dup2(2, 1)
    serve_airflow(request.airflow, request.airflow_options)
    LocalImports(Path(request.dags_folder)).install("")
    with suppress(DagError):  # of policies: the list of plugins, which the log has, tells of it
        load()
    os.write(answer, LOADED)
    problems = [_problem_of(name, path) for name, path in request.classes.items()]
    os.write(answer, msgspec.json.encode(problems))
    sys.stdout.flush()
    os._exit(0)  # not by threads that the classes have started


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=BackendsRequest))
