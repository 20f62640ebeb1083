"""
Base classes of the JSON documents.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

from typing import Self

from msgspec import Struct, structs
from pydantic import BaseModel, ConfigDict, Field

from orchestrator.domain.record.objects import Doubt
from orchestrator.domain.record.states import Condition, Status
from orchestrator.domain.text import Word, escaped


class JsonModel(BaseModel):
    """
    A value inside a document.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)

    @classmethod
    def of(cls, *sources: BaseModel | Struct | None, **more: object) -> Self:
        """
        Return a document part with the fields it shares with the sources, of which a later one
        outweighs; ``more`` are the other fields, and those with other values.
        """
        fields: dict[str, object] = {}
        for source in sources:
            own = structs.asdict(source) if isinstance(source, Struct) else dict(source or ())
            fields |= {name: own[name] for name in cls.model_fields if name in own}
        return cls.model_validate(fields | more)


class JsonDocument(JsonModel):
    """
    A whole document; its ``schema`` field holds its name and major version.
    """

    schema_: Word = Field(alias="schema")

    def to_json(self, *, indent: int | None = 2) -> str:
        """
        Return the document as JSON, without a final newline.
        """
        return escaped(self.model_dump_json(by_alias=True, indent=indent))


class BlueprintDocument(JsonDocument):
    project: Word
    blueprint: Word
    environment: Word


class HookTarget(JsonModel):
    """
    The module of a step's hook by its newest record. Its objects stay when the step is destroyed:
    ``objects`` are alive.
    """

    target: Word
    status: Status
    condition: Condition | None = None
    run_id: Word
    last_error: str | None = None
    objects: tuple[Word, ...] = ()
    in_doubt: tuple[Doubt, ...] = ()
