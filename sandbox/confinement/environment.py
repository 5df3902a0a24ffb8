"""What a process that runs a DAG file sees of the environment: an allow-list, and nothing of the scheduler's."""

import os
import site
import sys
from collections.abc import Mapping

from sandbox.confinement import kernel

PACKAGE_VARIABLES = ("PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONPATH", "PYTHONPLATLIBDIR", "PYTHONUSERBASE")
"""Say where Python looks for packages: a parse finds those that a try finds."""
ALWAYS_KEPT = ("LANG", "LC_*", "TZ", "PATH", *PACKAGE_VARIABLES)
NEVER_KEPT = "ASYNSCHED_"

# A parse has no use for a pool of threads a core, and no room for one.
_SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _of_all_parses() -> dict[str, str]:
    # Without it, the user's own site would be looked for in HOME, which is another folder for a parse.
    return _SINGLE_THREADED | {"PYTHONUSERBASE": site.getuserbase()}


def is_kept(name: str, allowed: tuple[str, ...]) -> bool:
    """Whether an allow-list names this variable; `PREFIX_*` names many."""
    if name.startswith(NEVER_KEPT):
        return False
    patterns = (*ALWAYS_KEPT, *allowed)
    return any(name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns)


def environment_of_parses(environment: Mapping[str, str], allowed: tuple[str, ...]) -> dict[str, str]:
    """Return what is the same in the environments of all parses, of this environment."""
    return _of_all_parses() | {name: value for name, value in environment.items() if is_kept(name, allowed)}


def enter_environment(allowed: tuple[str, ...]) -> None:
    """Give this process, whose forks are parses, their environment.

    What it drops is gone from the memory, too, in which this process was given it: a fork has all of that, so that a
    variable that is only unset could still be read there.
    """
    dropped = {name for name in os.environb if not is_kept(os.fsdecode(name), allowed)}
    places = kernel.environment_addresses() if sys.platform == "linux" else []
    places = [(address, text) for address, text in places if text.partition(b"=")[0] in dropped]
    for name in dropped:
        del os.environb[name]
    for address, text in places:
        kernel.overwrite(address, len(text))
    for variable, value in _of_all_parses().items():
        os.environ.setdefault(variable, value)


def home_in(folder: str) -> dict[str, str]:
    """Return the variables of a process whose home, and whose place for temporary files, is this folder."""
    return {"HOME": folder, "TMPDIR": folder}
