# Runs as a script, on every call: importing pathlib alone would double its start.
# ruff: noqa: PTH104, PTH108, PTH112, PTH120, PTH123, PTH208
"""
Starts an engine and outlives the process that requested it.

Run as ``python -I -S wrapper.py LIFELINE EVIDENCE NAME IDENTITY COUNT DELETE... PROGRAM...`` in a
session of its own; its stdin, stdout and stderr are the engine's. IDENTITY is a flat JSON object
with what the caller knows (host, boot, pid namespace, verb). LIFELINE is a file descriptor that
nobody writes to: the caller sees it close when this script ends.

The engine's process is forked, but waits until ``NAME.identity.json`` is durable. That file is
created exclusively: whoever creates it first decides, this script or a successor that fences the
call. At the end the files to delete are removed and ``NAME.answer.json`` records how the engine
ended.
"""

from __future__ import annotations

import os
import sys
import time

# The public module costs 6 ms more, for its enums, on every engine call.
from _signal import (  # type: ignore[import-not-found,unused-ignore]
    SIG_DFL,
    SIG_SETMASK,
    SIGHUP,
    SIGINT,
    SIGPIPE,
    SIGQUIT,
    SIGTERM,
    SIGXFSZ,
    pthread_sigmask,
)
from _signal import signal as handle  # type: ignore[import-not-found,unused-ignore]

#: Exit codes of the script itself.
DONE, FENCED, BROKEN = 0, 3, 4

#: What an engine's files are created with: as private as ours, or as the caller has it. Providers
#: and provisioners of an apply make files that are not ours.
PRIVATE_UMASK, CALLERS_UMASK = "private", "callers"

_COOKIE = b"TF_PLUGIN_MAGIC_COOKIE="


def start_ticks(pid: int) -> int:
    """
    Return when the process began, in kernel clock ticks since boot; 0 if the system does not tell.
    """
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def is_zombie(pid: int) -> bool:
    """
    Return whether the process has ended and waits to be reaped; False if unknown.
    """
    return _stat(pid)[:1] == [b"Z"]


def create_exclusively(path: str, text: str) -> bool:
    """
    Create the file durably with its full text. Returns False, and changes nothing, if it exists.
    """
    draft = f"{path}.{os.getpid()}.tmp"
    try:
        _write(draft, text)
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        _remove(draft)
    sync(os.path.dirname(path))
    return True


def identity_text(seed: str, engine: int, wrapper: int) -> str:
    """
    Return the content of an identity file: IDENTITY and the two processes.
    """
    return (
        f'{seed[:-1]}, "pid": {engine}, "started": {start_ticks(engine)}, '
        f'"wrapper": {{"pid": {wrapper}, "started": {start_ticks(wrapper)}}}}}\n'
    )


def answer_text(code: int | None) -> str:
    """
    Return the content of an answer file: the exit code, negative for the signal that ended the
    engine; None if it could not be started.
    """
    began, ended = code is not None, code is not None and code >= 0
    return (
        f'{{"exit_code": {code if ended else "null"}, '
        f'"signal": {-code if code is not None and code < 0 else "null"}, '
        f'"began": {"true" if began else "false"}, '
        f'"ended_at": "{time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}"}}\n'
    )


def providers_left(session: int) -> list[int]:
    """
    Return the processes of a session that were started as provider plugins; empty without
    ``/proc``.

    Daemons that a provisioner left on purpose do not have the plugin cookie in their environment.
    """
    return [pid for pid in session_members(session) if _is_provider(pid)]


def session_members(session: int) -> list[int]:
    """
    Return the living processes of a session; empty without ``/proc``.
    """
    if not os.path.isdir("/proc/self"):
        return []
    members = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.getsid(int(entry)) == session and not is_zombie(int(entry)):
                    members.append(int(entry))
            except OSError:
                continue
    return members


def _stat(pid: int) -> list[bytes]:
    """
    Return the fields of ``/proc/PID/stat`` after the name, which may hold spaces.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _is_provider(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(item.startswith(_COOKIE) for item in file.read().split(b"\0"))
    except OSError:
        return False


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync(path: str) -> None:
    """
    Make a file or directory durable, if it exists.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    """
    Remove a file, ignoring errors: writing the answer is more important.
    """
    try:
        os.unlink(path)
    except OSError:
        return


def _survive(_number: int, _frame: object) -> None:
    """
    Ignore a signal. Not SIG_IGN: the engine would inherit that and never stop.
    """


def _become_engine(release: int, fault: int, program: list[str], umask: int) -> None:
    """
    In the child: wait for the release, then exec the engine. Default signal dispositions are
    restored first, so that a signal sent before the engine handles it ends the engine instead of
    being lost.
    """
    os.umask(umask)
    try:
        for number in (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXFSZ):
            handle(number, SIG_DFL)
        pthread_sigmask(SIG_SETMASK, ())
        if os.read(release, 1):
            os.execv(program[0], program)
    except OSError as exc:
        os.write(fault, b"!")
        os.write(2, f"cannot start {program[0]}: {exc.strerror}\n".encode())
    finally:
        os._exit(127)


def _release(descriptor: int) -> None:
    """
    Let the child exec the engine. If it was killed meanwhile, waitpid reports that.
    """
    try:
        os.write(descriptor, b"!")
    except BrokenPipeError:
        return
    finally:
        os.close(descriptor)


def _run(
    evidence: str, name: str, identity: str, umask: int, delete: list[str], program: list[str]
) -> int:
    release_read, release_write = os.pipe()
    fault_read, fault_write = os.pipe()
    engine = os.fork()
    if engine == 0:
        os.close(release_write)
        _become_engine(release_read, fault_write, program, umask)
    os.close(release_read)
    os.close(fault_write)

    me = os.getpid()
    path = f"{evidence}/{name}.identity.json"
    if not create_exclusively(path, identity_text(identity, engine, me)):
        os.close(release_write)
        os.waitpid(engine, 0)
        for item in delete:
            _remove(item)
        return FENCED
    _release(release_write)
    faulty = os.read(fault_read, 1) != b""

    code = os.waitstatus_to_exitcode(os.waitpid(engine, 0)[1])
    for item in delete:
        _remove(item)
    # The answer must not be durable before the events it stands for, whoever wrote them.
    sync(f"{evidence}/raw/{name}.stdout")
    if code != 0:  # an engine that ended well has stopped its providers itself
        for pid in providers_left(me):
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
    path = f"{evidence}/{name}.answer.json"
    _write(f"{path}.tmp", answer_text(None if faulty else code))
    os.rename(f"{path}.tmp", path)
    sync(evidence)
    return DONE


def main(argv: list[str]) -> int:
    """
    Run one engine call. The exit code is DONE, FENCED or BROKEN and says nothing about the engine.
    """
    for number in (SIGINT, SIGTERM, SIGHUP):
        handle(number, _survive)
    callers = os.umask(0o077)
    lifeline, evidence, name, identity, umask, count, *rest = argv
    engines = callers if umask == CALLERS_UMASK else 0o077
    os.set_inheritable(int(lifeline), False)  # noqa: FBT003 - takes no keywords
    try:
        return _run(evidence, name, identity, engines, rest[: int(count)], rest[int(count) :])
    except OSError as exc:
        os.write(2, f"the engine's wrapper failed: {exc}\n".encode())
        return BROKEN


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
