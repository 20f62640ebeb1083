"""
Blobs named by their content: each is written once, whoever needs it.
"""

from __future__ import annotations

import hashlib

from orchestrator.app.services import Services
from orchestrator.domain.recovery.rerun_rules import lock_file_blob, snapshot_blob
from orchestrator.ports.workdir import Snapshot


def store_snapshot(services: Services, snapshot: Snapshot) -> None:
    store_once(services, snapshot_blob(snapshot.digest), snapshot.archive)


def store_lock_file(services: Services, lock: bytes | None) -> str | None:
    """
    Keep a lock file by its content; the digest.
    """
    if lock is None:
        return None
    digest = "sha256:" + hashlib.sha256(lock).hexdigest()
    store_once(services, lock_file_blob(digest), lock)
    return digest


def store_once(services: Services, name: str, data: bytes) -> None:
    """
    Store what is named by its content, once.
    """
    if name in services.stored_blobs:
        return
    if name not in services.store.blobs(name):
        services.store.put_blob(name, data)
    services.stored_blobs.add(name)
