"""
Opens the operation store of a project: allowed by the trust file, private, and watched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.domain.blueprint.blueprint import StoreLocation
from orchestrator.errors import Refused
from orchestrator.local_files import close_files
from orchestrator.ports.store import OperationStore
from orchestrator.project import ProjectContext
from orchestrator.run_files import RunFiles
from orchestrator.stores.schema import is_ours
from orchestrator.stores.sequence_memory import SequenceMemory, WatchedStore
from orchestrator.stores.store_urls import StorePlacement, open_store, sqlite_file, sqlite_records

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.stored_deployment import StoredDeployment

Tell = Callable[[str], None]


def project_store(project: ProjectContext, location: StoreLocation, tell: Tell) -> WatchedStore:
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
    if file is not None and is_ours(file):
        close_files((file,), tell)
    store = open_store(
        location.url,
        project_dir=project.project_dir,
        project=project.settings.project,
        environ=project.environ,
        config=location.config,
    )
    # A store in memory begins anew with every process.
    place = Path(os.devnull) if store.url == "memory:" else project.own_dir / "seen"
    runs = RunFiles(project.own_dir / "runs")
    memory = SequenceMemory(place, store.url, runs.traces)
    placement = StorePlacement(location, sqlite_records(project.project_dir), project.called_in)
    return WatchedStore(store, memory, placement, tell)


def changed_secrets(
    project: ProjectContext, store: OperationStore, stored: StoredDeployment
) -> Sequence[str]:
    """
    Return the secrets of an earlier deployment that are known to have changed, as
    `changed_variables` does.
    """
    # Here: most reading commands need neither.
    from orchestrator.domain.blueprint.stored_deployment import changed_variables
    from orchestrator.stores.project_key import project_key

    key = project_key(store, project.project_dir, project.environ, create=False)
    return changed_variables(stored, project.environ, key)
