"""
Whether a process still is: proven, or said to be unknown.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from orchestrator.domain.record.states import Liveness
from orchestrator.engine.process.identity import SystemProcesses, kill_session
from orchestrator.engine.process.wrapper import session_members, start_ticks


@pytest.fixture
def processes() -> SystemProcesses:
    return SystemProcesses(machine="this-machine")


def test_we_are_alive(processes: SystemProcesses) -> None:
    """
    Our own identity reads alive.
    """
    assert processes.liveness(processes.me()) is Liveness.ALIVE


def test_a_reused_pid_is_another_process(processes: SystemProcesses) -> None:
    """
    The same pid with another start time is gone: the number was reused.
    """
    me = processes.me()

    assert processes.liveness(me.model_copy(update={"started": me.started - 1})) is Liveness.GONE


def test_an_ended_process_is_gone(processes: SystemProcesses) -> None:
    """
    A process that has ended is gone, also before its parent has waited for it.
    """
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = processes.identify(child.pid, start_ticks(child.pid))
    assert processes.liveness(identity) is Liveness.ALIVE
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    as_zombie = processes.liveness(identity)
    child.communicate()

    assert (as_zombie, processes.liveness(identity)) == (Liveness.GONE, Liveness.GONE)


def test_a_reboot_ends_every_process_of_the_host(processes: SystemProcesses) -> None:
    """
    On the same machine another boot id proves the process gone.
    """
    before = processes.me().model_copy(update={"boot_id": "an-earlier-boot"})

    assert processes.liveness(before) is Liveness.GONE


def test_another_host_tells_nothing(processes: SystemProcesses) -> None:
    """
    A process of another machine is neither alive nor gone, even if its host has our name.
    """
    elsewhere = SystemProcesses(machine="another-machine").me()

    answer = processes.liveness(elsewhere.model_copy(update={"boot_id": "its-boot"}))

    assert answer is Liveness.UNKNOWN


def test_a_host_without_a_machine_id_cannot_prove_a_reboot() -> None:
    """
    Where hosts have only names, another boot may be another host of the same name.
    """
    nameless = SystemProcesses(machine="")
    before = nameless.me().model_copy(update={"boot_id": "an-earlier-boot"})

    assert nameless.liveness(before) is Liveness.UNKNOWN


@pytest.mark.parametrize("change", [{"pid_namespace": "pid:[1]"}, {"pid": 0}, {"pid": -1}])
def test_what_cannot_be_seen_is_unknown(
    processes: SystemProcesses, change: dict[str, object]
) -> None:
    """
    Another pid namespace, or a number that is no pid, proves nothing.
    """
    assert processes.liveness(processes.me().model_copy(update=change)) is Liveness.UNKNOWN


def test_killing_a_session_takes_all_but_the_spared() -> None:
    """
    Every process of the session gets SIGKILL, grandchildren too; the spared one does not.
    """
    script = """
import subprocess
helper = subprocess.Popen(["sleep", "120"])
print(helper.pid, flush=True)
helper.wait()
input()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())

    kill_session(child.pid, spare=child.pid)

    assert child.poll() is None
    child.communicate("\n")
    assert child.returncode == 0
    assert grandchild not in session_members(child.pid)
