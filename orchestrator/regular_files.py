"""
Files that somebody else wrote, opened without trust: only regular ones, and only up to a size; and
those that a person has us write.

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


def check_regular(path: Path) -> None:
    """
    OSError where something else than a regular file stands in the place of one.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is not a regular file", str(path))


def write_file(path: Path, text: str, *, append: bool = False) -> None:
    """
    Write a file that a person named, also a device or a FIFO that somebody reads; OSError for a
    FIFO that nobody does: opening it would wait for ever.
    """
    how = os.O_APPEND if append else os.O_TRUNC
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | how
    descriptor = os.open(path, flags, 0o666)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text.encode("utf-8", "backslashreplace"))
