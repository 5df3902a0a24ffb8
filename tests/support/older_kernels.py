"""Kernels whose Landlock is older than this machine's, for the processes of a test.

Such a process takes this kernel for the older one: it requests only that kernel's Landlock rules, and installs the
seccomp programs that go with them. So everything that the older kernel leaves open is open here, too.
"""

import os
from pathlib import Path

import landlockpy

FIRST_WITH_ALL = 6
"""From this version on, asynsched asks nothing more of Landlock."""
OLDER_ABIS = tuple(range(int(os.geteuid() == 0), min(landlockpy.abi_version(), FIRST_WITH_ALL)))
"""Versions with which parses are confined in another way; 0 is a kernel without Landlock. Root's tests leave that out:
without Landlock a parse gives up root's right to read, and so cannot read root's installations.
"""


def with_landlock(abi: int, folder: Path) -> dict[str, str]:
    """Return the environment of processes that find this version of Landlock. Its files are put into the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        "import landlockpy, landlockpy._syscall\n"
        f"landlockpy.abi_version = landlockpy._syscall.abi_version = lambda: {abi}\n"
    )
    return {"PYTHONPATH": str(folder)}
