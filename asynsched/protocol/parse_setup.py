"""The input of a process that parses DAG files: limits, an environment, jobs."""

import site
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from asynsched.serialization.schema import ParseQuestions

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]

STALE = b"stale\n"
"""A guardian's answer when packages were installed since its server started: ask another server."""
PACKAGE_VARIABLES = ("PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONPATH", "PYTHONPLATLIBDIR", "PYTHONUSERBASE")
"""Say where Python looks for packages: a parse finds those that a try finds."""
ALWAYS_KEPT = ("LANG", "LC_*", "TZ", "PATH", *PACKAGE_VARIABLES)
NEVER_KEPT = "ASYNSCHED_"


class ParseLimits(Struct, frozen=True):
    """Limits of one parse, given as JSON to `--limits`. Lengths are seconds, sizes bytes; defaults as in the settings.

    Unknown fields are ignored, so that a whole section of settings may be passed.
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
    """Absolute paths that are never readable, even inside a readable one: the scheduler's home."""
    environment: tuple[str, ...] = ("AIRFLOW_VAR_*",)
    """Environment variables that are kept, beside `ALWAYS_KEPT`; `PREFIX_*` names many."""
    default_timezone: str = "UTC"
    airflow: Literal["ours", "installed", "off"] = "ours"
    confinement: Literal["best_effort", "required", "off"] = "best_effort"


class Greeting(Struct, frozen=True):
    """The first line of a guardian: its process."""

    pid: int


class Job(Struct, frozen=True):
    """A file to parse, by its path in the DAG folder, and the questions to the authors' timetables in it."""

    path: str
    questions: ParseQuestions


def decode_limits(text: str) -> ParseLimits:
    """Return the limits in this JSON. Raises ValueError naming the wrong one."""
    try:
        return msgspec.json.decode(text, type=ParseLimits)
    except msgspec.DecodeError as exc:
        raise ValueError(f"--limits: {exc}") from exc


def is_kept(name: str, allowed: tuple[str, ...]) -> bool:
    """Return whether an allow-list names this environment variable."""
    if name.startswith(NEVER_KEPT):
        return False
    patterns = (*ALWAYS_KEPT, *allowed)
    return any(name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns)


def variables_of_all_parses() -> dict[str, str]:
    """Return the environment variables that every parse has, independent of its parent's environment."""
    # A parse has no use for a thread per core, and no room for one. And it has another HOME than its user, where
    # Python would look for the user's packages.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return threads | {"PYTHONUSERBASE": site.getuserbase()}


def environment_of_parses(environment: Mapping[str, str], allowed: tuple[str, ...]) -> dict[str, str]:
    """Return the part of an environment that parses see."""
    return variables_of_all_parses() | {name: value for name, value in environment.items() if is_kept(name, allowed)}


def home_in(folder: str) -> dict[str, str]:
    """Return the variables of a process whose home and place for temporary files is this folder."""
    return dict.fromkeys(("HOME", "TMPDIR"), folder)
