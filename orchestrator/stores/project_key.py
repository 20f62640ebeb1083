"""
The project's key for keyed digests. It is kept in the operation store, the same for all machines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.domain.blueprint.inputs import KEY_BLOB, KEY_VARIABLE
from orchestrator.errors import Invalid, Location, Problem, StoreUnavailable
from orchestrator.local_files import read_regular
from orchestrator.ports.store import OperationStore

_BYTES = 32
_FILE = ".orchestrator/key"


def project_key(
    store: OperationStore, project_dir: Path, environ: Mapping[str, str], *, create: bool
) -> bytes:
    """
    Return the key, 32 bytes: from ``ORCHESTRATOR_KEY``, else from the store. If there is none, it
    is created in the store with ``create``, else for this process only.

    Concurrent first calls all return the same key. A key file of an earlier version on this machine
    is moved to the store. Raises Invalid for a variable or file that holds no key.
    """
    text = environ.get(KEY_VARIABLE)
    if text is not None:
        hint = f"it is {_BYTES * 2} hexadecimal digits, as `openssl rand -hex {_BYTES}` prints them"
        return _parse_key(text) or _raise(Problem(f"{KEY_VARIABLE} is no key", hint=hint))
    stored = store.blob(KEY_BLOB)
    if stored is None:
        own = _own_file(project_dir) or os.urandom(_BYTES)
        if not create:
            return own
        stored = store.create_blob(KEY_BLOB, own.hex().encode() + b"\n")
    key = _parse_key(stored.decode("ascii", "replace"))
    if key is None:
        raise StoreUnavailable(
            f"{store.url}: the project key ({KEY_BLOB}) is damaged",
            hint="restore it from a backup; with a new one digests of secrets no longer compare "
            "with earlier ones",
        )
    if create and _own_file(project_dir) == key:
        (project_dir / _FILE).unlink(missing_ok=True)
    return key


def _own_file(project_dir: Path) -> bytes | None:
    at = Location(_FILE)
    try:
        text = read_regular(project_dir / _FILE).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise Invalid([Problem(f"the project key: {exc.strerror}", at)]) from exc
    hint = "restore it; with a new key, digests of secrets no longer compare with earlier ones"
    return _parse_key(text) or _raise(Problem("the project key is damaged", at, hint))


def _parse_key(text: str) -> bytes | None:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        return None
    return key if len(key) == _BYTES else None


def _raise(problem: Problem) -> bytes:
    raise Invalid([problem])
