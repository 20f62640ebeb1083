"""
Base classes of the JSON documents.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

from typing import Self

from pydantic import BaseModel, ConfigDict

from orchestrator.domain.record.objects import Doubt
from orchestrator.domain.record.states import Condition, Status
from orchestrator.domain.text import Word, escaped


class JsonModel(BaseModel):
    """
    A value inside a document.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)

    @classmethod
    def of(cls, source: BaseModel, **more: object) -> Self:
        """
        Return a document part with the fields it shares with ``source``; ``more`` are the other
        fields, and those with other values.
        """
        shared = cls.model_fields.keys() & type(source).model_fields.keys()
        return cls.model_validate({name: getattr(source, name) for name in shared} | more)


class JsonDocument(JsonModel):
    """
    A whole document; its ``schema`` field holds its name and major version.
    """

    def to_json(self, *, indent: int | None = 2) -> str:
        """
        Return the document as JSON, without a final newline.
        """
        return escaped(self.model_dump_json(by_alias=True, indent=indent))


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
