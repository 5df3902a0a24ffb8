"""What a parse may use and touch, and the part of it that resource limits enforce."""

import resource
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
Confinement = Literal["best_effort", "required", "off"]


_RESERVED_BYTES = 64 * 1024**2
_RESERVED_FILES = 16


class ParseLimits(Struct, frozen=True):
    """Limits of one parse, given as JSON to `--limits`. Lengths are seconds, sizes bytes; defaults as in the settings.

    Fields that are not known are ignored, so that a whole section of settings may be passed.
    """

    timeout: Seconds = 50.0
    import_timeout: Seconds = 30.0
    cpu_seconds: Count = 60
    memory_bytes: Count = 1024**3
    file_bytes: Count = 64 * 1024**2
    result_bytes: Count = 32 * 1024**2
    output_bytes: Count = 64 * 1024
    open_files: Count = 256
    max_processes: Count = 64
    readable: tuple[str, ...] = ()
    """Absolute paths that may be read, beside the DAG folder, Python's own and the system's."""
    hidden: tuple[str, ...] = ()
    """Absolute paths that are never readable even inside a readable one: the scheduler's home."""
    environment: tuple[str, ...] = ("AIRFLOW_VAR_*",)
    """Environment variables that are kept, beside those of `environment.ALWAYS_KEPT`; `PREFIX_*` names many."""
    default_timezone: str = "UTC"
    confinement: Confinement = "best_effort"


def decode_limits(text: str) -> ParseLimits:
    """Return the limits in this JSON. Raises ValueError saying which one is wrong."""
    try:
        return msgspec.json.decode(text, type=ParseLimits)
    except msgspec.DecodeError as exc:
        raise ValueError(f"--limits: {exc}") from exc


def apply_limits(limits: ParseLimits, *, max_tasks: int) -> None:
    """Bound this process and its children to come.

    Args:
        limits: The bounds.
        max_tasks: Processes and threads that this process's user may have in all.
    """
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, limits.cpu_seconds, reserve=1)
    # RLIMIT_AS would count what is reserved and never used, as threads' stacks are.
    _lower(resource.RLIMIT_DATA, limits.memory_bytes, reserve=_RESERVED_BYTES)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_NOFILE, limits.open_files, reserve=_RESERVED_FILES)
    _lower(resource.RLIMIT_NPROC, max_tasks)


def use_reserves() -> None:
    """Give this process the memory and open files that were kept for saying what went wrong."""
    for which in (resource.RLIMIT_DATA, resource.RLIMIT_NOFILE):
        hard = resource.getrlimit(which)[1]
        resource.setrlimit(which, (hard, hard))


def _lower(which: int, value: int, reserve: int = 0) -> None:
    """Lower a limit to `value`; the process itself may raise it by `reserve`."""
    hard = resource.getrlimit(which)[1]
    most = value + reserve if hard == resource.RLIM_INFINITY else min(value + reserve, hard)
    resource.setrlimit(which, (min(value, most), most))


def tasks_of_user(uid: int) -> int:
    """Return how many processes and threads this user has now; 0 where /proc does not tell."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == uid:
                count += _threads((process / "stat").read_text())
        except OSError:
            continue
    return count


def _threads(stat: str) -> int:
    """Return the number of threads in the text of /proc/PID/stat; the name in it may have any character."""
    return int(stat.rpartition(")")[2].split()[17])
