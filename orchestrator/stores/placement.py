"""
Whether records lie where everybody who shares the provider states finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from orchestrator.domain.blueprint.store_location import PREFIX, StoreLocation
from orchestrator.domain.record.record import OperationRecord
from orchestrator.errors import StoreUnavailable
from orchestrator.stores.store_urls import DEFAULT_PATH


class StorePlacement(Struct, frozen=True):
    """
    A store at a location, held against the SQLite file of this machine, whose records are what
    ``on_this_machine`` gives for a blueprint and environment.
    """

    location: StoreLocation
    on_this_machine: Callable[[str, str], Sequence[OperationRecord]]

    def no_shared_store(self) -> StoreUnavailable | None:
        """
        The error where provider states are shared and the records would not be.
        """
        if not self.location.lacks_shared_store:
            return None
        return StoreUnavailable(
            f"no operation store is known for the backend {self.location.backend!r}: the records "
            "would stay on this machine only, and nobody else would see them",
            hint=f'name one that everybody reaches: `operations: {{url: "s3://BUCKET/{PREFIX}"}}` '
            "(or postgres://, gs://, az://) in the blueprint or orchestrator.yaml, and take along "
            f"what this machine has with `orchestrator store copy sqlite:{DEFAULT_PATH} URL`; or "
            f'say that this machine is enough: `operations: {{url: "sqlite:{DEFAULT_PATH}"}}`',
        )

    def records_elsewhere(
        self, url: str, blueprint: str, environment: str, records: Sequence[OperationRecord]
    ) -> StoreUnavailable | None:
        """
        The error where the shared store, at ``url``, has no records of a blueprint that this
        machine knows.
        """
        if records or not self.location.is_shared:
            return None
        targets = self.on_this_machine(blueprint, environment)
        if not targets:
            return None
        return StoreUnavailable(
            f"{url}: nothing is recorded of {blueprint}/{environment}, and this "
            f"machine knows {len(targets)} of its targets ({DEFAULT_PATH})",
            hint=f"move them: `orchestrator store copy sqlite:{DEFAULT_PATH} --blueprint "
            f"{blueprint} -e {environment}`",
        )


def sqlite_records(project_dir: Path) -> Callable[[str, str], Sequence[OperationRecord]]:
    """
    The records of a blueprint and environment in the SQLite file of a project; the file is not
    made.
    """

    def read(blueprint: str, environment: str) -> Sequence[OperationRecord]:
        path = project_dir / DEFAULT_PATH
        if not path.exists():
            return ()
        from orchestrator.stores.sqlite import SqliteStore

        store = SqliteStore(path)
        try:
            return store.records(blueprint, environment)
        finally:
            store.close()

    return read
