"""
Identifies processes and tells whether they are alive: pids are reused, hosts reboot, containers
have pids of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import signal
import sys
from functools import cache
from pathlib import Path

from orchestrator.domain.record.run_record import ProcessIdentity
from orchestrator.domain.record.states import Liveness
from orchestrator.engine.process.wrapper import is_zombie, session_members, start_ticks

_ZOMBIE = -1
_BOOT_ID = ("/proc/sys/kernel/random/boot_id", "kern.bootsessionuuid")
_MACHINE_ID = ("/etc/machine-id", "kern.uuid")


class SystemProcesses:
    """
    The processes of this machine.

    ``machine`` is a unique machine id ("" if there is none); without it a reboot cannot be told
    from another machine with the same host name.
    """

    def __init__(self, *, machine: str | None = None) -> None:
        machine_id = _system_value(*_MACHINE_ID) if machine is None else machine
        name = platform.node()
        digest = hashlib.sha256(f"orchestrator:{machine_id}".encode()).hexdigest()[:12]
        self._host = f"{name}/{digest}" if machine_id else name

    def me(self) -> ProcessIdentity:
        return self.identify(os.getpid(), _started(os.getpid()))

    def identify(self, pid: int, started: int) -> ProcessIdentity:
        """
        Return the identity of a process in our pid namespace.
        """
        return ProcessIdentity(
            host=self._host,
            boot_id=_system_value(*_BOOT_ID),
            pid=pid,
            pid_namespace=_pid_namespace(),
            started=started,
        )

    def liveness(self, identity: ProcessIdentity) -> Liveness:
        boot = _system_value(*_BOOT_ID)
        if identity.pid <= 0 or not identity.boot_id or not boot:
            return Liveness.UNKNOWN
        if identity.boot_id != boot:
            rebooted = identity.host == self._host and "/" in self._host
            return Liveness.GONE if rebooted else Liveness.UNKNOWN
        if identity.pid_namespace != _pid_namespace():
            return Liveness.UNKNOWN
        if not _exists(identity.pid):
            return Liveness.GONE
        now = _started(identity.pid)
        if now == _ZOMBIE:
            return Liveness.GONE
        if not now or not identity.started:
            return Liveness.UNKNOWN if _exists(identity.pid) else Liveness.GONE
        return Liveness.ALIVE if now == identity.started else Liveness.GONE


def signal_session(session: int, number: signal.Signals, *, spare: int) -> bool:
    """
    Send a signal to every process of a session except ``spare``. Returns whether any got it. The
    session id must be protected as for `kill_session`.
    """
    reached = False
    for pid in _members(session):
        if pid != spare:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                reached = True
    return reached


def kill_session(session: int, *, spare: int) -> None:
    """
    SIGKILL every process of a session except ``spare``, repeatedly while new ones appear.

    The caller must make sure that the session id cannot have been reused: its leader is a child
    that was not reaped yet.
    """
    for _ in range(5):
        members = [pid for pid in _members(session) if pid != spare]
        if not members:
            return
        for pid in members:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _members(session: int) -> list[int]:
    if sys.platform == "linux":
        return session_members(session)
    import psutil

    members = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if pid and os.getsid(pid) == session:
                members.append(pid)
    return members


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # another user's: the start time tells whether it is the same process
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _started(pid: int) -> int:
    """
    Return when the process began, in comparable ticks; _ZOMBIE if it has ended, 0 if unknown.
    """
    if sys.platform == "linux":
        return _ZOMBIE if is_zombie(pid) else start_ticks(pid)
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return _ZOMBIE
        return int(process.create_time() * 100)
    except psutil.Error:
        return 0


@cache
def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - a name of the kernel, no path
    except OSError:
        return ""


@cache
def _system_value(file: str, sysctl: str) -> str:
    """
    Return a value that Linux keeps in a file and macOS tells by ``sysctl``; "" if there is none.
    """
    if sys.platform == "linux":
        try:
            return Path(file).read_text().strip()
        except OSError:
            return ""
    import subprocess  # here: reading commands must not wait for it

    try:
        return subprocess.run(
            ["/usr/sbin/sysctl", "-n", sysctl],
            capture_output=True,
            text=True,
            check=True,
            timeout=5,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
