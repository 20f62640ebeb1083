"""
A server of provider states for the http backend, in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.project import REPOSITORY


@contextmanager
def state_server() -> Iterator[str]:
    """
    A server of provider states; yields its address.
    """
    script = REPOSITORY / "fixtures/refuses-state/state_server.py"
    process = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def take_lock(address: str, lock: Mapping[str, str]) -> bool:
    """
    Take the lock of the state at an address, as an engine does; whether nobody had it.
    """
    request = urllib.request.Request(address, json.dumps(lock).encode(), method="LOCK")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(request).close()
    except urllib.error.HTTPError as exc:
        exc.close()
        return False
    return True


def drop_lock(address: str) -> None:
    """
    Release the lock of the state at an address, whoever holds it.
    """
    request = urllib.request.Request(address, b"", method="UNLOCK")
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()
