"""Kernels whose Landlock is older than this machine's, for the processes of a test.

Such a process takes this kernel for the older one: it asks of Landlock what that has, and installs the seccomp programs
that go with it. So what the older kernel leaves open is open here, too.
"""

import os
from pathlib import Path

import landlockpy

FIRST_WITH_ALL = 6
"""From this version on, asynsched asks nothing more of Landlock."""
OLDER_ABIS = tuple(range(int(os.geteuid() == 0), min(landlockpy.abi_version(), FIRST_WITH_ALL)))
"""Versions with which parses are confined in another way; 0 is a kernel without Landlock. Root's tests leave that out:
without Landlock a parse gives up root's right to read, and so cannot read what root has installed.
"""


def with_landlock(abi: int, folder: Path) -> dict[str, str]:
    """Return the environment of processes that find this version of Landlock. What it takes is put into the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        "import landlockpy, landlockpy._syscall\n"
        f"landlockpy.abi_version = landlockpy._syscall.abi_version = lambda: {abi}\n"
    )
    return {"PYTHONPATH": str(folder)}
