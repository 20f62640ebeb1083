"""
The JSON documents of reading commands, one class each. Their names are a contract.

Times are UTC. Every text is masked already. A field that is added later is optional.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from orchestrator.domain.json_model import JsonDocument, JsonModel
from orchestrator.domain.text import Word


class ProblemDocument(JsonModel):
    """
    One thing wrong and where; line and column count from 1, None if unknown.
    """

    message: str
    file: Word | None = None
    line: int | None = None
    column: int | None = None
    hint: str = ""


class CheckedBlueprint(JsonModel):
    blueprint: Word
    file: Word
    environments: tuple[Word, ...] = ()
    steps: tuple[Word, ...] = ()


class ValidationDocument(JsonDocument):
    """
    What ``validate`` tells: all problems at once.
    """

    schema_: Literal["orchestrator.validation/1"] = Field(
        "orchestrator.validation/1", alias="schema"
    )
    valid: bool
    blueprints: tuple[CheckedBlueprint, ...] = ()
    problems: tuple[ProblemDocument, ...] = ()


class GraphStep(JsonModel):
    """
    A node: ``needs`` are its upstream steps, ``wave`` counts from 1 (all it needs is in earlier
    ones). ``reasons`` say why it is touched, where only what a change touches is drawn.
    """

    step: Word
    module_ref: Word
    wave: int
    needs: tuple[Word, ...] = ()
    owned_by: Word | None = None
    reasons: tuple[str, ...] = ()


class GraphDocument(JsonDocument):
    """
    The steps of a blueprint in the order of an apply.
    """

    schema_: Literal["orchestrator.graph/1"] = Field("orchestrator.graph/1", alias="schema")
    blueprint: Word
    environment: Word
    steps: tuple[GraphStep, ...]


class EngineDocument(JsonDocument):
    """
    The engine that would be used: ``program`` is the argv that starts it.
    """

    schema_: Literal["orchestrator.engine/1"] = Field("orchestrator.engine/1", alias="schema")
    kind: Literal["terraform", "tofu"]
    version: Word
    program: tuple[Word, ...]
    source: Word
    why: str


class ErrorDocument(JsonDocument):
    """
    An error of any command under ``--json``; ``reason`` refines ``code`` where there is one.
    """

    schema_: Literal["orchestrator.error/1"] = Field("orchestrator.error/1", alias="schema")
    code: Word
    exit_code: int
    message: str
    hint: str = ""
    reason: Word | None = None
    problems: tuple[ProblemDocument, ...] = ()


# The documents of the ``store`` commands.


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
