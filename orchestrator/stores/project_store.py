"""
The operation store of a project: opened by its URL, allowed by the trust file, private and watched;
and the project's key for keyed digests, which is kept in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from orchestrator.domain.store_location import (
    DATABASES,
    OWN_STORE,
    STORE_URLS,
    StoreLocation,
    shown_url,
    store_url_problem,
    url_scheme,
)
from orchestrator.errors import Invalid, Location, Problem, Refused, StoreUnavailable
from orchestrator.local_files import close_files, read_regular
from orchestrator.ports.store import OperationStore
from orchestrator.project import ProjectContext
from orchestrator.run_files import RunFiles
from orchestrator.stores.watched_store import SequenceMemory, WatchedStore

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.stored_deployment import StoredDeployment
    from orchestrator.domain.text import Json

Tell = Callable[[str], None]


def open_project_store(
    project: ProjectContext, location: StoreLocation, tell: Tell
) -> WatchedStore:
    """
    Return the store at a location. ``tell`` is called if it should not be relied on, or was
    readable by other users. Raises Refused if the trust file does not allow it.
    """
    trust = project.settings.trust
    if not location.is_trusted:
        raise Refused(
            "untrusted",
            f"{location.url}: an earlier run noted that records are there, and no blueprint names "
            "that server",
            hint="if you trust it, name the store by `operations.url` in orchestrator.yaml",
        )
    if not trust.allows_store(location.url, project.project_dir):
        raise Refused(
            "untrusted",
            trust.forbidden(f"the operation store {location.shown}", "stores"),
            hint="name one of its stores by `operations.url`",
        )
    file = sqlite_file(location.url, project.project_dir, project.environ)
    # What a URL names may be anything, `/dev/null` or `/`: only what is ours is closed.
    if file is not None:
        from orchestrator.stores.sqlite import is_ours

        if is_ours(file):
            close_files((file,), tell)
    store = open_store(
        location.url,
        project_dir=project.project_dir,
        project=project.settings.project,
        environ=project.environ,
        config=location.config,
    )
    # A store in memory begins anew with every process.
    directory = Path(os.devnull) if store.url == "memory:" else project.own_dir / "seen"
    return WatchedStore(
        store,
        SequenceMemory(directory, store.url, RunFiles(project.own_dir / "runs")),
        location,
        project.project_dir / OWN_STORE,
        tell,
        called_in=project.called_in,
    )


def open_store(
    url: str | None,
    *,
    project_dir: Path,
    project: str,
    environ: Mapping[str, str],
    config: Mapping[str, Json] | None = None,
) -> OperationStore:
    """
    Return the store of ``url``: a SQLite file (paths relative to ``project_dir``; the default file
    for None), a PostgreSQL database, a bucket, or ``memory:``. In a shared store ``project`` is a
    namespace. ``config`` is the backend block with credentials and endpoints, and with the database
    for ``postgres:``, beside ``environ``.

    Nothing is opened or created before the first use. Raises Invalid for a URL of unknown kind.
    """
    url = url or OWN_STORE
    file = sqlite_file(url, project_dir, environ)
    scheme = url_scheme(url)
    if scheme == "memory":
        from orchestrator.stores.sqlite import MemoryStore

        return MemoryStore()
    if file is not None:
        from orchestrator.stores.sqlite import SqliteStore

        return SqliteStore(file)
    if scheme in DATABASES:
        from orchestrator.stores.postgres import PostgresStore

        return PostgresStore(_conninfo(url, config or {}, environ), project=project)
    from orchestrator.stores.bucket import open_bucket
    from orchestrator.stores.objects import ObjectsStore

    return ObjectsStore(open_bucket(url, config or {}, environ), project=project)


def public_url(environ: Mapping[str, str], location: StoreLocation) -> str:
    """
    Return the URL, without credentials, that the shared store at a location has once it is open;
    no client is made. Raises Invalid if it names none, StoreUnavailable without its extra.
    """
    url = location.url or ""
    if url_scheme(url) in DATABASES:
        from orchestrator.stores.postgres import database_url

        return database_url(_conninfo(url, location.config, environ))
    from orchestrator.stores.bucket import bucket_url

    return bucket_url(url, location.config)


def _conninfo(url: str, config: Mapping[str, Json], environ: Mapping[str, str]) -> str:
    """
    Return how a database is reached: a URL that names none takes the backend block's.
    """
    is_named = url.partition(":")[2].strip("/")
    return url if is_named else str(config.get("conn_str") or environ.get("PG_CONN_STR") or "")


def sqlite_file(url: str | None, project_dir: Path, environ: Mapping[str, str]) -> Path | None:
    """
    Return the file of the store at ``url``, None if it is not a SQLite store. Raises Invalid if it
    is no URL.
    """
    url = url or OWN_STORE
    wrong = store_url_problem(url, environ)
    if wrong is not None:
        hint = f"use {STORE_URLS}"
        raise Invalid([Problem(f"operations.url {shown_url(url)}: {wrong}", hint=hint)])
    match url_scheme(url):
        case None:
            return project_dir / url
        case "sqlite":
            # sqlite:////a, as other programs write an absolute path, is /a as well.
            return project_dir / re.sub(r"^//+", "/", unquote(urlsplit(url).path))
        case _:
            return None


# The project's key.


_KEY_BYTES = 32
_KEY_FILE = ".orchestrator/key"


def project_key(
    store: OperationStore, project_dir: Path, environ: Mapping[str, str], *, create: bool
) -> bytes:
    """
    Return the key, 32 bytes: from ``ORCHESTRATOR_KEY``, else from the store. If there is none, it
    is created in the store with ``create``, else for this process only.

    Concurrent first calls all return the same key. A key file of an earlier version on this machine
    is moved to the store. Raises Invalid for a variable or file that holds no key.
    """
    from orchestrator.domain.blueprint.inputs import KEY_BLOB, KEY_VARIABLE

    text = environ.get(KEY_VARIABLE)
    if text is not None:
        key = _parse_key(text)
        if key is None:
            form = (
                f"{_KEY_BYTES * 2} hexadecimal digits, as `openssl rand -hex {_KEY_BYTES}` prints"
            )
            raise Invalid([Problem(f"{KEY_VARIABLE} is no key", hint=f"it is {form} them")])
        return key
    stored = store.blob(KEY_BLOB)
    if stored is None:
        own = _own_file(project_dir) or os.urandom(_KEY_BYTES)
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
        (project_dir / _KEY_FILE).unlink(missing_ok=True)
    return key


def _own_file(project_dir: Path) -> bytes | None:
    at = Location(_KEY_FILE)
    try:
        text = read_regular(project_dir / _KEY_FILE).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise Invalid([Problem(f"the project key: {exc.strerror}", at)]) from exc
    key = _parse_key(text)
    if key is None:
        hint = "restore it; with a new key, digests of secrets no longer compare with earlier ones"
        raise Invalid([Problem("the project key is damaged", at, hint)])
    return key


def _parse_key(text: str) -> bytes | None:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        return None
    return key if len(key) == _KEY_BYTES else None


def changed_secrets(
    project: ProjectContext, store: OperationStore, stored: StoredDeployment
) -> Sequence[str]:
    """
    Return the secrets of an earlier deployment that are known to have changed, as
    `changed_variables` does.
    """
    # Here: most reading commands need no deployment.
    from orchestrator.domain.blueprint.stored_deployment import changed_variables

    key = project_key(store, project.project_dir, project.environ, create=False)
    return changed_variables(stored, project.environ, key)
