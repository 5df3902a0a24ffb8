"""Loads one version of a DAG file in a process that runs tries: its DAGs, or the reason for their absence."""

import gc
import hashlib
import importlib
import os
import pkgutil
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import NamedTuple

import asynsched.authoring
from asynsched.airflow import installation
from asynsched.authoring.active import forget_registered
from asynsched.authoring.dag import DAG, collect_dags
from asynsched.authoring.exceptions import AsynschedException
from asynsched.authoring.running.tracebacks import one_line, user_frames
from asynsched.authoring.supervisor import SupervisorError
from asynsched.authoring.xcom import xcom_class
from asynsched.errors import AsynschedError
from asynsched.protocol.home_files import lay_out_source, read_source
from asynsched.protocol.messages import CodeVersion
from sandbox.sources.local_imports import install_version

Ask = Callable[[str], str]
"""Returns the text with a content hash, from the database. Raises SupervisorError."""


class SourceDamagedError(AsynschedError):
    """A source of a version is missing or damaged. Nothing of the version was imported."""


class LoadedFile(NamedTuple):
    """A version's DAGs by their dag_id; or a reason in one line, with a traceback to be logged.

    `is_damaged`: a source of it is wrong or missing, so that nothing was imported.
    """

    dags: dict[str, DAG]
    reason: str = ""
    traceback: str = ""
    is_damaged: bool = False


def load_version(
    code: CodeVersion, sources_folder: Path, ask: Ask | None = None, begin: Callable[[str], object] = lambda _: None
) -> LoadedFile:
    """Import a version of a DAG file. An exception of its code becomes the reason.

    The version without sources, which runs asynsched's own triggers, has no DAGs. `ask` asks the database for a source
    that is damaged or missing in its folder. `begin` is told each plugin before its code runs.
    """
    if not code.sources:
        return LoadedFile({})
    process = os.getpid()
    path = code.sources[0].path
    try:
        texts = _read_sources(sources_folder, code, ask)
    except SourceDamagedError as exc:
        return LoadedFile({}, f"{path} cannot be loaded: {exc}", is_damaged=True)
    forget_registered()
    try:
        module = install_version(code, texts.__getitem__, partial(installation.load, begin=begin))
        dags = list(installation.admitted(collect_dags(module)))
    except BaseException as exc:  # noqa: BLE001 - SystemExit and KeyboardInterrupt of user code included
        text = "".join(traceback.format_exception(type(exc), exc, user_frames(exc)))
        return LoadedFile({}, f"{path} cannot be imported: {one_line(exc)}", text)
    finally:
        if os.getpid() != process:
            # The file has forked, and this is the wrong process.
            os._exit(0)
    _load_what_tasks_need(dags)
    return LoadedFile({dag.dag_id: dag for dag in dags})


def _read_sources(folder: Path, code: CodeVersion, ask: Ask | None) -> dict[str, str]:
    """Return the texts of a version by their content hash, and replace the files that were wrong.

    Raises SourceDamagedError for one that is damaged or missing, and that the database does not give.
    """
    texts: dict[str, str] = {}
    for ref in code.sources:
        try:
            texts[ref.content_hash] = read_source(folder, ref.content_hash)
        except (OSError, ValueError) as exc:
            wrong = f"the source {folder / ref.content_hash}.py of {ref.path} cannot be used: {exc}"
            if ask is None:
                raise SourceDamagedError(wrong) from exc
            texts[ref.content_hash] = _mended(folder, ref.content_hash, ask, wrong, code)
    return texts


def _mended(folder: Path, content_hash: str, ask: Ask, wrong: str, code: CodeVersion) -> str:
    try:
        text = ask(content_hash)
    except SupervisorError as exc:
        missing = f"the database does not give it either ({exc})"
    else:
        if hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() == content_hash:
            with suppress(OSError):  # this process has it; the next one asks again
                lay_out_source(folder, content_hash, text)
            return text
        missing = "the copy in the database is damaged, too"
    version = f" It belongs to the version {code.version_hash[:12]}." if code.version_hash else ""
    raise SourceDamagedError(
        f"{wrong}; {missing}.{version} If the file is unchanged, run `asynsched dags reparse DAG_ID` and clear the"
        " task; else trigger a new run, which has the file as it is now."
    )


def _load_what_tasks_need(dags: Iterable[DAG]) -> None:
    """Import asyncio, which weighs on every fork, once for all tries if a task is a coroutine function.

    The same for the class that writes and reads XComs, if it is not asynsched's own.
    """
    functions = (getattr(task, "python_callable", None) for dag in dags for task in dag.tasks)
    if any(map(iscoroutinefunction, functions)):
        importlib.import_module("asyncio")
    with suppress(AsynschedException):  # the task that needs the class of XComs says what is wrong
        xcom_class()


_FOR_FEW = frozenset({"asynsched.authoring.triggers.shared_stream", "asynsched.authoring.json_schemas"})
"""Modules that load asyncio or jsonschema, which weigh on every fork; few DAG files need them."""


def import_authoring(others: Iterable[str]) -> None:
    """Import everything that a DAG file can use of asynsched, and other modules, once for all forks."""
    for module in pkgutil.walk_packages(asynsched.authoring.__path__, "asynsched.authoring."):
        if module.name not in _FOR_FEW:
            importlib.import_module(module.name)
    for name in others:
        importlib.import_module(name)


def freeze_heap() -> None:
    """Keep the garbage collector from writing to the objects of now, so that forks share their memory."""
    gc.collect()
    gc.freeze()
