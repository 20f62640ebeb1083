"""
Blobs that are written only where the store does not hold the same bytes already.
"""

from __future__ import annotations

from orchestrator.app.services import Services
from orchestrator.domain.blueprint.stored_deployment import content_digest
from orchestrator.domain.recovery.rerun_rules import lock_blob, lock_file_blob, snapshot_blob
from orchestrator.ports.workdir import Snapshot


def store_snapshot(services: Services, snapshot: Snapshot) -> None:
    store_once(services, snapshot_blob(snapshot.digest), snapshot.archive)


def read_lock_file(services: Services, target: str, snapshot: str) -> bytes | None:
    """
    The lock file that a target was last used with at the snapshot of this digest.
    """
    name = lock_blob(target, snapshot)
    lock = services.store.blob(name)
    if lock is not None:
        services.stored_blobs[name] = content_digest(lock)
    return lock


def store_lock_file(services: Services, target: str, snapshot: str, lock: bytes) -> None:
    """
    Store the lock file of a target at a snapshot, unless the store has it already.
    """
    name, digest = lock_blob(target, snapshot), content_digest(lock)
    if services.stored_blobs.get(name) != digest:
        services.store.put_blob(name, lock)
        services.stored_blobs[name] = digest


def store_lock_content(services: Services, lock: bytes | None) -> str | None:
    """
    Store a lock file by its content and return the digest.
    """
    if lock is None:
        return None
    digest = content_digest(lock)
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
    services.stored_blobs[name] = content_digest(data)
