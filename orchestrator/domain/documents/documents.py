"""
The JSON documents of reading commands, one class each. Their names are a contract.

Times are UTC. Every text is masked already. A field that is added later is optional.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from orchestrator.domain.json_model import JsonDocument, JsonModel
from orchestrator.domain.text import Word


class ProblemDocument(JsonModel):
    """
    A problem and its place; line and column count from 1, None if unknown.
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
    The result of ``validate``: all problems at once.
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
    ones). ``reasons`` say why a change affects it, if only affected steps are drawn.
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
    The engine that would be used: ``program`` is its argv.
    """

    schema_: Literal["orchestrator.engine/1"] = Field("orchestrator.engine/1", alias="schema")
    kind: Literal["terraform", "tofu"]
    version: Word
    program: tuple[Word, ...]
    source: Word
    why: str


class ErrorDocument(JsonDocument):
    """
    An error of any command with ``--json``; ``reason`` refines ``code``, if set.
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
    A requirement on a store; ``milliseconds`` is the median of several tries.
    """

    name: str
    ok: bool
    milliseconds: float | None = None
    message: str | None = None


class StoreCheckDocument(JsonDocument):
    """
    The result of ``store check``: the store's location, and whether it meets the requirements of
    runs.
    """

    schema_: Literal["orchestrator.store_check/1"] = Field(
        "orchestrator.store_check/1", alias="schema"
    )
    url: str
    ok: bool
    checks: tuple[StoreCheck, ...]


class StoreCopyDocument(JsonDocument):
    """
    The result of ``store copy`` and ``store import``. ``digest`` is the SHA-256 over all entries,
    equal in both stores.
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
    A run whose evidence is not needed any more.
    """

    run_id: str
    command: str
    blueprint: str
    environment: str
    started_at: datetime


class StorePruneDocument(JsonDocument):
    """
    The result of ``store prune``: runs and blobs that can be removed, or with ``removed`` were.
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
    A target with all its entries, oldest first: one line of ``store export``. ``blobs`` are the
    documents that the newest entry names, by name: recorded inputs and deployment.
    """

    schema_: Literal["orchestrator.store_export/1"] = Field(
        "orchestrator.store_export/1", alias="schema"
    )
    target: str
    entries: tuple[dict[str, Any], ...]
    blobs: dict[str, str] = {}
