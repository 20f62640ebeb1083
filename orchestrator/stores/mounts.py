"""
Which file system a path lies on, for stores that must not lie on a network.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

#: File systems where several machines see one file but not each other's locks or memory maps;
#: also those that say "fuse." before the name.
NETWORK = frozenset(
    [
        *("nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "smbnetfs", "afs", "afpfs"),
        *("ncpfs", "webdav", "davfs", "davfs2", "ceph", "lustre", "glusterfs", "beegfs", "gpfs"),
        *("orangefs", "pvfs2", "sshfs", "s3fs", "gcsfuse", "goofys", "rclone", "mount-s3"),
        *("blobfuse", "blobfuse2"),
    ]
)


class Mount(Struct, frozen=True):
    """
    A mounted file system: where, and of which type.
    """

    point: str
    type: str


def mount_table() -> tuple[Mount, ...]:
    """
    What is mounted on this machine.
    """
    if (table := Path("/proc/self/mounts")).exists():  # psutil costs more than all the rest here
        rows = (line.split(" ") for line in table.read_text(errors="surrogateescape").splitlines())
        return tuple(Mount(_unescaped(row[1]), row[2]) for row in rows)
    import psutil

    return tuple(Mount(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True))


def _unescaped(point: str) -> str:
    """
    A mount point as it is called; the table writes spaces and the like as octal numbers.
    """
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)


def network_mount(path: Path, mounts: Sequence[Mount]) -> Mount | None:
    """
    The network file system that ``path`` (absolute, resolved) lies on; None where it is local.
    """
    # Of two mounts at one point the later one is on top.
    over = [mount for mount in mounts if path.is_relative_to(mount.point)]
    top = max(reversed(over), key=lambda mount: len(mount.point), default=None)
    return top if top is not None and top.type.lower().removeprefix("fuse.") in NETWORK else None
