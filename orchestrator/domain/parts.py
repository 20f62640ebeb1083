"""
What every JSON document of a reading command is made of.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """
    A value inside a document.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


class Document(Part):
    """
    A whole document; its ``schema`` field names it and its major version.
    """

    def to_json(self) -> str:
        """
        The document as indented JSON, without a final newline.
        """
        return self.model_dump_json(by_alias=True, indent=2)
