"""
The project's secret for keyed digests: it lies in the operation store, the same for every machine.
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
    Return the key, 32 bytes: of ``ORCHESTRATOR_KEY``, else of the store. Where neither has one, it
    is made there with ``create``, else it is good for this process only.

    Of several first calls at once all return the same key. A file that an earlier version kept on
    this machine becomes the store's. Raises Invalid for a variable or file that holds no key.
    """
    text = environ.get(KEY_VARIABLE)
    if text is not None:
        hint = f"it is {_BYTES * 2} hexadecimal digits, as `openssl rand -hex {_BYTES}` prints them"
        return _parsed(text) or _raise(Problem(f"{KEY_VARIABLE} is no key", hint=hint))
    stored = store.blob(KEY_BLOB)
    if stored is None:
        own = _own_file(project_dir) or os.urandom(_BYTES)
        if not create:
            return own
        stored = store.create_blob(KEY_BLOB, own.hex().encode() + b"\n")
    key = _parsed(stored.decode("ascii", "replace"))
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
    return _parsed(text) or _raise(Problem("the project key is damaged", at, hint))


def _parsed(text: str) -> bytes | None:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        return None
    return key if len(key) == _BYTES else None


def _raise(problem: Problem) -> bytes:
    raise Invalid([problem])
