"""
Opens untrusted files: only regular ones, and only up to a size; and writes private files, and those
that the user named.

Opening a FIFO or a device may block for ever, and reading one may never end. Neither can happen
here, so that signals are handled whatever the file is.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from orchestrator.errors import Invalid, Location, Problem

#: More than any file that people write for this tool; larger ones name their own limit.
MAX_BYTES = 16 * 1024 * 1024
#: Lines and commas that a file may have: counted in no time, where a million list items take long.
MAX_SEPARATORS = 300_000


def read_regular(path: Path | str, *, limit: int = MAX_BYTES) -> bytes:
    """
    Return the content of a regular file of at most ``limit`` bytes. Raises OSError for anything
    else.

    Raises ValueError if the name is invalid (it holds a NUL character).
    """
    # Without O_NONBLOCK the open itself would wait for a FIFO's writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    # A file object would ask for its size, its position and a terminal: many files are read so.
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        data, most = b"", max(about.st_size, 4096) + 1
        while len(data) <= limit and (part := os.read(descriptor, min(most, limit + 1))):
            data += part
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit >> 20} MiB", str(path))
    return data


def read_text(path: Path, *, shown: str) -> str:
    """
    Return the text of a UTF-8 file, ``shown`` in errors. Raises Invalid if it cannot be read or
    decoded, or is too large to be parsed.
    """
    try:
        text = read_regular(path).decode("utf-8-sig")
    except FileNotFoundError as exc:
        raise Invalid([Problem("there is no such file", Location(shown))]) from exc
    except OSError as exc:
        raise Invalid([Problem(f"cannot be read: {exc.strerror}", Location(shown))]) from exc
    except UnicodeDecodeError as exc:
        raise Invalid([Problem("is not UTF-8 text", Location(shown))]) from exc
    except ValueError as exc:
        raise Invalid([Problem("its name cannot be that of a file", Location(shown))]) from exc
    if text.count(",") + text.count("\n") > MAX_SEPARATORS:
        hint = f"it has more than {MAX_SEPARATORS:,} lines and commas"
        raise Invalid([Problem("is too large to be read", Location(shown), hint)])
    return text


def check_regular(path: Path) -> None:
    """
    Raise OSError if the path exists and is no regular file.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is not a regular file", str(path))


def write_file(path: Path, text: str, *, append: bool = False) -> None:
    """
    Write a file that the user named, also a device or a FIFO with a reader. Raises OSError for a
    FIFO without a reader, on which opening would block for ever.
    """
    how = os.O_APPEND if append else os.O_TRUNC
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | how
    descriptor = os.open(path, flags, 0o666)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text.encode("utf-8", "backslashreplace"))


# Private files: directories 0700, files 0600.


def make_private(directory: Path, *, durable: bool = False) -> None:
    """
    Create a directory and its missing parents, 0700; existing ones keep their mode.
    """
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)  # another step may be making it as well
        if durable:
            sync_directory(each.parent)


def sync_directory(directory: Path) -> None:
    """
    Make the names in a directory durable: files that were created, renamed or removed there.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_private(path: Path, data: bytes, mode: int = 0o600) -> None:
    """
    Write a new file in the place of an existing one, whatever that leads to.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        while data:
            data = data[file.write(data) :]


def write_durably(path: Path, data: bytes) -> None:
    """
    Replace a file by rename, 0600; its content and name are durable on return.

    On an OSError the earlier file is untouched and no temporary file is left.
    """
    make_private(path.parent, durable=True)
    replace_file(path, data, durable=True)
    sync_directory(path.parent)


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """
    Replace a file by rename, 0600; its content is ``durable`` only if that is wanted.
    """
    from tempfile import mkstemp  # most reading commands write nothing

    handle, name = mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
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


# The tool's own directory is private: nobody else reads or changes what it relies on.
#
# A restored cache, an unpacked archive or a careless ``chmod`` leave it open. What is open is
# closed, and said; what may lead elsewhere or belongs to somebody else is refused.


_OTHERS_READ, _OTHERS_WRITE = 0o077, 0o022


def keep_private(own: Path, tell: Callable[[str], None]) -> None:
    """
    Make the tool's own directory and its files private; ``tell`` is called with what was open. A
    directory that does not exist is created private later.

    Raises Invalid if it is a symbolic link or no directory, contains a symbolic link, or belongs to
    another user than us or the owner of the project.
    """
    try:
        about = own.lstat()
        inside = sorted(own.iterdir()) if stat.S_ISDIR(about.st_mode) else []
    except FileNotFoundError:
        return
    except OSError as exc:
        raise _refused(own, f"cannot be read: {exc.strerror}") from exc
    for path in (own, *inside):
        if path.is_symlink():
            raise _refused(
                path,
                "is a symbolic link: what it leads to may be somebody else's",
                "put what it leads to in its place",
            )
    if not stat.S_ISDIR(about.st_mode):
        raise _refused(own, "is not a directory", "it is the tool's own: remove the file")
    if about.st_uid not in (0, os.geteuid(), own.parent.stat().st_uid):
        raise _refused(
            own,
            f"belongs to another user (uid {about.st_uid})",
            "who owns it can change every record: take it over with chown, or remove it",
        )
    close_files((own, *inside), tell)


def close_files(paths: Iterable[Path], tell: Callable[[str], None]) -> None:
    """
    Remove the rights of other users on files; ``tell`` is called about it.
    """
    closed, failed, changeable = [], [], False
    for path in paths:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:  # it has gone meanwhile
            continue
        if not mode & _OTHERS_READ:
            continue
        changeable |= bool(mode & _OTHERS_WRITE)
        shown = f"{path} ({mode:04o})"
        try:
            path.chmod(mode & ~_OTHERS_READ)
            closed.append(shown)
        except OSError as exc:
            failed.append(f"{shown}: {exc.strerror}")
    what = "other users could change" if changeable else "other users could read"
    if closed:
        tell(f"{what} {', '.join(closed)}; it is private now")
    if failed:
        tell(f"{what} {', '.join(failed)}; it could not be made private")


def _refused(path: Path, why: str, hint: str = "") -> Invalid:
    return Invalid([Problem(why, Location(str(path)), hint)])
