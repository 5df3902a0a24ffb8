"""Which file systems tell of changes: those of other machines do not."""

from pathlib import Path, PurePath

MOUNTS = Path("/proc/self/mountinfo")

SILENT = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "drvfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "prl_fs", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs",
    "vmhgfs", "wekafs",
})  # fmt: skip
"""Types whose files can change without an event here."""


def has_events(path: Path) -> bool:
    """Whether the file system of `path` tells of every change to a file, as far as its type shows."""
    try:
        mounts = MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return True
    kind = type_of_mount(path.resolve(), mounts)
    return kind not in SILENT and not kind.startswith("fuse")


def type_of_mount(path: PurePath, mounts: str) -> str:
    """Return the type of the file system that an absolute, resolved path is on; empty if none is listed.

    Args:
        path: The path.
        mounts: Text of /proc/self/mountinfo.

    Source:
        proc_pid_mountinfo(5): the mount point is the fifth field, the type is the first one after ` - `.
    """
    best, kind = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = PurePath(_unescaped(fields[4]))
        # Of two mounts on one point the later one is seen.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind


def _unescaped(text: str) -> str:
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        text = text.replace(f"\\{code}", character)
    return text
