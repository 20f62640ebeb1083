"""
The documents of the ``store`` commands.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from orchestrator.domain.json_model import JsonDocument, JsonModel


class StoreCheck(JsonModel):
    """
    One thing that a store must be able to do; ``milliseconds`` is the median of several tries.
    """

    name: str
    ok: bool
    milliseconds: float | None = None
    message: str | None = None


class StoreCheckDocument(JsonDocument):
    """
    What ``store check`` found: where the store is, and whether what runs rely on holds there.
    """

    schema_: Literal["orchestrator.store_check/1"] = Field(
        "orchestrator.store_check/1", alias="schema"
    )
    url: str
    ok: bool
    checks: tuple[StoreCheck, ...]


class StoreCopyDocument(JsonDocument):
    """
    What ``store copy`` and ``store import`` did. ``digest`` is the SHA-256 over all entries, the
    same in both stores.
    """

    schema_: Literal["orchestrator.store_copy/1"] = Field(
        "orchestrator.store_copy/1", alias="schema"
    )
    source: str
    destination: str
    targets: int
    entries: int
    blobs: int
    digest: str


class PrunedRun(JsonModel):
    """
    A run whose evidence nobody needs any more.
    """

    run_id: str
    command: str
    blueprint: str
    environment: str
    started_at: datetime


class StorePruneDocument(JsonDocument):
    """
    What ``store prune`` found: runs and blobs that can go, or with ``removed`` are gone.
    """

    schema_: Literal["orchestrator.store_prune/1"] = Field(
        "orchestrator.store_prune/1", alias="schema"
    )
    url: str
    removed: bool
    runs: tuple[PrunedRun, ...]
    blobs: tuple[str, ...]
    kept_runs: int


class ExportedTarget(JsonDocument):
    """
    A target with all its entries, oldest first: one line of ``store export``.
    """

    schema_: Literal["orchestrator.store_export/1"] = Field(
        "orchestrator.store_export/1", alias="schema"
    )
    target: str
    entries: tuple[dict[str, Any], ...]
