"""
Private, durable files: directories 0700, files 0600, written atomically.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from urllib.parse import quote


def sync_directory(directory: Path) -> None:
    """
    Make the names in a directory durable: files that were created, renamed or removed there.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_private(directory: Path) -> None:
    """
    Create a directory and its missing parents, 0700 and durable; existing ones keep their mode.
    """
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)  # another step may be making it as well
        sync_directory(each.parent)


def write_durably(path: Path, data: bytes) -> None:
    """
    Replace a file by rename, 0600; its content and name are durable on return.

    On an OSError the earlier file is untouched and no temporary file is left.
    """
    make_private(path.parent)
    replace_file(path, data, durable=True)
    sync_directory(path.parent)


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """
    Replace a file by rename, 0600; its content is ``durable`` only if that is wanted.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


# File names made from names of ours: reversible for the eye, never a path.


_LONGEST = 180  # bytes; file systems allow 255, and temporary files add to a name
_DIGEST = 16


def file_name(text: str) -> str:
    """
    Return a file name for a text: unique, ASCII, at most 180 bytes.

    >>> file_name('cell["a.b"]')
    'cell%5B%22a.b%22%5D'
    >>> file_name("../x")
    '%2E.%2Fx'
    """
    name = quote(text, safe="")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _LONGEST:
        digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
        name = f"{name[: _LONGEST - _DIGEST - 1]}~{digest}"
    return name or "%"
