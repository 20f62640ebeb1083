"""
Opens the store of an ``operations.url``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import (
    DATABASES,
    OWN_STORE,
    PREFIX,
    STORE_URLS,
    StoreLocation,
    shown_url,
    store_url_problem,
    url_scheme,
)
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.recovery.command_line import RecordedBlueprint, copy_records_command
from orchestrator.errors import Invalid, Problem, StoreUnavailable

if TYPE_CHECKING:
    from orchestrator.domain.text import Json
    from orchestrator.ports.store import OperationStore


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
        from orchestrator.stores.memory import MemoryStore

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


# Whether records lie where everybody who shares the provider states finds them.


class StorePlacement(Struct, frozen=True):
    """
    Compares the location of a store with the SQLite file of this machine, whose records
    ``on_this_machine`` returns for a blueprint and environment. ``called_in`` is the directory for
    the commands that it names.
    """

    location: StoreLocation
    on_this_machine: Callable[[str, str], Sequence[OperationRecord]]
    called_in: str = ""

    def no_shared_store(self) -> StoreUnavailable | None:
        """
        Return an error if provider states are shared but records would not be.
        """
        if not self.location.lacks_shared_store:
            return None
        return StoreUnavailable(
            f"no operation store is known for the backend {self.location.backend!r}: the records "
            "would stay on this machine only, and nobody else would see them",
            hint=f'name one that everybody reaches: `operations: {{url: "s3://BUCKET/{PREFIX}"}}` '
            "(or postgres://, gs://, az://) in the blueprint or orchestrator.yaml, and take along "
            f"what this machine has with `orchestrator store copy sqlite:{OWN_STORE} URL`; or "
            f'say that this machine is enough: `operations: {{url: "sqlite:{OWN_STORE}"}}`',
            reason="no_shared_store",
        )

    def records_elsewhere(
        self, url: str, blueprint: str, environment: str, records: Sequence[OperationRecord]
    ) -> StoreUnavailable | None:
        """
        Return an error if the shared store at ``url`` has no records of a blueprint that this
        machine has records of.
        """
        if records or not self.location.is_shared:
            return None
        targets = self.on_this_machine(blueprint, environment)
        if not targets:
            return None
        command = copy_records_command(self.named(blueprint, environment))
        return StoreUnavailable(
            f"{url}: nothing is recorded of {blueprint}/{environment}, and this "
            f"machine knows {len(targets)} of its targets ({OWN_STORE})",
            hint=f"move them: `{command}`",
            reason="records_elsewhere",
        )

    def named(self, blueprint: str, environment: str) -> RecordedBlueprint:
        """
        Return the address of a blueprint for commands.
        """
        return RecordedBlueprint(blueprint, environment, called_in=self.called_in)


def sqlite_records(project_dir: Path) -> Callable[[str, str], Sequence[OperationRecord]]:
    """
    Return a function that returns the records of a blueprint and environment in the SQLite file of
    a project, without creating the file.
    """

    def read(blueprint: str, environment: str) -> Sequence[OperationRecord]:
        path = project_dir / OWN_STORE
        if not path.exists():
            return ()
        from orchestrator.stores.sqlite import SqliteStore

        store = SqliteStore(path)
        try:
            return store.records(blueprint, environment)
        finally:
            store.close()

    return read
