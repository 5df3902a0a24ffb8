"""Loads one version of a DAG file in a process that runs tries: its DAGs, or why they are not there."""

import gc
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import NamedTuple

from asynsched.authoring.active import forget_registered
from asynsched.authoring.dag import DAG, collect_dags
from asynsched.authoring.running.tracebacks import one_line, user_frames
from sandbox.protocol import CodeVersion
from sandbox.sources.versions import install_version


class LoadedFile(NamedTuple):
    """A version's DAGs by their dag_id; or a reason in one line, with a traceback to be logged."""

    dags: dict[str, DAG]
    reason: str = ""
    traceback: str = ""


def load_version(code: CodeVersion, sources_folder: Path) -> LoadedFile:
    """Import a version of a DAG file. Whatever its code raises becomes the reason.

    One without sources, which is loaded for asynsched's own triggers, has no DAGs.

    Args:
        sources_folder: Where the sources are, by content hash.
    """
    if not code.sources:
        return LoadedFile({})
    process = os.getpid()
    path = code.sources[0].path
    forget_registered()
    try:
        module = install_version(code, lambda content_hash: _read_source(sources_folder, content_hash))
        dags = collect_dags(module)
    except BaseException as exc:  # noqa: BLE001 - SystemExit and KeyboardInterrupt of user code included
        text = "".join(traceback.format_exception(type(exc), exc, user_frames(exc)))
        return LoadedFile({}, f"{path} cannot be imported: {one_line(exc)}", text)
    finally:
        if os.getpid() != process:
            # The file has forked, and this is not the process that was asked for.
            os._exit(0)
    return LoadedFile({dag.dag_id: dag for dag in dags})


def open_sockets() -> frozenset[str]:
    """Return the sockets that this process has open."""
    found = set()
    for entry in Path("/proc/self/fd").glob("*"):
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return frozenset(found)


def unfit_to_fork(sockets_before: frozenset[str]) -> str:
    """Return why copies of this process would not work as tries, empty when they would.

    Threads do not survive a fork, and a socket (each event loop has some) would be shared by all copies.
    """
    if threading.active_count() > 1 or _n_threads() > 1:
        return "it leaves a thread running"
    if open_sockets() - sockets_before:
        return "it leaves a socket or an event loop open"
    return ""


def freeze_heap() -> None:
    """Keep the garbage collector from writing to what is there now, so that forks share its memory."""
    gc.collect()
    gc.freeze()


def _n_threads() -> int:
    if sys.platform != "linux":
        return 1
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def _read_source(folder: Path, content_hash: str) -> str:
    return (folder / f"{content_hash}.py").read_text(encoding="utf-8")
