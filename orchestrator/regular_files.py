"""
Files that somebody else wrote, opened without trust: only regular ones, and only up to a size.

Opening a FIFO or a device may block for ever, and reading one may never end; neither can happen
here, so that a signal is answered whatever lies in the place of a file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

#: More than any file that people write for this tool; larger ones name their own limit.
MAX_BYTES = 16 * 1024 * 1024


def read_regular(path: Path | str, *, limit: int = MAX_BYTES) -> bytes:
    """
    The content of a regular file of at most ``limit`` bytes; OSError for anything else.

    ValueError where the name cannot be that of a file (it holds a NUL character).
    """
    # Without O_NONBLOCK the open itself would wait for a FIFO's writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit >> 20} MiB", str(path))
    return data
